"""Scorers that run in the server: plain functions of the answer and the row, chosen by an object's class name.

A built-in scorer is an ordinary object with `_bases` `["Scorer", "Object", "BaseModel"]` and one of these class names.
Code that is stored with an object is never run.
"""

import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Json = dict[str, Any]
Ask = Callable[[Json], Awaitable[Json]]
"""Answers a chat completion request (without `stream`) with its `chat.completion`."""
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?|[-+]?\.\d+")
_LONGEST_ANSWER = 100_000
_OF_EVERY_SCORER = frozenset(("name", "description", "column_map", "summarize", "ref"))


class Scorer(Protocol):
    """Judges answers."""

    @property
    def name(self) -> str:
        """What it is called in the summary."""
        ...

    @property
    def needs(self) -> Sequence[str]:
        """The columns that every row must have."""
        ...

    async def score(self, output: str, row: Json, ask: Ask) -> Any:
        """The score of an answer: a number, a truth, or an object of these; raises HeddleError."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of built-in scorer: its settings with their defaults, whether rows need a target, and what it does."""

    settings: Mapping[str, Any]
    needs_target: bool
    score: Callable[[str, Any, Mapping[str, Any]], Json]
    """Of the answer, the target and the settings."""
    is_of_the_sdk: bool = False
    """True for a class of the SDK itself, whose objects name their own (equivalent) code."""


@dataclass(frozen=True, slots=True)
class BuiltinScorer:
    """One scorer of an evaluation."""

    name: str
    ref: str
    kind: Kind
    settings: Mapping[str, Any]
    target: str
    """The column of the row that holds the target."""

    @property
    def needs(self) -> Sequence[str]:
        """The column of the target, where there is one."""
        return [self.target] if self.kind.needs_target else []

    async def score(self, output: str, row: Json, _ask: Ask) -> Json:
        """The named scores of an answer."""
        return self.kind.score(output[:_LONGEST_ANSWER], row.get(self.target), self.settings)


def builtin(name: str, ref: str, value: Json) -> BuiltinScorer | str:
    """The scorer that an object describes; a text when it describes none, saying why."""
    class_name = value.get("_class_name") or value.get("_type")
    kind = KINDS.get(class_name) if isinstance(class_name, str) else None
    if kind is None:
        return f"{class_name or 'it'} is no built-in scorer"
    if value.get("score") is not None and not kind.is_of_the_sdk:
        return f"it has code of its own, and a {class_name} is built in"
    given = {key: item for key, item in value.items() if not key.startswith("_") and item is not None}
    given = {key: item for key, item in given.items() if key not in _OF_EVERY_SCORER and key != "score"}
    unknown = sorted(given.keys() - kind.settings.keys())
    if unknown:
        return f"{class_name} has no field {unknown[0]!r}"
    for key, item in given.items():
        if not _fits(item, kind.settings[key]):
            return f"{class_name}.{key} must be a {type(kind.settings[key]).__name__}"
    columns = value.get("column_map") or {}
    target = columns.get("target", "target") if isinstance(columns, dict) else "target"
    return BuiltinScorer(name, ref, kind, {**kind.settings, **given}, str(target))


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    return isinstance(value, type(default))


def number_of(value: Any) -> float | None:
    """The mean of the numbers and truths in a score; None when it holds none."""
    found = list(_leaves(value))
    return sum(found) / len(found) if found else None


def _leaves(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [float(value)] if isinstance(value, int | float) and math.isfinite(value) else []


def _text(value: Any, settings: Mapping[str, Any]) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = text.strip() if settings["strip"] else text
    return text.casefold() if settings["ignore_case"] else text


def _exact(output: str, target: Any, settings: Mapping[str, Any]) -> Json:
    wanted = target if isinstance(target, list) else [target]
    return {"exact_match": any(_text(output, settings) == _text(item, settings) for item in wanted)}


def _contains(output: str, target: Any, settings: Mapping[str, Any]) -> Json:
    wanted = target if isinstance(target, list) else [target]
    return {"contains": any(_text(item, settings) in _text(output, settings) for item in wanted)}


def _string_match(output: str, target: Any, _settings: Mapping[str, Any]) -> Json:
    return {"string_in_input": output.lower() in str(target).lower()}


def _number(output: str, target: Any, settings: Mapping[str, Any]) -> Json:
    said, wanted = _last_number(output), _last_number(target if isinstance(target, str) else json.dumps(target))
    is_equal = said is not None and wanted is not None and abs(said - wanted) <= settings["tolerance"]
    return {"number_match": is_equal}


def _last_number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def _valid_json(output: str, _target: Any, _settings: Mapping[str, Any]) -> Json:
    return {"json_valid": _parsed(output) is not _NOTHING}


def _json_match(output: str, target: Any, _settings: Mapping[str, Any]) -> Json:
    wanted = _parsed(target) if isinstance(target, str) else target
    return {"json_match": wanted is not _NOTHING and _same(_parsed(output), wanted)}


_NOTHING = object()


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOTHING


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON, where `true` is not 1."""
    return json.dumps(one, sort_keys=True, default=id) == json.dumps(other, sort_keys=True, default=id)


_TEXTS: Mapping[str, Any] = {"ignore_case": False, "strip": True}
KINDS: Mapping[str, Kind] = {
    "ExactMatchScorer": Kind(_TEXTS, True, _exact),
    "ContainsScorer": Kind(_TEXTS, True, _contains),
    "NumberMatchScorer": Kind({"tolerance": 1e-6}, True, _number),
    "JSONMatchScorer": Kind({}, True, _json_match),
    "ValidJSONScorer": Kind({}, False, _valid_json, is_of_the_sdk=True),
    "StringMatchScorer": Kind({}, True, _string_match, is_of_the_sdk=True),
}
"""The built-in scorers by class name; each score lies between 0 and 1, and more is better."""
