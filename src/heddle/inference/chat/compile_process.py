"""A process that compiles what requests want of their output, so that no grammar can hold up or end the server."""

from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

from heddle.errors import ExtraMissing, HeddleError, InvalidRequest
from heddle.inference.prompt.reasoning import ReasoningMarks, allow_reasoning_before, finish_reasoning_before
from heddle.inference.structured.constraints import ResponseFormat, StructuredOutputs, constraint_for
from heddle.inference.structured.guidance import Constraint, LLTokenizer, grammar_tokenizer
from heddle.inference.tools.channels import put_into_answer
from heddle.inference.tools.plan import ToolPlan
from heddle.ipc.bounded import BoundedProcesses, TooMuchWork, answer_jobs
from heddle.wire.jsontypes import Json

STACK_BYTES = 2 << 20
"""A quarter of what the engine's process has: what compiles here cannot overflow the stack there."""
WORK_BYTES = 48 << 20
CPU_SECONDS = 1.0
"""What compiles here compiles once more in the engine, where everybody waits for it."""
_KEPT_BYTES = 8 << 20
Reasoning = Literal["open", "optional"]
processes = BoundedProcesses(__name__, CPU_SECONDS, kept_bytes=_KEPT_BYTES)


@dataclass(frozen=True, slots=True)
class CompileJob:
    """What one request wants of its output, and of which model."""

    name: str
    folder: Path
    vocab_size: int
    eos: tuple[int, ...]
    tools: ToolPlan | None
    structured_outputs: StructuredOutputs | None
    response_format: ResponseFormat | None
    reasoning: Reasoning | None
    """A reasoning block that goes before it."""
    marks: ReasoningMarks | None
    in_channels: bool = False
    """The model writes its answer as a Harmony message."""

    @property
    def has_response_format(self) -> bool:
        """Whether the request names the form of its answer."""
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def param(self) -> str:
        """The field that holds what is compiled."""
        if self.tools is not None and self.tools.constrains:
            return "tools"
        if self.has_response_format:
            return "response_format"
        outputs = self.structured_outputs
        given = outputs.model_dump(by_alias=True, exclude_none=True) if outputs is not None else {}
        return ".".join(["structured_outputs", *list(given)[:1]])


@cache
def _adapter() -> TypeAdapter[CompileJob]:
    return TypeAdapter(CompileJob)


async def compile_constraint(job: CompileJob) -> Constraint | None:
    """What the text must look like: forced calls, or the format that the request names; None when it is free.

    Raises InvalidRequest with the field.
    """
    try:
        answer = await processes.answer(_adapter().dump_python(job, mode="json", by_alias=True, exclude_unset=True))
    except TooMuchWork as error:
        raise InvalidRequest(f"{job.param}: to compile it {error}", param=job.param) from None
    if "missing" in answer:
        raise ExtraMissing(answer["missing"])
    if "error" in answer:
        raise InvalidRequest(answer["error"], param=answer["param"])
    return Constraint(answer["grammar"]) if answer else None


def _answer(message: Json) -> Json:
    try:
        found = _compile(_adapter().validate_python(message))
    except ExtraMissing as error:
        return {"missing": error.reason}
    except InvalidRequest as error:
        return {"error": error.reason, "param": error.param}
    except HeddleError as error:
        return {"error": error.reason, "param": None}
    return {} if found is None else {"grammar": found.grammar}


def _compile(job: CompileJob) -> Constraint | None:
    tokenizer = _tokenizer(job.name, job.folder, job.vocab_size, job.eos)
    asked = constraint_for(job.structured_outputs, job.response_format, tokenizer)
    if job.tools is not None and not job.tools.is_forced and asked is not None and job.has_response_format:
        # a format is that of the answer: a call is none
        return _after_thoughts(job.tools.constraint_beside(asked, tokenizer), job, tokenizer)
    calls = job.tools.constraint(tokenizer) if job.tools is not None else None
    if calls is not None and asked is not None:
        raise InvalidRequest(
            "tool_choice or a strict tool already sets the output format, which cannot be combined with another one",
            param="tool_choice",
        )
    if asked is not None and job.in_channels:
        asked = Constraint(put_into_answer(asked.grammar, tokenizer))
    chosen = calls or asked
    return None if chosen is None else _after_thoughts(chosen, job, tokenizer)


def _after_thoughts(chosen: Constraint, job: CompileJob, tokenizer: LLTokenizer) -> Constraint:
    if job.reasoning is None or job.marks is None:
        return chosen
    before = finish_reasoning_before if job.reasoning == "open" else allow_reasoning_before
    return Constraint(before(chosen.grammar, tokenizer, job.marks))


@lru_cache(maxsize=2)
def _tokenizer(name: str, folder: Path, vocab_size: int, eos: tuple[int, ...]) -> LLTokenizer:
    """The tokenizer of a model as the library wants it; InvalidRequest for one that it cannot read."""
    try:
        return grammar_tokenizer(folder / "tokenizer.json", vocab_size, eos)
    except ValueError as error:
        raise InvalidRequest(
            f"The output cannot be constrained: the tokenizer of {name} does not support grammars ({str(error)[:200]})",
            param="structured_outputs",
        ) from None


def _prepare(message: Json) -> None:
    """Reading the tokenizer is no work of the request's."""
    job = _adapter().validate_python(message)
    with suppress(HeddleError):
        _tokenizer(job.name, job.folder, job.vocab_size, job.eos)


if __name__ == "__main__":
    answer_jobs(_answer, _prepare, STACK_BYTES, WORK_BYTES)
