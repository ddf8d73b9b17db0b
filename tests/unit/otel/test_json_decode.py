"""OTLP's JSON is read as its binary form is; what is wrong is said with its place."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.errors import HeddleError, InvalidRequest, TooLarge
from heddle.trace.otel.signals import decode_spans
from tests.support.otlp import as_json, request, span
from tests.support.selection import examples

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)
attributes = st.dictionaries(st.text(max_size=10), values, max_size=5)


@settings(max_examples=examples(150), deadline=None)
@given(attributes, attributes, st.booleans())
def test_both_encodings_are_read_alike(first: dict[str, Any], second: dict[str, Any], snake: bool) -> None:
    message = request(span(1, parent=2, attributes=first, trace_state="a=b"), span(3), resource=second or {"a": 1})
    read = decode_spans(as_json(message, snake), is_json=True)
    assert repr(read) == repr(decode_spans(message.SerializeToString(), is_json=False))


def one_span(**fields: Any) -> bytes:
    """A body with one span."""
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [fields]}]}]}).encode()


def attribute(value: Any) -> bytes:
    """A body with one attribute `k`."""
    return one_span(attributes=[{"key": "k", "value": value}])


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"intValue": "-5"}, -5),
        ({"intValue": 7}, 7),
        ({"int_value": 7.0}, 7),
        ({"intValue": str(-(2**63))}, -(2**63)),
        ({"doubleValue": "NaN"}, "nan"),
        ({"doubleValue": "-Infinity"}, "-inf"),
        ({"doubleValue": "0.5"}, 0.5),
        ({"doubleValue": 3}, 3.0),
        ({"boolValue": False}, False),
        ({"stringValue": ""}, ""),
        ({"bytesValue": "_-8="}, "/+8="),
        ({"arrayValue": {}}, []),
        ({"kvlistValue": {"values": [{"key": "a"}]}}, {"a": None}),
        ({}, None),
        (None, None),
        ({"newValue": 1}, None),
    ],
)
def test_values(value: Any, read: Any) -> None:
    found = decode_spans(attribute(value), is_json=True)[0].items[0].attributes
    assert found == {"k": read} and type(found["k"]) is type(read)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"5", "the body: expected an object, got 5"),
        (b'{"resourceSpans": {}}', "resourceSpans: expected a list"),
        (b'{"resource_spans": [7]}', r"resourceSpans\[0\]: expected an object, got 7"),
        (b'{"resourceSpans":[{"resource":"x"}]}', r"resourceSpans\[0\].resource: expected an object"),
        (one_span(name=5), r"spans\[0\].name: expected text, got 5"),
        (one_span(traceId=5), r"spans\[0\].traceId: expected text"),
        (one_span(endTimeUnixNano="-1"), r"endTimeUnixNano: expected an integer from 0 to"),
        (one_span(endTimeUnixNano=1.5), r"endTimeUnixNano: expected an integer"),
        (one_span(startTimeUnixNano=str(2**64)), r"startTimeUnixNano: expected an integer"),
        (one_span(kind="CLIENT?"), r"kind: expected an integer or SPAN_KIND_CONSUMER"),
        (one_span(status={"code": True}), r"status.code: expected an integer"),
        (one_span(events=[{"timeUnixNano": "x"}]), r"spans\[0\].events\[0\].timeUnixNano"),
        (one_span(attributes={"a": 1}), r"spans\[0\].attributes: expected a list"),
        (one_span(attributes=[{"key": 1}]), r"attributes\[0\]: expected an object with `key`"),
        (attribute("text"), r"attributes\[0\].value: expected an object such as"),
        (attribute({"intValue": True}), r"value.intValue: expected a 64-bit integer, got True"),
        (attribute({"intValue": "1" * 30}), r"value.intValue: expected a 64-bit integer"),
        (attribute({"boolValue": "yes"}), r"value.boolValue: expected true or false"),
        (attribute({"doubleValue": "much"}), r"value.doubleValue: expected a number"),
        (attribute({"bytesValue": "?"}), r"value.bytesValue: expected base64"),
        (attribute({"arrayValue": [1]}), r"value.arrayValue: expected an object with a list"),
        (attribute({"arrayValue": {"values": [{"intValue": []}]}}), r"arrayValue.values\[0\].intValue"),
        (attribute({"kvlistValue": {"values": 3}}), r"kvlistValue.values: expected a list"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(body: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        decode_spans(body, is_json=True)


def test_values_nested_too_deep_are_refused() -> None:
    value: Any = {"intValue": 1}
    for _ in range(45):
        value = {"arrayValue": {"values": [value]}}
    with pytest.raises(InvalidRequest, match="nested deeper than"):
        decode_spans(attribute(value), is_json=True)


def test_names_of_kinds_and_ids_in_capitals() -> None:
    body = one_span(kind="SPAN_KIND_CLIENT", status={"code": "STATUS_CODE_ERROR"}, traceId="AB" * 16, spanId="Cd" * 8)
    (read,) = decode_spans(body, is_json=True)[0].items
    assert (read.kind, read.status_code, read.trace_id, read.span_id) == (3, 2, "ab" * 16, "cd" * 8)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["resourceSpans", "scopeSpans", "spans", "resource", "attributes", "key", "value", "kind", "status"]
                + ["stringValue", "arrayValue", "values", "events", "links", "traceId", "scope", "name"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)


@settings(max_examples=examples(200), deadline=None)
@given(json_values)
def test_any_json_is_read_or_refused(value: Any) -> None:
    try:
        body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [value]}]}, value]})
        decode_spans(body.encode(), is_json=True)
    except HeddleError as error:
        assert 400 <= error.status < 500


@pytest.mark.parametrize("name", ["resourceSpans", "scopeSpans", "spans", "events", "links"])
def test_too_many_parts_are_refused(name: str) -> None:
    """Empty parts would fill the memory."""
    many: Any = [{}] * 200_001
    event = {name: many} if name in ("events", "links") else {}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": many if name == "spans" else [event]}]}]}
    if name == "scopeSpans":
        body["resourceSpans"][0]["scopeSpans"] = many
    with pytest.raises(TooLarge, match=r"over 200000 .* in one export"):
        whole = json.dumps({"resourceSpans": many} if name == "resourceSpans" else body)
        decode_spans(whole.encode(), is_json=True)
