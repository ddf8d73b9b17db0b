"""The built-in kinds of scorers: plain functions of the answer, the target and the settings.

Each score lies between 0 and 1, and more is better, except for what a kind keeps out of its `measures`.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from heddle import json_schemas
from heddle.evals.scorers import texts
from heddle.wire.jsontypes import Json

Settings = Mapping[str, Any]
LONGEST_PATTERN = 10_000
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d{1,3})?|[-+]?\.\d+")
_NOTHING = object()


class CannotScore(Exception):
    """The target of a row cannot be used; the text says why."""


def _nothing_wrong(_settings: Settings) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of built-in scorer."""

    settings: Settings
    """The settings with their defaults; an empty pattern or schema is that of the row's target."""
    score: Callable[[str, Any, Settings], Json]
    """Of the answer, the target and the settings; raises CannotScore."""
    needs_target: bool = True
    instead_of_target: str | None = None
    """The setting that makes a target unnecessary."""
    is_bounded: bool = False
    """True where the work depends on what others wrote: it is done in a process that may die of it."""
    is_of_the_sdk: bool = False
    """True for a class of the SDK itself, whose objects name their own (equivalent) code."""
    ignored: frozenset[str] = frozenset()
    """Fields of the SDK's class that are code and not settings."""
    measures: tuple[str, ...] = ()
    """What of the score says how good it is; empty: all of it."""
    problem: Callable[[Settings], str | None] = _nothing_wrong
    """What is wrong with settings of the right types."""


def _text(value: Any, settings: Settings) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    text = text.strip() if settings["strip"] else text
    return text.casefold() if settings["ignore_case"] else text


def _exact(output: str, target: Any, settings: Settings) -> Json:
    wanted = target if isinstance(target, list) else [target]
    return {"exact_match": any(_text(output, settings) == _text(item, settings) for item in wanted)}


def _contains(output: str, target: Any, settings: Settings) -> Json:
    wanted = target if isinstance(target, list) else [target]
    return {"contains": any(_text(item, settings) in _text(output, settings) for item in wanted)}


def _string_match(output: str, target: Any, _settings: Settings) -> Json:
    return {"string_in_input": output.lower() in str(target).lower()}


def _number(output: str, target: Any, settings: Settings) -> Json:
    said, wanted = _last_number(output), _last_number(target if isinstance(target, str) else json.dumps(target))
    if said is None or wanted is None:
        return {"number_match": False}
    allowed = max(settings["tolerance"], settings["relative_tolerance"] * abs(wanted))
    return {"number_match": abs(said - wanted) <= allowed}


def _last_number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def _valid_json(output: str, _target: Any, _settings: Settings) -> Json:
    return {"json_valid": _parsed(output) is not _NOTHING}


def _json_match(output: str, target: Any, _settings: Settings) -> Json:
    wanted = _parsed(target) if isinstance(target, str) else target
    return {"json_match": wanted is not _NOTHING and _same(_parsed(output), wanted)}


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOTHING


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON, where `true` is not 1."""
    return json.dumps(one, sort_keys=True, default=id) == json.dumps(other, sort_keys=True, default=id)


def _json_schema(output: str, target: Any, settings: Settings) -> Json:
    schema = settings["json_schema"] or (_parsed(target) if isinstance(target, str) else target)
    if not isinstance(schema, dict | bool):
        raise CannotScore("the target is no JSON schema")
    problem = schema_problem(schema)
    if problem is not None:
        raise CannotScore(problem)
    value = _parsed(output)
    if value is _NOTHING:
        return {"schema_valid": False}
    found = json_schemas.applied(value, schema)
    if "problem" in found:
        raise CannotScore(f"the schema is none: {found['problem']}")
    return {"schema_valid": found["valid"]}


def schema_problem(schema: Any) -> str | None:
    """What is wrong with a JSON schema, None when it can be used."""
    outside = sorted(_outside(schema))
    if outside:
        return f"the schema refers to {outside[0][:200]!r}, and nothing is fetched"
    problem = json_schemas.problem_of(schema)
    return None if problem is None else f"the schema is none: {problem}"


def _outside(schema: Any) -> set[str]:
    """The documents that a schema refers to and does not hold itself."""
    named, held, waiting = set[str](), set[str](), [schema]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            held |= {item["$id"].rstrip("#")} if isinstance(item.get("$id"), str) else set()
            said = [item[key] for key in ("$ref", "$dynamicRef") if isinstance(item.get(key), str)]
            named |= {text.partition("#")[0] for text in said}
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return {name for name in named if name and not any(known.endswith(name) for known in held)}


def _schema_settings(settings: Settings) -> str | None:
    return schema_problem(settings["json_schema"]) if settings["json_schema"] else None


def _regex(output: str, target: Any, settings: Settings) -> Json:
    pattern = settings["pattern"] or target
    if not isinstance(pattern, str):
        raise CannotScore("the target is no pattern")
    problem = _pattern_settings({"pattern": pattern})
    if problem is not None:
        raise CannotScore(problem)
    compiled = re.compile(pattern, re.IGNORECASE if settings["ignore_case"] else 0)
    found = compiled.fullmatch(output) if settings["full_match"] else compiled.search(output)
    return {"regex_match": found is not None}


def _pattern_settings(settings: Settings) -> str | None:
    if len(settings["pattern"]) > LONGEST_PATTERN:
        return f"the pattern has more than {LONGEST_PATTERN} characters"
    try:
        re.compile(settings["pattern"])
    except (re.error, RecursionError, OverflowError) as error:
        return f"the pattern is none: {error}"
    return None


def _levenshtein(output: str, target: Any, settings: Settings) -> Json:
    one, other = _text(output, settings), _text(target, settings)
    distance, longest = texts.levenshtein(one, other), max(len(one), len(other))
    return {
        "levenshtein_distance": distance,
        "levenshtein_similarity": 1.0 - distance / longest if longest else 1.0,
    }


def _overlap(output: str, target: Any, _settings: Settings) -> Json:
    """The best of several targets, by token F1."""
    wanted = target if isinstance(target, list) else [target]
    said = texts.words(output)
    scored = [_overlap_with(said, item) for item in wanted]
    return max(scored, key=lambda score: score["token_f1"], default={"token_f1": 0.0, "rouge_l": 0.0})


def _overlap_with(said: list[str], target: Any) -> dict[str, float]:
    wanted = texts.words(target if isinstance(target, str) else json.dumps(target))
    return {"token_f1": texts.token_f1(said, wanted), "rouge_l": texts.rouge_l(said, wanted)}


_TEXTS: Settings = {"ignore_case": False, "strip": True}
_AS_THEY_ARE: Settings = {"ignore_case": False, "strip": False}
KINDS: Mapping[str, Kind] = {
    "ExactMatchScorer": Kind(_TEXTS, _exact),
    "ContainsScorer": Kind(_TEXTS, _contains),
    "NumberMatchScorer": Kind({"tolerance": 1e-6, "relative_tolerance": 0.0}, _number),
    "JSONMatchScorer": Kind({}, _json_match),
    "ValidJSONScorer": Kind({}, _valid_json, needs_target=False, is_of_the_sdk=True),
    "JSONSchemaScorer": Kind(
        {"json_schema": {}},
        _json_schema,
        instead_of_target="json_schema",
        is_bounded=True,
        problem=_schema_settings,
    ),
    "RegexMatchScorer": Kind(
        {"pattern": "", "ignore_case": False, "full_match": False},
        _regex,
        instead_of_target="pattern",
        is_bounded=True,
        problem=_pattern_settings,
    ),
    "StringMatchScorer": Kind({}, _string_match, is_of_the_sdk=True),
    "LevenshteinScorer": Kind(
        _AS_THEY_ARE,
        _levenshtein,
        is_bounded=True,
        is_of_the_sdk=True,
        ignored=frozenset(("distance",)),
        measures=("levenshtein_similarity",),
    ),
    "TextOverlapScorer": Kind({}, _overlap, is_bounded=True),
}
"""By class name."""
