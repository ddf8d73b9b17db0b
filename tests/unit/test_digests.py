"""Digests: the contract's vectors, and what must hold for every value."""

import base64
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.auth import LOCAL
from heddle.errors import Conflict
from heddle.http.routing import parse_body
from heddle.trace.objects import ObjCreateReq, prepare
from heddle.trace.tables import pack_rows
from heddle.wire import refs

NAN = float("nan")
OBJECTS = [
    ({}, "RBNvo1WzZ4oRRq0W9XhknpT7T8If536DEMBg9hyqY4o"),
    ({"a": 1}, "XdhgKMbg1k4iUYb5astpM4ssWXZN95FiEH9cS7NNExA"),
    ({"b": "é", "a": 1.0}, "70oexjVEw9Qc6XcdYAeoDosEja6ERUVCdevMlkwdSWU"),
    ("x", "ui30kDosFOhtw7zKWJEbRKwdJRS3Inv26wjPuXj1Whs"),
    (None, "dCNOmKYnSYX12vHzasLXiswzlGT5UHA7jAGYkvmCuQs"),
    ([1, 2], "OjFtbTImXEweRuREf6jVYYALY0obxkmBUlI81KYCtps"),
    ({"x": NAN}, "uqsGi7XF3fYucFBi68rCK1uOWLdjSlYEislB05aDScI"),
]
ROWS: list[dict[str, Any]] = [{"b": 2, "a": 1}, {"a": 2}]

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


def create(value: Any, **more: Any) -> Any:
    """What a client's /obj/create of the value would store."""
    body = {"obj": {"project_id": "e/p", "object_id": "o", "val": value, **more}}
    parsed = parse_body(json.dumps(body).encode(), LOCAL, keep_non_finite=True)
    return prepare(ObjCreateReq.model_validate(parsed).obj, LOCAL.open, "me")


@pytest.mark.parametrize(("value", "digest"), OBJECTS)
def test_object_vectors(value: Any, digest: str) -> None:
    assert create(value).digest == digest
    assert create(value, expected_digest=digest).digest == digest


def test_another_digest_is_a_conflict() -> None:
    with pytest.raises(Conflict) as refused:
        create({"a": 1}, expected_digest=OBJECTS[0][1])
    assert refused.value.headers == {"x-should-retry": "false"}


def test_table_and_file_vectors() -> None:
    order, texts = pack_rows(ROWS)
    assert order[0] == "2El9nYJ3CnBykmEJWqmPfvUVTXr0mfgDe2yiUClnhaY"
    assert texts[order[0]] == '{"b":2,"a":1}', "rows keep the order of their keys"
    assert refs.table_digest(order) == "d4ee9285e4132429e174c2b3c429620ee1a1faa58461107b0afe21ba850fbe24"
    assert refs.table_digest([]) == hashlib.sha256(b"").hexdigest()
    assert refs.bytes_digest(b"hello") == "LPJNulXwow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ"
    assert refs.bytes_digest(b"") == "47DEQpj8HBSaXYTImWX5JCeuQeRkm5NMpJWZG3hSuFU"


@given(values)
def test_every_value_has_the_digest_that_a_client_computes(value: Any) -> None:
    raw = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    expected = base64.b64encode(raw).decode().translate(str.maketrans("+/", "XY")).rstrip("=")
    assert create(value).digest == expected
    assert refs.looks_like_digest(expected)


@given(values)
def test_what_is_stored_is_the_value_with_sorted_keys_and_null_for_what_json_has_not(value: Any) -> None:
    stored = create(value).val
    loaded = json.loads(stored)
    assert loaded == json.loads(json.dumps(value), parse_constant=lambda _: None)
    assert json.dumps(loaded) == json.dumps(loaded, sort_keys=True)


@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), scalars, max_size=6), st.randoms()
)
def test_the_order_of_keys_does_not_matter(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert refs.value_digest(dict(items)) == refs.value_digest(value)


def test_a_large_value_has_the_same_digest() -> None:
    value = {"z": [{"b": n, "a": "é"} for n in range(6_000)], "a": {str(n): n for n in range(6_000)}}
    assert refs.large_canonical_json(value) == json.dumps(value, sort_keys=True)
    assert refs.value_digest(value, is_large=True) == refs.value_digest(value)


@given(st.lists(st.text("abc", min_size=1), max_size=10))
def test_a_table_is_hashed_row_by_row(row_digests: list[str]) -> None:
    assert refs.table_digest(row_digests) == hashlib.sha256("".join(row_digests).encode()).hexdigest()


def test_refs_are_hashed_in_internal_form() -> None:
    internal = refs.object_ref(refs.internal_project("e/p"), "object", "o", "d")
    assert create({"r": "weave:///e/p/object/o:d"}).digest == refs.value_digest({"r": internal})


@pytest.mark.parametrize("text", ["latest", "v3", "", "a" * 42, "a" * 44, "A" * 64, "-" * 43, "é" * 43])
def test_no_digest(text: str) -> None:
    assert not refs.looks_like_digest(text)


@pytest.mark.parametrize(
    ("text", "number"), [("v0", 0), ("v12", 12), ("v", None), ("v-1", None), ("1", None), ("v1x", None)]
)
def test_version_numbers(text: str, number: int | None) -> None:
    assert refs.version_number(text) == number
