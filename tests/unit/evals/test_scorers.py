"""The built-in scorers, and which objects describe one."""

import asyncio
from typing import Any

import pytest

from heddle.evals.scorers import KINDS, BuiltinScorer, builtin, number_of
from heddle.evals.summary import summarise

BASES = ["Scorer", "Object", "BaseModel"]


def scorer(class_name: str, **fields: Any) -> BuiltinScorer:
    """The scorer of a published object."""
    made = builtin("s", "ref", {"_type": class_name, "_class_name": class_name, "_bases": BASES, **fields})
    assert isinstance(made, BuiltinScorer), made
    return made


def said(class_name: str, output: str, target: Any = None, **fields: Any) -> Any:
    """The one value of a score."""
    (value,) = scored(scorer(class_name, **fields), output, {"target": target}).values()
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
    ],
)
def test_a_scorer_says(class_name: str, output: str, target: Any, fields: dict[str, Any], expected: bool) -> None:
    assert said(class_name, output, target, **fields) is expected


def test_every_kind_is_tried_above() -> None:
    marks = test_a_scorer_says.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for mark in marks for case in mark.args[1]} == set(KINDS)


def test_the_column_map_names_the_target() -> None:
    made = scorer("ExactMatchScorer", column_map={"target": "answer"})
    assert scored(made, "7", {"answer": "7", "target": "8"}) == {"exact_match": True}
    assert made.needs == ["answer"] and scorer("ValidJSONScorer").needs == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"_class_name": "MyScorer"}, "MyScorer is no built-in scorer"),
        ({}, "it is no built-in scorer"),
        ({"_class_name": "ExactMatchScorer", "score": "weave:///e/p/op/f:1"}, "code of its own"),
        ({"_class_name": "ExactMatchScorer", "casefold": True}, "no field 'casefold'"),
        ({"_class_name": "ExactMatchScorer", "strip": "yes"}, "must be a bool"),
        ({"_class_name": "NumberMatchScorer", "tolerance": -1}, "must be a float"),
        ({"_class_name": "NumberMatchScorer", "tolerance": True}, "must be a float"),
    ],
)
def test_other_objects_are_refused(value: dict[str, Any], reason: str) -> None:
    made = builtin("s", "ref", value)
    assert isinstance(made, str) and reason in made


def test_a_scorer_of_the_sdk_may_name_its_own_code() -> None:
    assert isinstance(
        builtin("s", "r", {"_class_name": "ValidJSONScorer", "score": "weave:///e/p/op/f:1"}), BuiltinScorer
    )


def test_scores_are_numbers() -> None:
    assert number_of({"a": True, "b": {"c": 0.5}, "d": "text"}) == 0.75
    assert number_of({"a": "text"}) is None


def test_summaries_are_those_of_the_sdk() -> None:
    scores = [{"s": {"hit": True, "size": 1}}, {"s": {"hit": False, "size": 2}}, {}]
    assert summarise(scores, [0.5, 1.5]) == {
        "s": {"hit": {"true_count": 1, "true_fraction": 0.5}, "size": {"mean": 1.5}},
        "model_latency": {"mean": 1.0},
    }
    assert summarise([{}], []) == {}
