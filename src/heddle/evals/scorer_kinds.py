"""The built-in kinds of scorers: plain functions of the answer, the target and the settings.

Each score lies between 0 and 1, and more is better, except for what a kind keeps out of its `measures`. As a program it
is the process in which patterns, schemas and long texts are worked on.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.ipc import json_schemas
from heddle.ipc.bounded import answer_jobs
from heddle.wire.jsontypes import Json

_WORD = re.compile(r"\w+")


def levenshtein(one: str, other: str) -> int:
    """The fewest insertions, deletions and substitutions of characters that make one text the other.

    Myers' bit-parallel algorithm in Hyyrö's form (G. Myers, J. ACM 46(3), 1999; H. Hyyrö, 2003).
    """
    if not one or not other:
        return len(one) or len(other)
    places: dict[str, int] = {}
    for index, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << index
    ones, last, distance = (1 << len(one)) - 1, 1 << len(one) - 1, len(one)
    up, down = ones, 0
    for character in other:
        match = places.get(character, 0)
        diagonal = (((match & up) + up) ^ up) | match | down
        right_up = down | ~(diagonal | up) & ones
        right_down = up & diagonal
        distance += bool(right_up & last) - bool(right_down & last)
        right_up = right_up << 1 | 1
        up = (right_down << 1 | ~(diagonal | right_up)) & ones
        down = right_up & diagonal & ones
    return distance


def split_words(text: str) -> list[str]:
    """The words of a text, without regard to case."""
    return _WORD.findall(text.casefold())


def token_f1(said: Sequence[str], wanted: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of words, each counted as often as it occurs.

    The measure of SQuAD (Rajpurkar et al., arXiv:1606.05250, section 6.1).
    """
    shared = (Counter(said) & Counter(wanted)).total()
    return _f1(shared, len(said), len(wanted))


def rouge_l(said: Sequence[str], wanted: Sequence[str]) -> float:
    """ROUGE-L with equal weights: the F-measure of the longest common subsequence of words (C.-Y. Lin, 2004)."""
    return _f1(common_subsequence(said, wanted), len(said), len(wanted))


def common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence (bit-parallel: H. Hyyrö, AWOCA 2004)."""
    places: dict[str, int] = {}
    for index, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << index
    ones = row = (1 << len(one)) - 1
    for word in other:
        matches = row & places.get(word, 0)
        row = ((row + matches) | (row - matches)) & ones
    return len(one) - row.bit_count()


def _f1(shared: int, said: int, wanted: int) -> float:
    if not said and not wanted:
        return 1.0
    return 2 * shared / (said + wanted)


Settings = Mapping[str, Any]
Scores = dict[str, float]
"""Numbers and truths by name."""
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
    score: Callable[[str, Any, Settings], Scores]
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


def _exact(output: str, target: Any, settings: Settings) -> Scores:
    wanted = target if isinstance(target, list) else [target]
    return {"exact_match": any(_text(output, settings) == _text(item, settings) for item in wanted)}


def _contains(output: str, target: Any, settings: Settings) -> Scores:
    wanted = target if isinstance(target, list) else [target]
    return {"contains": any(_text(item, settings) in _text(output, settings) for item in wanted)}


def _string_match(output: str, target: Any, _settings: Settings) -> Scores:
    return {"string_in_input": output.lower() in str(target).lower()}


def _number(output: str, target: Any, settings: Settings) -> Scores:
    said, wanted = _last_number(output), _last_number(target if isinstance(target, str) else json.dumps(target))
    if said is None or wanted is None:
        return {"number_match": False}
    allowed = max(settings["tolerance"], settings["relative_tolerance"] * abs(wanted))
    return {"number_match": abs(said - wanted) <= allowed}


def _last_number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def _valid_json(output: str, _target: Any, _settings: Settings) -> Scores:
    return {"json_valid": _parse_json(output) is not _NOTHING}


def _json_match(output: str, target: Any, _settings: Settings) -> Scores:
    wanted = _parse_json(target) if isinstance(target, str) else target
    return {"json_match": wanted is not _NOTHING and _equal_as_json(_parse_json(output), wanted)}


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOTHING


def _equal_as_json(one: Any, other: Any) -> bool:
    """Equal as JSON, where `true` is not 1."""
    return json.dumps(one, sort_keys=True, default=id) == json.dumps(other, sort_keys=True, default=id)


def _json_schema(output: str, target: Any, settings: Settings) -> Scores:
    schema = settings["json_schema"] or (_parse_json(target) if isinstance(target, str) else target)
    if not isinstance(schema, dict | bool):
        raise CannotScore("the target is not a JSON schema")
    problem = schema_problem(schema)
    if problem is not None:
        raise CannotScore(problem)
    value = _parse_json(output)
    if value is _NOTHING:
        return {"schema_valid": False}
    found = json_schemas.applied(value, schema)
    if "problem" in found:
        raise CannotScore(f"the schema is not valid: {found['problem']}")
    return {"schema_valid": found["valid"]}


def schema_problem(schema: Any) -> str | None:
    """What is wrong with a JSON schema, None when it can be used."""
    outside = sorted(_missing_documents(schema))
    if outside:
        return f"the schema refers to {outside[0][:200]!r}; external schemas are not fetched"
    problem = json_schemas.problem_of(schema)
    return None if problem is None else f"the schema is not valid: {problem}"


def _missing_documents(schema: Any) -> set[str]:
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


def _check_schema(settings: Settings) -> str | None:
    return schema_problem(settings["json_schema"]) if settings["json_schema"] else None


def _regex(output: str, target: Any, settings: Settings) -> Scores:
    pattern = settings["pattern"] or target
    if not isinstance(pattern, str):
        raise CannotScore("the target is not a pattern")
    problem = _check_pattern({"pattern": pattern})
    if problem is not None:
        raise CannotScore(problem)
    compiled = re.compile(pattern, re.IGNORECASE if settings["ignore_case"] else 0)
    found = compiled.fullmatch(output) if settings["full_match"] else compiled.search(output)
    return {"regex_match": found is not None}


def _check_pattern(settings: Settings) -> str | None:
    if len(settings["pattern"]) > LONGEST_PATTERN:
        return f"the pattern has more than {LONGEST_PATTERN} characters"
    try:
        re.compile(settings["pattern"])
    except (re.error, RecursionError, OverflowError) as error:
        return f"the pattern is none: {error}"
    return None


def _levenshtein(output: str, target: Any, settings: Settings) -> Scores:
    one, other = _text(output, settings), _text(target, settings)
    distance, longest = levenshtein(one, other), max(len(one), len(other))
    return {"levenshtein_distance": distance, "levenshtein_similarity": 1.0 - distance / longest if longest else 1.0}


def _overlap(output: str, target: Any, _settings: Settings) -> Scores:
    """The best of several targets, by token F1."""
    wanted = target if isinstance(target, list) else [target]
    said = split_words(output)
    scored = [_score_overlap(said, item) for item in wanted]
    return max(scored, key=lambda score: score["token_f1"], default={"token_f1": 0.0, "rouge_l": 0.0})


def _score_overlap(said: list[str], target: Any) -> Scores:
    wanted = split_words(target if isinstance(target, str) else json.dumps(target))
    return {"token_f1": token_f1(said, wanted), "rouge_l": rouge_l(said, wanted)}


_TEXTS: Settings = {"ignore_case": False, "strip": True}
_AS_THEY_ARE: Settings = {"ignore_case": False, "strip": False}
KINDS: Mapping[str, Kind] = {
    "ExactMatchScorer": Kind(_TEXTS, _exact),
    "ContainsScorer": Kind(_TEXTS, _contains),
    "NumberMatchScorer": Kind({"tolerance": 1e-6, "relative_tolerance": 0.0}, _number),
    "JSONMatchScorer": Kind({}, _json_match),
    "ValidJSONScorer": Kind({}, _valid_json, needs_target=False, is_of_the_sdk=True),
    "JSONSchemaScorer": Kind(
        {"json_schema": {}}, _json_schema, instead_of_target="json_schema", is_bounded=True, problem=_check_schema
    ),
    "RegexMatchScorer": Kind(
        {"pattern": "", "ignore_case": False, "full_match": False},
        _regex,
        instead_of_target="pattern",
        is_bounded=True,
        problem=_check_pattern,
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


def _answer_job(job: Json) -> Json:
    kind = KINDS[job["kind"]]
    try:
        if "output" not in job:
            return {"problem": kind.problem(job["settings"])}
        return {"score": kind.score(job["output"], job["target"], job["settings"])}
    except CannotScore as error:
        return {"error": str(error)}
    except (RecursionError, MemoryError):
        return {"error": "the work is too large"}


if __name__ == "__main__":
    answer_jobs(_answer_job)
