"""The reader of OTLP's binary encoding, held against the real `opentelemetry-proto` package."""

import base64
import math
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from heddle.errors import HeddleError, InvalidRequest, TooLarge, Unavailable
from heddle.trace.otel.signals import decode_spans
from heddle.wire.otlp import (
    MAX_DEPTH,
    MAX_GROUPS,
    any_value,
    attribute,
    decode_partial_success,
    decode_status,
    encode_partial_success,
    encode_status,
    varint_bytes,
    write,
)
from tests.support.selection import examples

texts = st.text(max_size=200)
int64 = st.integers(-(2**63), 2**63 - 1)
uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
values = st.recursive(
    st.one_of(
        st.builds(AnyValue),
        st.builds(AnyValue, string_value=texts),
        st.builds(AnyValue, bool_value=st.booleans()),
        st.builds(AnyValue, int_value=int64),
        st.builds(AnyValue, double_value=st.floats()),
        st.builds(AnyValue, bytes_value=st.binary(max_size=200)),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: AnyValue(array_value={"values": items})),
        st.lists(st.builds(KeyValue, key=texts, value=inner), max_size=4).map(
            lambda items: AnyValue(kvlist_value={"values": items})
        ),
    ),
    max_leaves=8,
)
attributes = st.lists(st.builds(KeyValue, key=texts, value=values), max_size=5, unique_by=lambda item: item.key)
events = st.fixed_dictionaries(
    {"time_unix_nano": uint64, "name": texts, "attributes": attributes, "dropped_attributes_count": uint32}
)
links = st.fixed_dictionaries(
    {
        "trace_id": st.binary(max_size=16),
        "span_id": st.binary(max_size=8),
        "trace_state": texts,
        "attributes": attributes,
        "dropped_attributes_count": uint32,
        "flags": uint32,
    }
)
spans = st.fixed_dictionaries(
    {
        "trace_id": st.binary(max_size=16),
        "span_id": st.binary(max_size=8),
        "parent_span_id": st.binary(max_size=8),
        "trace_state": texts,
        "name": texts,
        "kind": st.integers(0, 7),
        "start_time_unix_nano": uint64,
        "end_time_unix_nano": uint64,
        "attributes": attributes,
        "dropped_attributes_count": uint32,
        "events": st.lists(events, max_size=2),
        "dropped_events_count": uint32,
        "links": st.lists(links, max_size=2),
        "status": st.fixed_dictionaries({"message": texts, "code": st.integers(0, 3)}),
        "flags": uint32,
    }
)
requests = st.lists(
    st.fixed_dictionaries(
        {
            "resource": st.fixed_dictionaries({"attributes": attributes, "dropped_attributes_count": uint32}),
            "scope_spans": st.lists(
                st.fixed_dictionaries(
                    {
                        "scope": st.fixed_dictionaries({"name": texts, "version": texts, "attributes": attributes}),
                        "spans": st.lists(spans, max_size=3),
                        "schema_url": texts,
                    }
                ),
                max_size=2,
            ),
            "schema_url": texts,
        }
    ),
    max_size=2,
).map(lambda groups: ExportTraceServiceRequest(resource_spans=groups))


def plain(value: AnyValue) -> Any:
    """What the value means, as our reader says it."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    held = getattr(value, kind)
    if kind == "array_value":
        return [plain(item) for item in held.values]
    if kind == "kvlist_value":
        return flat(held.values)
    if kind == "bytes_value":
        return base64.b64encode(held).decode()
    if kind == "double_value" and not math.isfinite(held):
        return str(held)
    return held


def flat(pairs: Any) -> dict[str, Any]:
    """Attributes as a dict."""
    return {pair.key: plain(pair.value) for pair in pairs}


def sized(tag: bytes, content: bytes) -> bytes:
    """A field of bytes."""
    return tag + varint_bytes(len(content)) + content


def expected(message: ExportTraceServiceRequest) -> list[Any]:
    """The whole message by the package's own reader; our reader leaves resources without spans out."""
    return [
        (
            flat(group.resource.attributes),
            group.resource.dropped_attributes_count,
            [
                (
                    (span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.trace_state),
                    (span.start_time_unix_nano, span.end_time_unix_nano, span.kind),
                    list(flat(span.attributes).items()),
                    (span.status.code, span.status.message),
                    [(e.name, e.time_unix_nano, flat(e.attributes), e.dropped_attributes_count) for e in span.events],
                    [
                        (
                            *(link.trace_id.hex(), link.span_id.hex(), link.trace_state, flat(link.attributes)),
                            *(link.dropped_attributes_count, link.flags),
                        )
                        for link in span.links
                    ],
                    (scope.scope.name, scope.scope.version),
                )
                for scope in group.scope_spans
                for span in scope.spans
            ],
        )
        for group in message.resource_spans
        if any(scope.spans for scope in group.scope_spans)
    ]


def found(data: bytes) -> list[Any]:
    """The whole message by our reader."""
    return [
        (
            group.resource.attributes,
            group.resource.dropped,
            [
                (
                    (span.name, span.trace_id, span.span_id, span.parent_id, span.trace_state),
                    (span.start, span.end, span.kind),
                    list(span.attributes.items()),
                    (span.status_code, span.status_message),
                    [(event.name, event.time, event.attributes, event.dropped_attributes) for event in span.events],
                    [
                        (
                            *(link.trace_id, link.span_id, link.trace_state, link.attributes),
                            *(link.dropped_attributes, link.flags),
                        )
                        for link in span.links
                    ],
                    (span.scope, span.scope_version),
                )
                for span in group.items
            ],
        )
        for group in decode_spans(data, is_json=False)
    ]


@settings(max_examples=examples(120), deadline=None)
@given(requests)
def test_reads_what_the_package_writes(message: ExportTraceServiceRequest) -> None:
    assert found(message.SerializeToString()) == expected(message)


@pytest.mark.thorough
@settings(max_examples=examples(200), deadline=None)
@given(requests, st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=3), st.integers(0, 40))
def test_damaged_bytes_are_refused_or_read_alike(
    message: ExportTraceServiceRequest, changes: list[tuple[int, int]], cut: int
) -> None:
    """Never an error of another kind, and nothing is read differently from the package."""
    data = bytearray(message.SerializeToString())
    for place, byte in changes:
        if data:
            data[place % len(data)] = byte
    damaged = bytes(data[: len(data) - cut] if cut < len(data) else data)
    try:
        ours = found(damaged)
    except InvalidRequest:
        return
    try:
        theirs = expected(ExportTraceServiceRequest.FromString(damaged))
    except DecodeError:
        return  # the package looks into fields that we pass over
    assert repr(ours) == repr(theirs)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300))
def test_noise_is_refused_or_read(data: bytes) -> None:
    try:
        decode_spans(data, is_json=False)
    except InvalidRequest as error:
        assert error.reason.startswith("The body is not a valid ExportTraceServiceRequest")


@pytest.mark.thorough
@given(requests, requests)
@settings(max_examples=40, deadline=None)
def test_unknown_fields_are_passed_over(message: ExportTraceServiceRequest, other: ExportTraceServiceRequest) -> None:
    """Fields of every wire type that the messages do not have, groups included."""
    unknown = b"\xa0\x06\x96\x01" + b"\xa9\x06" + b"8" * 8 + b"\xb5\x06" + b"4444" + b"\xc2\x06\x03abc"
    group = b"\xd3\x06\x08\x01\x12\x02ab\xd4\x06"
    data = unknown + message.SerializeToString() + group + other.SerializeToString()
    assert found(data) == expected(message) + expected(other)


def wrapped(value: bytes) -> bytes:
    """A request with one span that has one attribute `k` of this encoded AnyValue."""

    def field(tag: int, content: bytes) -> bytes:
        return bytes([tag]) + varint_bytes(len(content)) + content

    pair = field(0x0A, b"k") + field(0x12, value)
    return field(0x0A, field(0x12, field(0x12, field(0x4A, pair))))


def test_fields_in_another_order_and_repeated_ones() -> None:
    """The value before the key; of two kinds in one value the later counts; a list in two parts is one list."""
    both = b"\x18\x05\x0a\x03abc"
    assert decode_spans(wrapped(both), is_json=False)[0].items[0].attributes == {"k": "abc"}
    parts = b"\x2a\x04\x0a\x02\x18\x01" + b"\x2a\x04\x0a\x02\x18\x02"
    assert decode_spans(wrapped(parts), is_json=False)[0].items[0].attributes == {"k": [1, 2]}
    reverse = b"\x12\x02\x18\x07\x0a\x01k"
    data = b"\x0a\x0d\x12\x0b\x12\x09\x4a\x07" + reverse
    assert decode_spans(data, is_json=False)[0].items[0].attributes == {"k": 7}


def test_values_nested_too_deep_are_refused() -> None:
    value = AnyValue(int_value=1)
    for _ in range(MAX_DEPTH):
        value = AnyValue(array_value={"values": [value]})
    assert found(wrapped(value.SerializeToString())) == expected(
        ExportTraceServiceRequest.FromString(wrapped(value.SerializeToString()))
    )
    deeper = AnyValue(array_value={"values": [value]}).SerializeToString()
    with pytest.raises(InvalidRequest, match="nested deeper than 40"):
        decode_spans(wrapped(deeper), is_json=False)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a", "is truncated within a field"),
        (b"\x0a\x05ab", "longer than the message that contains it"),
        (b"\x0f", "wire type 7"),
        (b"\x00\x01", "field number"),
        (b"\x08" + b"\xff" * 11, "longer than 10 bytes"),
        (b"\x0a\x02\x12\x09", "longer than the message that contains it"),
        (b"\xd3\x06\x08\x01", "is truncated within a field"),
        (b"\xd3\x06\xe4\x06", "a group ends that was never started"),
        (b"\xd3\x06" * (MAX_GROUPS + 1) + b"\xd4\x06" * (MAX_GROUPS + 1), "is nested too deeply"),
        (wrapped(b"\x0a\x02\xff\xfe"), "not UTF-8"),
    ],
)
def test_malformed_bytes_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        decode_spans(data, is_json=False)


def test_groups_within_groups_are_passed_over() -> None:
    groups = b"\xd3\x06" * MAX_GROUPS + b"\x08\x01" + b"\xd4\x06" * MAX_GROUPS
    assert decode_spans(groups, is_json=False) == decode_spans(b"", is_json=False)


@pytest.mark.parametrize(
    "value",
    [
        AnyValue(string_value="ä" * 200),
        AnyValue(bool_value=True),
        AnyValue(int_value=-5),
        AnyValue(double_value=-0.5),
        AnyValue(double_value=math.inf),
        AnyValue(bytes_value=b"\x00\xff"),
        AnyValue(array_value={"values": [AnyValue(int_value=1), AnyValue()]}),
        AnyValue(kvlist_value={"values": [KeyValue(key="k", value=AnyValue(bool_value=False))]}),
    ],
)
def test_a_value_is_the_same_behind_one_of_another_kind_and_an_unknown_field(value: AnyValue) -> None:
    """Of several kinds the last one counts, and what has another wire type than its number stands for is no kind."""
    plain = value.SerializeToString()
    wanted = any_value(plain, 0, len(plain), 0)
    others = AnyValue(string_value="before").SerializeToString() + b"\x08\x07" + write(99, "unknown")
    data = others + plain + write(99, 1.5)
    read = AnyValue.FromString(data)
    assert read.WhichOneof("value") == value.WhichOneof("value")
    assert any_value(data, 0, len(data), 0) == wanted
    entry = write(7, "unknown") + write(2, plain) + write(1, "key")
    assert attribute(entry, 0, len(entry)) == ("key", wanted)
    entry = write(1, "key") + write(2, plain) + write(7, "unknown")
    assert attribute(entry, 0, len(entry)) == ("key", wanted)


class Status(HeddleError):
    """A failure of any status."""


@pytest.mark.parametrize(
    ("status", "code"), [(400, 3), (401, 16), (404, 5), (413, 8), (429, 8), (503, 14), (418, 13), (500, 13)]
)
def test_the_status_of_a_failure_says_its_code_and_reason(status: int, code: int) -> None:
    error = Status("größer")
    error.status = status
    data = encode_status(error)
    assert data[:2] == b"\x08" + bytes([code]) and decode_status(data) == "größer"
    assert decode_status(b"") == ""


def test_the_status_says_when_to_try_again() -> None:
    data = encode_status(Unavailable("busy", retry_after=7))
    assert data.endswith(write(2, write(1, write(1, 7)))) and b"google.rpc.RetryInfo" in data
    assert b"RetryInfo" not in encode_status(InvalidRequest("bad"))


def test_an_answer_that_is_none_rejects_nothing() -> None:
    assert decode_partial_success(encode_partial_success(3, "no")) == (3, "no")
    assert decode_partial_success(write(1, write(1, 3) + write(3, "later")) + write(2, "other")) == (3, "")
    for data in (b"", b"\x0a", b"\x0a\x05ab", b"<html>"):
        assert decode_partial_success(data) == (0, "")


@given(st.integers(1, 2**40), texts)
def test_the_answer_is_what_the_package_reads(rejected: int, message: str) -> None:
    read = ExportTraceServiceResponse.FromString(encode_partial_success(rejected, message))
    assert read.partial_success.rejected_spans == rejected
    assert read.partial_success.error_message == message
    assert encode_partial_success(0, "") == ExportTraceServiceResponse().SerializeToString()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x0a\x00" * 300_001, "spans, events and links"),
        (sized(b"\x0a", b"\x12\x00" * 300_001), "spans, events and links"),
        (sized(b"\x0a", sized(b"\x12", b"\x12\x00" * 300_001)), "spans, events and links"),
        (sized(b"\x0a", sized(b"\x12", sized(b"\x12", b"\x5a\x00" * 300_001))), "spans, events and links"),
        (sized(b"\x0a", sized(b"\x12", sized(b"\x12", b"\x6a\x00" * 300_001))), "spans, events and links"),
        (sized(b"\x0a", sized(b"\x12", sized(b"\x12", b"\x5a\x00" * 50_000) * 5)), "spans, events and links"),
    ],
    ids=["resources", "scopes", "spans", "events", "links", "events of several spans"],
)
def test_too_many_parts_are_refused(data: bytes, what: str) -> None:
    """Empty parts would fill the memory: they are counted while they are read."""
    with pytest.raises(TooLarge, match=f"over 200000 {what} in one export"):
        decode_spans(data, is_json=False)
