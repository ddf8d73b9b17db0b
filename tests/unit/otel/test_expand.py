"""Dotted keys and JSON texts as a tree, and back."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.trace.otel.packing import cut, op_object_id
from heddle.trace.otel.span import expand, flatten, pick_path, restore_lists
from tests.support.selection import examples


@pytest.mark.parametrize(
    ("flat", "tree"),
    [
        ({"a.b.c": 1, "a.d": "x"}, {"a": {"b": {"c": 1}, "d": "x"}}),
        ({"a": '{"b": [1]}'}, {"a": {"b": [1]}}),
        ({"a": "[1", "b": "{x}", "c": " [1]"}, {"a": "[1", "b": "{x}", "c": " [1]"}),
        ({"a": '{"b": 1}', "a.c": 2}, {"a": {"b": 1, "c": 2}}),
        ({"a.c": 2, "a": '{"b": {"x": 1}, "c": 3}'}, {"a": {"b": {"x": 1}, "c": 3}}),
        ({"a": ["x", "y"], "a.1": "z"}, {"a": {"0": "x", "1": "z"}}),
        ({"a.0.k": 1, "a": '[{"j": 2}]'}, {"a": {"0": {"k": 1, "j": 2}}}),
        ({"a": None, "a.b": 1}, {"a": {"b": 1}}),
        ({"a.b": 1, "a": None}, {"a": {"b": 1}}),
        ({"": 1, "b.": 2}, {"": 1, "b": {"": 2}}),
        ({"n": '{"big": 123456789012345678901234567890}'}, {"n": {"big": 123456789012345678901234567890}}),
    ],
)
def test_trees(flat: dict[str, Any], tree: dict[str, Any]) -> None:
    assert expand(flat)[0] == tree


@pytest.mark.parametrize(
    ("flat", "tree"),
    [
        ({"a": 1, "a.b": 2}, {"a": {"b": 2, "_value": 1}}),
        ({"a": 1, "a.b": 2, "a.c.d": 3}, {"a": {"b": 2, "c": {"d": 3}, "_value": 1}}),
        ({"x.a.b.c": 1, "x.a.b": "s"}, {"x": {"a": {"b": {"c": 1, "_value": "s"}}}}),
        ({"x.a": False, "x.a.x.a": 2}, {"x": {"a": {"x": {"a": 2}, "_value": False}}}),
        ({"a": "", "a._value": 1, "a.__value": 2}, {"a": {"_value": 1, "__value": 2, "___value": ""}}),
        ({"a": 1, "a.b": 2, "a.b.c": 3}, {"a": {"b": {"c": 3, "_value": 2}, "_value": 1}}),
    ],
)
def test_a_value_beside_a_subtree_is_kept_in_it(flat: dict[str, Any], tree: dict[str, Any]) -> None:
    """In whichever order they come; and it is found again under its own key."""
    for order in permutations(flat.items()):
        found, texts = expand(dict(order))
        assert found == tree
        assert {key: str(value) for key, value in flatten(found, texts).items()} == {
            key: str(value) for key, value in flat.items()
        }


@pytest.mark.parametrize(
    ("flat", "tree"),
    [
        ({"a": '{"b": 1}', "a.b.c": 2}, {"a": {"b": {"c": 2, "_value": 1}}}),
        ({"a": '{"b": 1}', "a.b": '{"c": 2}'}, {"a": {"b": {"c": 2, "_value": 1}}}),
        ({"a": '{"b": [1]}', "a.b": 5}, {"a": {"b": {"0": 1, "_value": 5}}}),
        ({"a": [1], "a.b": 2}, {"a": {"0": 1, "b": 2}}),
        ({"a": '["one"]', "a.0.role": "user"}, {"a": {"0": {"role": "user", "_value": "one"}}}),
    ],
)
def test_structures_are_merged_and_a_value_in_them_is_kept_beside_a_subtree(
    flat: dict[str, Any], tree: dict[str, Any]
) -> None:
    for order in permutations(flat.items()):
        assert expand(dict(order))[0] == tree


def test_json_that_is_too_deep_stays_text_and_long_keys_stay_whole() -> None:
    deep, key = "[" * 150 + "]" * 150, ".".join("k" * 100)
    assert expand({"a": deep, key: 1}) == ({"a": deep, key: 1}, [])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"0": "a", "1": {"0": "b"}}, ["a", ["b"]]),
        ({"1": "a"}, {"1": "a"}),
        ({"0": "a", "2": "b"}, {"0": "a", "2": "b"}),
        ({"0": "a", "x": 1}, {"0": "a", "x": 1}),
        ({"00": "a"}, {"00": "a"}),
        ({}, {}),
        ({"m": {"10": 1, **{str(n): n for n in range(10)}}}, {"m": [*range(10), 1]}),
    ],
)
def test_indexed_dicts_become_lists(value: Any, expected: Any) -> None:
    before = repr(value)
    assert restore_lists(value) == expected and repr(value) == before


def test_pick() -> None:
    tree = {"a": {"b": [{"c": 1}]}, "n": 5}
    assert pick_path(tree, ("a", "b", "0", "c")) == 1
    for path in (("a", "x"), ("a", "b", "1"), ("a", "b", "-1"), ("a", "b", "²"), ("n", "x"), ("a", "b", "c")):
        assert pick_path(tree, path) is None


keys = st.lists(st.sampled_from(["a", "b", "c", "0", "1"]), min_size=1, max_size=4).map(".".join)
leaves = st.one_of(
    st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2), st.sampled_from(['{"k":1}'])
)


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(keys, leaves, max_size=6))
def test_flatten_undoes_expand(flat: dict[str, Any]) -> None:
    """Wherever no two structures were merged."""
    structures = [key for key, value in flat.items() if isinstance(value, list) or value == '{"k":1}']
    if any(other.startswith(key + ".") for key in structures for other in flat):
        return
    tree, texts = expand(dict(flat))
    assert flatten(tree, texts) == flat


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("chat gpt/4", "chat_gpt_4"),
        ("HTTP GET: /users?id=1", "http_get__usersid1"),
        ("Über-Größe.v1", "über-größe.v1"),
        ("!!!", "unknown"),
        ("", "unknown"),
        (".", "unknown"),
        ("?..", "unknown"),
        ("...", "..."),
        ("İx", "i̇x".replace("\u0307", "")),
        ("x" * 200, "x" * 123),
    ],
)
def test_op_names(name: str, op: str) -> None:
    found = op_object_id(name)
    assert found.startswith(op) and len(found) <= 128
    assert len(name) > 128 or found == op


def test_long_names_differ_by_their_end() -> None:
    first, second = ("step " * 30 + end for end in ("one", "two"))
    assert op_object_id(first) != op_object_id(second)
    assert op_object_id(first)[:-4] == op_object_id(second)[:-4]


def test_cut() -> None:
    assert cut("hello/world.txt", 10) == "hello..."
    assert cut("abcdefghijkl", 8) == "abcde..."
    assert cut("short", 8) == "short"
    assert cut("hello/world.txt again", 20, ":1234") == "hello/world:1234"
