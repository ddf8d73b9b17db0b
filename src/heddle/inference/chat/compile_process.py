"""A process that compiles what requests want of their output, so that no grammar can hold up or end the server."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heddle.errors import ExtraMissing, HeddleError, InvalidRequest
from heddle.inference.prompt.reasoning import ReasoningMarks, after_open_reasoning, after_optional_reasoning
from heddle.inference.structured import ResponseFormat, StructuredOutputs, constraint_for
from heddle.inference.structured.constraint import Constraint
from heddle.inference.structured.guidance import grammar_tokenizer
from heddle.inference.tools import ToolPlan
from heddle.ipc.bounded import BoundedProcesses, TooMuchWork, answer_jobs
from heddle.wire.jsontypes import Json

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from heddle.inference.models.served_model import ServedModel

STACK_BYTES = 2 << 20
"""A quarter of what the engine's process has: what compiles here cannot overflow the stack there."""
WORK_BYTES = 48 << 20
CPU_SECONDS = 1.0
"""What compiles here compiles once more in the engine, where everybody waits for it."""
_KEPT_BYTES = 8 << 20
Reasoning = Literal["open", "optional"]
processes = BoundedProcesses(__name__, CPU_SECONDS, kept_bytes=_KEPT_BYTES)


async def compile_constraint(
    model: "ServedModel",
    tools: ToolPlan | None,
    structured_outputs: StructuredOutputs | None,
    response_format: ResponseFormat | None,
    reasoning: Reasoning | None,
) -> Constraint | None:
    """What the text must look like: forced calls, or the format that the request names; None when it is free.

    `reasoning`: a block that goes before it. Raises InvalidRequest with the field.
    """
    job = {
        "model": {
            "name": model.source.name,
            "folder": str(model.source.folder),
            "vocab_size": model.info.vocab_size,
            "eos": list(model.info.eos_token_ids),
        },
        "tools": tools.as_json() if tools is not None else None,
        "structured_outputs": _dumped(structured_outputs),
        "response_format": _dumped(response_format),
        "reasoning": reasoning,
        "marks": asdict(model.reasoning) if model.reasoning is not None else None,
    }
    try:
        answer = await processes.answer(job)
    except TooMuchWork as error:
        param = _field(tools, structured_outputs, response_format)
        raise InvalidRequest(f"{param}: to compile it {error}", param=param) from None
    if "missing" in answer:
        raise ExtraMissing(answer["missing"])
    if "error" in answer:
        raise InvalidRequest(answer["error"], param=answer["param"])
    return Constraint(answer["grammar"]) if answer else None


def _dumped(value: StructuredOutputs | ResponseFormat | None) -> Json | None:
    return None if value is None else value.model_dump(by_alias=True, exclude_unset=True)


def _field(tools: ToolPlan | None, outputs: StructuredOutputs | None, wanted: ResponseFormat | None) -> str:
    """The field that holds what was compiled."""
    if tools is not None and tools.constrains:
        return "tools"
    if wanted is not None and wanted.type != "text":
        return "response_format"
    given = outputs.model_dump(by_alias=True, exclude_none=True) if outputs is not None else {}
    return ".".join(["structured_outputs", *list(given)[:1]])


def _answer(job: Json) -> Json:
    try:
        found = _compiled(job)
    except ExtraMissing as error:
        return {"missing": error.reason}
    except InvalidRequest as error:
        return {"error": error.reason, "param": error.param}
    except HeddleError as error:
        return {"error": error.reason, "param": None}
    return {} if found is None else {"grammar": found.grammar}


def _compiled(job: Json) -> Constraint | None:
    tokenizer = _tokenizer(json.dumps(job["model"]))
    calls = ToolPlan.from_json(job["tools"]).constraint(tokenizer) if job["tools"] is not None else None
    outputs, wanted = job["structured_outputs"], job["response_format"]
    asked = constraint_for(
        StructuredOutputs.model_validate(outputs) if outputs is not None else None,
        ResponseFormat.model_validate(wanted) if wanted is not None else None,
        tokenizer,
    )
    if calls is not None and asked is not None:
        raise InvalidRequest(
            "tool_choice or a strict tool sets the format of the text, so it cannot have another one at the same time",
            param="tool_choice",
        )
    chosen = calls or asked
    if chosen is None or job["reasoning"] is None:
        return chosen
    marks = ReasoningMarks(**{name: _tuple(value) for name, value in job["marks"].items()})
    before = after_open_reasoning if job["reasoning"] == "open" else after_optional_reasoning
    return Constraint(before(chosen.grammar, tokenizer, marks))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=2)
def _tokenizer(model: str) -> "LLTokenizer":
    """The tokenizer of a model as the library wants it; InvalidRequest for one that it cannot read."""
    named: Mapping[str, Any] = json.loads(model)
    try:
        return grammar_tokenizer(Path(named["folder"]) / "tokenizer.json", named["vocab_size"], named["eos"])
    except ValueError as error:
        raise InvalidRequest(
            f"The output cannot be constrained: the tokenizer of {named['name']} fits no grammar ({str(error)[:200]})",
            param="structured_outputs",
        ) from None


def _prepare(job: Json) -> None:
    """Reading the tokenizer is no work of the request's."""
    with suppress(HeddleError):
        _tokenizer(json.dumps(job["model"]))


if __name__ == "__main__":
    answer_jobs(_answer, _prepare, STACK_BYTES, WORK_BYTES)
