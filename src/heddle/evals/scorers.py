"""Scorers that run in the server: built-in ones chosen by an object's class name, and models as judges.

A built-in scorer is an ordinary object with `_bases` `["Scorer", "Object", "BaseModel"]` and one of the class names of
`scorer_kinds.KINDS`; a judge is the SDK's own LLMAsAJudgeScorer. Code that is stored with an object is never run."""

import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.errors import Forbidden, InvalidRequest, NotFound
from heddle.evals.objects import (
    ChatAnswer,
    ChatRequest,
    Message,
    ObjectReader,
    StoredObject,
    StructuredModel,
    external_text,
    fill_template,
    is_ref,
    prompt_messages,
    read_structured,
    template_names,
)
from heddle.evals.scorer_kinds import KINDS, CannotScore, Kind
from heddle.ipc.bounded import BoundedProcesses, TooMuchWork
from heddle.wire import refs
from heddle.wire.jsontypes import Json
from heddle.wire.means import mean

Ask = Callable[[ChatRequest], Awaitable[ChatAnswer]]


@dataclass(frozen=True, slots=True)
class Scorer(ABC):
    """Judges answers."""

    name: str
    """What it is called in the summary."""
    ref: str
    """The internal ref of its object; empty for one that is stored inside an evaluation."""
    class_name: str
    needs: Sequence[str]
    """The columns that every row must have."""
    is_numeric: bool
    """True when its scores hold numbers or truths."""

    @property
    def op_name(self) -> str:
        """The name of the op that it is."""
        return f"{self.class_name}.score"

    @abstractmethod
    def arguments(self, columns: Mapping[str, Any]) -> Json:
        """What its call shows beside the answer: names with the values (or refs) of the row's columns."""

    @abstractmethod
    async def score(self, output: Any, row: Json, ask: Ask) -> Any:
        """The score of an answer: a number, a truth, or an object of these; raises HeddleError."""

    def measured(self, score: Any) -> Any:
        """The part of a score that says how good the answer is."""
        return score


def _as_text(output: Any) -> str:
    """An answer as text: JSON where it is none."""
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def number_of(value: Any) -> float | None:
    """The mean of the numbers and truths in a score; None when it holds none."""
    found = list(_leaves(value))
    return mean(found) if found else None


def _leaves(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [float(value)] if is_number(value) else []


def is_number(value: Any) -> bool:
    """True for numbers and truths that a sum can take: JSON knows integers beyond every float."""
    return isinstance(value, int | float) and -sys.float_info.max <= value <= sys.float_info.max


LONGEST_ANSWER = 100_000
"""Characters of an answer that are looked at."""
MOST_TARGETS = 100
"""Of one row that are looked at here; more are, like patterns and schemas, looked at by the process."""
_BASE_CODE = "/op/Scorer.score:"
_OF_EVERY_SCORER = frozenset(("name", "description", "column_map", "summarize", "ref"))
_KEPT_BYTES = 1 << 20
processes = BoundedProcesses("heddle.evals.scorer_kinds", kept_bytes=_KEPT_BYTES)


@dataclass(frozen=True, slots=True)
class BuiltinScorer(Scorer):
    """One scorer that is built in; its scores are numbers and truths."""

    kind: Kind
    settings: Mapping[str, Any]
    target: str
    """The column of the row that holds the target."""

    def arguments(self, columns: Mapping[str, Any]) -> Json:
        """The target."""
        return {"target": columns[self.target]} if self.needs and self.target in columns else {}

    async def score(self, output: Any, row: Json, _ask: Ask) -> Json:
        """The named scores of an answer; raises InvalidRequest where a row has no target, or one of no use."""
        for column in self.needs:
            if row.get(column) is None:
                raise InvalidRequest(f"The scorer {self.name} needs the column {column!r}, which is missing in the row")
        text, target = _as_text(output)[:LONGEST_ANSWER], row.get(self.target)
        if self.kind.is_bounded or (isinstance(target, list) and len(target) > MOST_TARGETS):
            return await self._bounded(text, target)
        try:
            return self.kind.score(text, target, self.settings)
        except CannotScore as error:
            raise InvalidRequest(f"The scorer {self.name}: {error}") from None

    async def problem(self) -> str | None:
        """What is wrong with its pattern or schema, which only the process reads; None when it can score."""
        given = self.kind.instead_of_target
        if given is None or not self.settings[given]:
            return None
        job = {"kind": self.class_name, "settings": dict(self.settings)}
        try:
            answer = await processes.answer(job)
        except TooMuchWork as error:
            return f"{self.class_name}.{given} {error}"
        return answer.get("problem") or answer.get("error")

    async def _bounded(self, text: str, target: Any) -> Json:
        job = {"kind": self.class_name, "output": text, "target": target, "settings": dict(self.settings)}
        try:
            answer = await processes.answer(job, [self.class_name, job["settings"]])
        except TooMuchWork as error:
            raise InvalidRequest(f"The scorer {self.name} {error}") from None
        if "error" in answer:
            raise InvalidRequest(f"The scorer {self.name}: {answer['error']}")
        scores: Json = answer["score"]
        return scores

    def measured(self, score: Any) -> Any:
        """The part of a score that says how good the answer is."""
        if not self.kind.measures or not isinstance(score, dict):
            return score
        return {key: score[key] for key in self.kind.measures if key in score}


def read_builtin(name: str, ref: str, value: Json) -> BuiltinScorer | str:
    """The scorer that an object describes; a text when it describes none, saying why.

    What others wrote in it is not read yet: `BuiltinScorer.problem` does.
    """
    class_name = value.get("_class_name") or value.get("_type")
    kind = KINDS.get(class_name) if isinstance(class_name, str) else None
    if kind is None or not isinstance(class_name, str):
        return f"{class_name or 'it'} is not a built-in scorer"
    if not kind.is_of_the_sdk and not _is_base_code(value.get("score")):
        return f"it has code of its own, and a {class_name} is built in"
    kept = _OF_EVERY_SCORER | kind.ignored | {"score"}
    given = {key: item for key, item in value.items() if key not in kept and key[:1] != "_" and item is not None}
    unknown = sorted(given.keys() - kind.settings.keys())
    if unknown:
        return f"{class_name} has no field {unknown[0]!r}"
    for key, item in given.items():
        if not _fits(item, kind.settings[key]):
            return f"{class_name}.{key} must be a {type(kind.settings[key]).__name__}"
    settings = {**kind.settings, **given}
    target = _target_column(value.get("column_map"))
    if target is None:
        return f"{class_name}.column_map maps something else than target to a column"
    replacement = kind.instead_of_target
    is_needed = kind.needs_target and not (replacement is not None and settings[replacement])
    return BuiltinScorer(name, ref, class_name, [target] if is_needed else [], True, kind, settings, target)


def _is_base_code(score: Any) -> bool:
    """True without code, and for that of the SDK's base class, which an empty class of a program stores."""
    return score is None or (isinstance(score, str) and _BASE_CODE in score)


def _target_column(columns: Any) -> str | None:
    """The column of the target by a column_map; None for a map that no built-in scorer can have."""
    if columns is None:
        return "target"
    if not isinstance(columns, dict) or not columns.keys() <= {"target"}:
        return None
    target = columns.get("target", "target")
    return target if isinstance(target, str) else None


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    return isinstance(value, type(default))


JUDGE_CLASS = "LLMAsAJudgeScorer"
LONGEST_SCORE = 500_000
"""Characters of JSON: a score is feedback, and the payload of feedback has a limit."""
_GIVEN = {"output", "inputs"}
"""What a judge's prompt may name beside the columns of the row."""
_MEDIA = ("enable_image_input_scoring", "enable_audio_input_scoring", "enable_video_input_scoring")
_MEDIA_PATHS = ("media_scoring_json_paths", "audio_input_scoring_json_paths")


@dataclass(frozen=True, slots=True)
class JudgeScorer(Scorer):
    """One judge of an evaluation."""

    prompt: Sequence[Message]
    """Messages with `{column}` places, `{output}` and `{inputs}` (the whole row)."""
    columns: Mapping[str, str]
    """Which column a name of the prompt stands for, where it is another."""
    model: StructuredModel

    def arguments(self, columns: Mapping[str, Any]) -> Json:
        """Every column, and those that the column_map names once more."""
        return {**columns, **{name: columns[column] for name, column in self.columns.items() if column in columns}}

    async def score(self, output: Any, row: Json, ask: Ask) -> Any:
        """What the judge says; raises HeddleError when it cannot be asked or says nothing that can be used."""
        mapped = {name: row[column] for name, column in self.columns.items() if column in row}
        values = {**row, **mapped, "output": output, "inputs": row}
        asked = fill_template(list(self.prompt), values)
        # Its own template is sent as it is: only the prompt of the scorer speaks of the row.
        answer = await ask(self.model.request([*self.model.messages(None), *asked]))
        try:
            score = self.model.read(answer)
        except InvalidRequest as error:
            raise InvalidRequest(f"The judge {self.name}: {error.reason}") from None
        if len(json.dumps(score)) > LONGEST_SCORE:
            raise InvalidRequest(f"The judge {self.name} returned more than {LONGEST_SCORE} characters of JSON")
        return score


def read_judge(name: str, ref: str, value: Json, model: StructuredModel, prompt: Any) -> JudgeScorer | str:
    """The judge that an object describes, given its model and prompt; a text when it cannot be run, saying why."""
    columns = value.get("column_map") or {}
    if not isinstance(columns, dict) or not all(isinstance(column, str) for column in columns.values()):
        return "its column_map does not map names to columns"
    if any(value.get(key) for key in (*_MEDIA, *_MEDIA_PATHS)):
        return "it judges media"
    if model.parameters.get("n_times") not in (None, 1):
        return "it asks for several answers (n_times)"
    messages = prompt_messages(prompt)
    if messages is None:
        return "its scoring_prompt is neither a string nor messages"
    try:
        named = template_names(messages) - _GIVEN
        model.request([])
    except ValueError as error:
        return f"its scoring_prompt cannot be rendered: {error}"
    except InvalidRequest as error:
        return error.reason
    needs = sorted(columns.get(name, name) for name in named)
    # A JSON object can hold numbers; a text is no score.
    is_numeric = model.parameters.get("response_format") == "json_object"
    return JudgeScorer(name, ref, JUDGE_CLASS, needs, is_numeric, messages, columns, model)


class CannotRun(InvalidRequest):
    """Scorers that do not run here; the reason lists them."""


async def read_scorers(reader: ObjectReader, listed: Sequence[Any], what: str = "There are") -> list[Scorer]:
    """The scorers of a list of refs (or values); raises CannotRun with all those that do not run here.

    `what` begins the text: `The evaluation x has`, say.
    """
    made, refused = await read_usable_scorers(reader, listed)
    names = [scorer.name for scorer in made]
    refused += [f"several are named {twice}" for twice in sorted({item for item in names if names.count(item) > 1})]
    if refused:
        raise CannotRun(f"{what} scorers that cannot be run here: {'; '.join(refused)}")
    return made


async def read_usable_scorers(reader: ObjectReader, listed: Sequence[Any]) -> tuple[list[Scorer], list[str]]:
    """The scorers of a list that run here, and why each of the others does not; raises Forbidden, and what may pass."""
    made, refused = list[Scorer](), list[str]()
    for place, item in enumerate(listed):
        try:
            made.append(await _read_scorer(reader, item, place))
        except (InvalidRequest, NotFound) as error:
            refused.append(error.reason)
    return made, refused


async def _read_scorer(reader: ObjectReader, item: Any, place: int) -> Scorer:
    if isinstance(item, dict):
        # A reader of values has no version of its own for what is stored inside another object.
        inline = StoredObject(refs.Ref("", "object", str(item.get("name") or f"scorer_{place}")), item)
        return await _read_described(reader, inline, "", f"number {place}: {{}}")
    if not is_ref(item):
        raise InvalidRequest(f"number {place} is not a scorer")
    if reader.target(item, "The scorer").kind != "object":
        raise InvalidRequest(f"{external_text(item)} (a function; stored code is not run on this server)")
    found = await reader.read(item, "The scorer")
    return await _read_described(reader, found, found.ref, f"{external_text(item)} ({{}})")


async def _read_described(reader: ObjectReader, found: StoredObject, ref: str, problem: str) -> Scorer:
    made: Scorer | str
    if not found.is_a(JUDGE_CLASS):
        made = read_builtin(found.target.name, ref, found.value)
        if isinstance(made, BuiltinScorer):
            made = await made.problem() or made
    else:
        try:
            made = await _read_judge_parts(reader, found, ref)
        except (Forbidden, InvalidRequest, NotFound) as error:
            made = error.reason
    if isinstance(made, str):
        raise InvalidRequest(problem.replace("{}", made))
    return made


async def _read_judge_parts(reader: ObjectReader, found: StoredObject, ref: str) -> Scorer | str:
    model = found.value.get("model")
    if is_ref(model):
        described = await reader.read(model, "The model of a judge")
    elif isinstance(model, dict):
        described = StoredObject(found.target, model)
    else:
        return "it has no model"
    prompt = await reader.followed(found.value.get("scoring_prompt"), "The prompt of a judge")
    return read_judge(found.target.name, ref, found.value, await read_structured(reader, described), prompt)
