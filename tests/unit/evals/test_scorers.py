"""The built-in scorers, and which objects describe one."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import InvalidRequest
from heddle.evals import scorer_kinds
from heddle.evals.run import Summary
from heddle.evals.scorers import KINDS, BuiltinScorer, number_of, read_builtin

BASES = ["Scorer", "Object", "BaseModel"]


def scorer(class_name: str, **fields: Any) -> BuiltinScorer:
    """The scorer of a published object."""
    made = read_builtin("s", "ref", {"_type": class_name, "_class_name": class_name, "_bases": BASES, **fields})
    assert isinstance(made, BuiltinScorer), made
    return made


def said(class_name: str, output: str, target: Any = None, **fields: Any) -> Any:
    """The one value of a score."""
    made = scorer(class_name, **fields)
    value, *_ = made.measured(scored(made, output, {"target": target})).values()
    return value


def scored(made: BuiltinScorer, output: str, row: dict[str, Any]) -> Any:
    """What a scorer says; no model is asked."""

    async def ask(_body: dict[str, Any]) -> dict[str, Any]:
        raise AssertionError

    return asyncio.run(made.score(output, row, ask))


@pytest.mark.parametrize(
    ("class_name", "output", "target", "fields", "expected"),
    [
        ("ExactMatchScorer", " yes\n", "yes", {}, True),
        ("ExactMatchScorer", " yes", "yes", {"strip": False}, False),
        ("ExactMatchScorer", "Yes", "yes", {}, False),
        ("ExactMatchScorer", "Yes", "yes", {"ignore_case": True}, True),
        ("ExactMatchScorer", "no", ["yes", "no"], {}, True),
        ("ExactMatchScorer", "12", 12, {}, True),
        ("ContainsScorer", "I say yes.", "yes", {}, True),
        ("ContainsScorer", "I say no.", "yes", {}, False),
        ("NumberMatchScorer", "3 + 4 = 7", "7", {}, True),
        ("NumberMatchScorer", "It is 1,234.5 then", 1234.5, {}, True),
        ("NumberMatchScorer", "7.05", 7, {}, False),
        ("NumberMatchScorer", "7.05", 7, {"tolerance": 0.1}, True),
        ("NumberMatchScorer", "seven", 7, {}, False),
        ("NumberMatchScorer", "-5", 5, {}, False),
        ("JSONMatchScorer", '{"b": 1, "a": [true]}', {"a": [True], "b": 1}, {}, True),
        ("JSONMatchScorer", '{"a": [1]}', '{"a": [true]}', {}, False),
        ("JSONMatchScorer", "{", "{", {}, False),
        ("ValidJSONScorer", "[1, 2]", None, {}, True),
        ("ValidJSONScorer", "[1, 2", None, {}, False),
        ("StringMatchScorer", "Yes", "say yes", {}, True),
        ("StringMatchScorer", "no", "say yes", {}, False),
        ("NumberMatchScorer", "105", 100, {"relative_tolerance": 0.05}, True),
        ("NumberMatchScorer", "106", 100, {"relative_tolerance": 0.05}, False),
        ("RegexMatchScorer", "order 66", None, {"pattern": r"\d+"}, True),
        ("RegexMatchScorer", "order 66", None, {"pattern": r"\d+", "full_match": True}, False),
        ("RegexMatchScorer", "ORDER", None, {"pattern": "order", "ignore_case": True}, True),
        ("RegexMatchScorer", "ORDER", "order", {}, False),
        ("JSONSchemaScorer", '{"a": 1}', None, {"json_schema": {"required": ["a"]}}, True),
        ("JSONSchemaScorer", '{"a": 1}', None, {"json_schema": {"required": ["b"]}}, False),
        ("JSONSchemaScorer", "{", None, {"json_schema": {"type": "object"}}, False),
        ("JSONSchemaScorer", "3", {"type": "integer", "minimum": 3}, {}, True),
        ("JSONSchemaScorer", "2", '{"type": "integer", "minimum": 3}', {}, False),
        ("JSONSchemaScorer", "2", {"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, {}, True),
    ],
)
def test_a_scorer_says(class_name: str, output: str, target: Any, fields: dict[str, Any], expected: bool) -> None:
    assert said(class_name, output, target, **fields) is expected


@pytest.mark.parametrize(
    ("class_name", "output", "target", "fields", "expected"),
    [
        (
            "LevenshteinScorer",
            "kitten",
            "sitting",
            {},
            {"levenshtein_distance": 3, "levenshtein_similarity": 1 - 3 / 7},
        ),
        ("LevenshteinScorer", "", "", {}, {"levenshtein_distance": 0, "levenshtein_similarity": 1.0}),
        ("LevenshteinScorer", "A ", "a", {"strip": True}, {"levenshtein_distance": 1, "levenshtein_similarity": 0.0}),
        (
            "LevenshteinScorer",
            "A",
            "a",
            {"ignore_case": True},
            {"levenshtein_distance": 0, "levenshtein_similarity": 1},
        ),
        ("TextOverlapScorer", "the cat sat", "The cat.", {}, {"token_f1": 0.8, "rouge_l": 0.8}),
        ("TextOverlapScorer", "sat cat", "cat sat", {}, {"token_f1": 1.0, "rouge_l": 0.5}),
        ("TextOverlapScorer", "red", ["blue", "red"], {}, {"token_f1": 1.0, "rouge_l": 1.0}),
        ("TextOverlapScorer", "", "word", {}, {"token_f1": 0.0, "rouge_l": 0.0}),
    ],
)
def test_a_scorer_measures(class_name: str, output: str, target: Any, fields: dict[str, Any], expected: Any) -> None:
    assert scored(scorer(class_name, **fields), output, {"target": target}) == expected


def test_every_kind_is_tried_above() -> None:
    tests: list[Any] = [test_a_scorer_says, test_a_scorer_measures]
    marks = [mark for test in tests for mark in test.pytestmark]
    assert {case[0] for mark in marks for case in mark.args[1]} == set(KINDS)


@given(st.text("abc", max_size=40), st.text("abcd", max_size=40))
def test_distances_are_those_of_the_textbook(one: str, other: str) -> None:
    """Wagner and Fischer's tables."""
    distances, lengths = list(range(len(other) + 1)), [0] * (len(other) + 1)
    for row, left in enumerate(one, 1):
        next_distances, next_lengths = [row], [0]
        for column, right in enumerate(other):
            changed = distances[column] + (left != right)
            next_distances.append(min(distances[column + 1] + 1, next_distances[-1] + 1, changed))
            longer = lengths[column] + 1 if left == right else max(next_lengths[-1], lengths[column + 1])
            next_lengths.append(longer)
        distances, lengths = next_distances, next_lengths
    assert scorer_kinds.levenshtein(one, other) == distances[-1]
    assert scorer_kinds.common_subsequence(one, other) == lengths[-1]


@pytest.mark.parametrize(
    ("class_name", "target", "fields", "reason"),
    [
        ("RegexMatchScorer", None, {"pattern": "(a+)+$"}, "needs more than 2 s"),
        pytest.param(
            *("JSONSchemaScorer", None, {"json_schema": {"pattern": "(a+)+$"}}, "needs more than 2 s"),
            marks=pytest.mark.thorough,
        ),
        ("RegexMatchScorer", "(", {}, "the pattern is none"),
        ("RegexMatchScorer", 3, {}, "the target is not a pattern"),
        ("RegexMatchScorer", None, {}, "needs the column 'target'"),
        ("JSONSchemaScorer", {"$ref": "https://example.org/s.json"}, {}, "external schemas are not fetched"),
        ("JSONSchemaScorer", {"type": 3}, {}, "the schema is not valid"),
        ("JSONSchemaScorer", "{", {}, "the target is not a JSON schema"),
        ("JSONSchemaScorer", {"$ref": "#/nothing"}, {}, "cannot be followed"),
        ("JSONSchemaScorer", {"$ref": "#"}, {}, "cannot be followed"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_bounded_time(
    class_name: str, target: Any, fields: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        scored(scorer(class_name, **fields), '"' + "a" * 40 + '!"', {"target": target})


def test_long_texts_are_compared() -> None:
    long = "word and " * 2_000
    assert said("LevenshteinScorer", long, long[::-1]) < 1
    assert said("TextOverlapScorer", long, long) == 1.0


def test_the_column_map_names_the_target() -> None:
    made = scorer("ExactMatchScorer", column_map={"target": "answer"})
    assert scored(made, "7", {"answer": "7", "target": "8"}) == {"exact_match": True}
    assert made.needs == ["answer"] and scorer("ValidJSONScorer").needs == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"_class_name": "MyScorer"}, "MyScorer is not a built-in scorer"),
        ({}, "it is not a built-in scorer"),
        ({"_class_name": "ExactMatchScorer", "score": "weave:///e/p/op/f:1"}, "code of its own"),
        ({"_class_name": "ExactMatchScorer", "casefold": True}, "no field 'casefold'"),
        ({"_class_name": "ExactMatchScorer", "strip": "yes"}, "must be a bool"),
        ({"_class_name": "NumberMatchScorer", "tolerance": -1}, "must be a float"),
        ({"_class_name": "NumberMatchScorer", "tolerance": True}, "must be a float"),
        ({"_class_name": "RegexMatchScorer", "pattern": "("}, "the pattern is none"),
        ({"_class_name": "RegexMatchScorer", "pattern": "a" * 10_001}, "more than 10000"),
        (
            {"_class_name": "JSONSchemaScorer", "json_schema": {"$ref": "http://a/b"}},
            "external schemas are not fetched",
        ),
        ({"_class_name": "JSONSchemaScorer", "json_schema": {"type": "thing"}}, "the schema is not valid"),
        ({"_class_name": "JSONSchemaScorer", "json_schema": "{}"}, "must be a dict"),
        ({"_class_name": "ExactMatchScorer", "column_map": {"output": "x"}}, "column_map"),
        ({"_class_name": "ExactMatchScorer", "column_map": ["target"]}, "column_map"),
    ],
)
def test_other_objects_are_refused(value: dict[str, Any], reason: str) -> None:
    made = read_builtin("s", "ref", value)
    problem = asyncio.run(made.problem()) if isinstance(made, BuiltinScorer) else made
    assert problem is not None and reason in problem


def test_a_scorer_of_the_sdk_may_name_its_own_code() -> None:
    assert isinstance(
        read_builtin("s", "r", {"_class_name": "ValidJSONScorer", "score": "weave:///e/p/op/f:1"}), BuiltinScorer
    )


def test_an_empty_class_of_a_program_names_the_code_of_its_base() -> None:
    def made(score: str) -> BuiltinScorer | str:
        return read_builtin("s", "r", {"_class_name": "ExactMatchScorer", "score": score, "ignore_case": True})

    assert isinstance(made("weave-trace-internal:///p/op/Scorer.score:abc"), BuiltinScorer)
    assert "code of its own" in str(made("weave-trace-internal:///p/op/ExactMatchScorer.score:abc"))


def test_scores_are_numbers() -> None:
    assert number_of({"a": True, "b": {"c": 0.5}, "d": "text"}) == 0.75
    assert number_of({"a": "text"}) is None


def summarised(scores: list[dict[str, Any]], outputs: list[Any] | None = None) -> dict[str, Any]:
    """The summary of rows that took no time that is known."""
    summary = Summary(["s"])
    for place, score in enumerate(scores):
        summary.add(outputs[place] if outputs else None, score, None)
    return summary.result()


def test_summaries_are_those_of_the_sdk() -> None:
    scores = [{"s": {"hit": True, "size": 1}}, {"s": {"hit": False, "size": 2}}, {}]
    hit = {"true_count": 1, "true_fraction": 1 / 3}
    assert summarised(scores) == {"s": {"hit": hit, "size": {"mean": 1.5}}}, "a row without a score counts in fractions"
    assert summarised([{}]) == {}
    assert summarised([{"s": True}, {"s": None}]) == {"s": {"true_count": 1, "true_fraction": 1.0}}
    assert summarised([{"s": {"mean": 2}}, {"s": {"mean": 4}}]) == {"s": {"mean": 3.0}}
    assert summarised([{"s": "good"}]) == {}
    assert summarised([{"s": 1}, {"s": "x"}], [2, 4]) == {"output": {"mean": 3.0}, "s": {"mean": 1.0}}


def test_latencies_are_averaged() -> None:
    summary = Summary([])
    for seconds in (0.5, None, 1.5):
        summary.add("text", {}, seconds)
    assert summary.result() == {"model_latency": {"mean": 1.0}}
