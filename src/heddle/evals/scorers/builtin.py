"""Scorers that run in the server, chosen by an object's class name.

A built-in scorer is an ordinary object with `_bases` `["Scorer", "Object", "BaseModel"]` and one of the class names of
`kinds.KINDS`. Code that is stored with an object is never run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.errors import InvalidRequest
from heddle.evals.scorers.base import Ask, as_text
from heddle.evals.scorers.kinds import KINDS, CannotScore, Kind
from heddle.ipc.bounded import BoundedProcesses, TooMuchWork
from heddle.wire.jsontypes import Json

LONGEST_ANSWER = 100_000
"""Characters of an answer that are looked at."""
MOST_TARGETS = 100
"""Of one row that are looked at here; more are, like patterns and schemas, looked at by the process."""
_BASE_CODE = "/op/Scorer.score:"
_OF_EVERY_SCORER = frozenset(("name", "description", "column_map", "summarize", "ref"))
_KEPT_BYTES = 1 << 20
processes = BoundedProcesses("heddle.evals.scorers.process", kept_bytes=_KEPT_BYTES)


@dataclass(frozen=True, slots=True)
class BuiltinScorer:
    """One scorer of an evaluation."""

    name: str
    ref: str
    class_name: str
    kind: Kind
    settings: Mapping[str, Any]
    target: str
    """The column of the row that holds the target."""

    @property
    def is_numeric(self) -> bool:
        """Built-in scores are numbers and truths."""
        return True

    @property
    def needs(self) -> Sequence[str]:
        """The column of the target, where there is one."""
        given = self.kind.instead_of_target
        is_needed = self.kind.needs_target and not (given is not None and self.settings[given])
        return [self.target] if is_needed else []

    def arguments(self, columns: Mapping[str, Any]) -> Json:
        """The target."""
        return {"target": columns[self.target]} if self.needs and self.target in columns else {}

    async def score(self, output: Any, row: Json, _ask: Ask) -> Json:
        """The named scores of an answer; raises InvalidRequest where a row has no target, or one of no use."""
        for column in self.needs:
            if row.get(column) is None:
                raise InvalidRequest(f"The scorer {self.name} needs the column {column!r}, which the row does not have")
        text, target = as_text(output)[:LONGEST_ANSWER], row.get(self.target)
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


def builtin(name: str, ref: str, value: Json) -> BuiltinScorer | str:
    """The scorer that an object describes; a text when it describes none, saying why.

    What others wrote in it is not read yet: `BuiltinScorer.problem` does.
    """
    class_name = value.get("_class_name") or value.get("_type")
    kind = KINDS.get(class_name) if isinstance(class_name, str) else None
    if kind is None or not isinstance(class_name, str):
        return f"{class_name or 'it'} is no built-in scorer"
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
    target = _target(value.get("column_map"))
    if target is None:
        return f"{class_name}.column_map maps something else than target to a column"
    return BuiltinScorer(name, ref, class_name, kind, settings, target)


def _is_base_code(score: Any) -> bool:
    """True without code, and for that of the SDK's base class, which an empty class of a program stores."""
    return score is None or (isinstance(score, str) and _BASE_CODE in score)


def _target(columns: Any) -> str | None:
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
