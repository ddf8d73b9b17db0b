"""Spans over HTTP: both encodings, every compression, projects and keys, partial success, and what a reader sees."""

import base64
import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from google.rpc import code_pb2, status_pb2

from tests.conftest import Wire
from tests.support.cli import make_key
from tests.support.otlp import JSON, PROTOBUF, START, Exporter, as_json, key_values, request, span
from tests.support.server import HeddleProcess

CHAT = {
    "gen_ai.system": "openai",
    "gen_ai.response.model": "gpt-4o-2024",
    "gen_ai.request.model": "gpt-4o",
    "gen_ai.request.temperature": 0.25,
    "gen_ai.prompt.0.role": "user",
    "gen_ai.prompt.0.content": "hi",
    "gen_ai.completion.0.content": "yo",
    "gen_ai.usage.prompt_tokens": 3,
    "gen_ai.usage.completion_tokens": "4",
    "gen_ai.conversation.id": "conv1",
}
ROUTES = ("/v1/traces", "/otel/v1/traces", "/agents/otel/v1/traces", "/api/otel/v1/traces")
NAMELESS = {"host.name": "h"}
"""A resource that names neither a project nor a service."""


@pytest.fixture(params=ROUTES)
def exporter(request: pytest.FixtureRequest, server: HeddleProcess, project: str) -> Iterator[Exporter]:
    """An exporter to the test's project, at both addresses."""
    exporter = Exporter(server.url, project, request.param)
    yield exporter
    exporter.client.close()


def failure(answer: httpx.Response) -> status_pb2.Status:
    """The Status of a failed export, in the encoding of its request."""
    if "protobuf" in answer.request.headers.get("content-type", ""):
        assert answer.headers["content-type"] == "application/x-protobuf"
        return status_pb2.Status.FromString(answer.content)
    told = answer.json()
    return status_pb2.Status(code=told["code"], message=told["message"])


def hex_id(number: int, length: int = 16) -> str:
    """The id of a span as it is read."""
    return f"{number:0{length}x}"


def strip(call: dict[str, Any]) -> dict[str, Any]:
    """A call without what two ways of sending may write differently."""
    return {key: value for key, value in call.items() if key not in ("id", "trace_id", "op_name", "project_id")}


def test_a_chat_is_read_as_a_call(exporter: Exporter, wire: Wire) -> None:
    """The measured example of the contract (trace-core, 12)."""
    assert not exporter.export(request(span(attributes=CHAT, name="chat gpt/4", kind=3))).HasField("partial_success")
    call = wire.call(hex_id(1))
    assert call["trace_id"] == hex_id(1, 32) and call["parent_id"] is None
    assert call["op_name"].startswith(f"weave:///{wire.project}/op/chat_gpt_4:")
    assert call["inputs"] == {"gen_ai.prompt": [{"role": "user", "content": "hi"}]}
    assert call["output"] == {"gen_ai.completion": [{"content": "yo"}]}
    span_of_call = call["attributes"].pop("otel_span")
    assert call["attributes"] == {
        "system": "openai",
        "model": "gpt-4o-2024",
        "model_parameters": {"model": "gpt-4o", "temperature": 0.25},
        "kind": "llm",
    }
    assert call["summary"]["usage"] == {
        "gpt-4o-2024": {
            **dict.fromkeys(("input_tokens", "output_tokens", "requests")),
            **dict.fromkeys(("cache_creation_input_tokens", "cache_read_input_tokens")),
            "prompt_tokens": 3,
            "completion_tokens": 4,
            "total_tokens": 7,
        }
    }
    assert (call["thread_id"], call["turn_id"]) == ("conv1", hex_id(1))
    assert (call["started_at"], call["ended_at"]) == ("2026-11-20T19:47:09.885327Z", "2026-11-20T19:47:10.135327Z")
    assert call["summary"]["weave"]["status"] == "success" and call["summary"]["weave"]["latency_ms"] == 250
    assert span_of_call["context"] == {"trace_id": hex_id(1, 32), "span_id": hex_id(1), "trace_state": ""}
    assert (span_of_call["name"], span_of_call["kind"]) == ("chat gpt/4", "CLIENT")
    assert span_of_call["attributes"]["gen_ai"]["prompt"] == {"0": {"role": "user", "content": "hi"}}
    assert span_of_call["resource"] == {"attributes": {"service": {"name": "svc"}}, "dropped_attributes_count": 0}
    assert span_of_call["status"] == {"code": "UNSET", "message": ""} and span_of_call["scope"]["name"] == "tests"


@pytest.mark.parametrize("path", ["/opentelemetry/v1/traces", "/tracer/v1/traces", "/v2/traces"])
def test_sdks_of_other_products_find_the_route_below_their_address(
    path: str, server: HeddleProcess, project: str, wire: Wire
) -> None:
    exporter = Exporter(server.url, project, path)
    with exporter.client:
        exporter.export_json(request(span()))
    assert len(wire.calls()) == 1


def test_both_encodings_say_the_same(server: HeddleProcess, wire: Wire) -> None:
    """Every kind of value, events, links and status, once as protobuf and twice as JSON."""
    every = {
        "text": "ä",
        "yes": True,
        "count": -(2**63),
        "share": 0.1,
        "raw": b"\x00\xff",
        "list": ["a", 1, None, [2.5]],
        "tree": {"a": {"b": [True]}},
        "nothing": None,
        "json": '{"k": [1]}',
    }
    event = {"name": "exception", "time_unix_nano": START, "attributes": key_values({"exception.type": "E"})}
    link = {"trace_id": b"t" * 16, "span_id": b"s" * 8, "attributes": key_values({"why": "related"}), "flags": 1}
    more = {"kind": 4, "status": {"code": 2, "message": "boom"}, "events": [event], "links": [link]}
    calls = []
    for trace, encoding in enumerate(("protobuf", "json", "snake"), 1):
        exporter = Exporter(server.url, wire.project)
        message = request(span(trace, trace, parent=77, attributes=every, **more))
        if encoding == "protobuf":
            exporter.export(message)
        else:
            assert exporter.export_json(message, snake=encoding == "snake") == {"partial_success": None}
        call = strip(wire.call(hex_id(trace)))
        call["attributes"]["otel_span"]["context"] = None
        calls.append(call)
    assert calls[0] == calls[1] == calls[2]
    dumped = calls[0]["attributes"]["otel_span"]
    assert dumped["attributes"] == {
        **every,
        "raw": "AP8=",
        "json": {"k": [1]},
    }
    assert dumped["events"][0]["attributes"] == {"exception": {"type": "E"}}
    assert dumped["links"][0] | {"attributes": None} == {
        "trace_id": "74" * 16,
        "span_id": "73" * 8,
        "trace_state": "",
        "attributes": None,
        "dropped_attributes_count": 0,
        "flags": 1,
    }
    assert calls[0]["exception"] == "boom" and calls[0]["summary"]["weave"]["status"] == "error"
    assert calls[0]["parent_id"] == hex_id(77)
    assert calls[0]["attributes"]["json"] == {"k": [1]}, "without inputs, output and usage all attributes are shown"


def raw_deflate(data: bytes) -> bytes:
    """DEFLATE without zlib's wrapper."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("identity", lambda data: data),
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("zstd", zstandard.compress),
    ],
)
def test_compressions(encoding: str, pack: Callable[[bytes], bytes], exporter: Exporter, wire: Wire) -> None:
    """Each compression with each encoding."""
    for number, (kind, read) in enumerate(((PROTOBUF, lambda m: m.SerializeToString()), (JSON, as_json)), 1):
        body = pack(read(request(span(number, attributes=CHAT))))
        answer = exporter.send(body, {**kind, "content-encoding": encoding})
        assert answer.status_code == 200, answer.text
        assert wire.call(hex_id(number))["output"] == {"gen_ai.completion": [{"content": "yo"}]}


def test_what_is_refused_says_why_and_stores_nothing(exporter: Exporter, wire: Wire) -> None:
    good = request(span(attributes=CHAT)).SerializeToString()
    cases: list[tuple[int, str, bytes, dict[str, str]]] = [
        (415, "Content-Type must be application/x-protobuf or application/json; got 'text/plain'", good,
         {"content-type": "text/plain"}),
        (415, "the request has none", good, {"content-type": ""}),
        (415, "Content-Encoding 'br' is not supported here; supported are gzip, deflate and zstd", good,
         {**PROTOBUF, "content-encoding": "br"}),
        (400, "not valid gzip", good, {**PROTOBUF, "content-encoding": "gzip"}),
        (400, "is truncated", zstandard.compress(good)[:-9], {**PROTOBUF, "content-encoding": "zstd"}),
        (400, "not a valid ExportTraceServiceRequest", good[:-3], PROTOBUF),
        (400, "not a valid ExportTraceServiceRequest", b"\xff" * 50, PROTOBUF),
        (400, "the body: expected an object", b"[]", JSON),
        (400, "resourceSpans: expected a list", b'{"resourceSpans": 5}', JSON),
        (400, "resourceSpans[0].scopeSpans[0].spans[0].startTimeUnixNano: expected an integer from 0",
         b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"startTimeUnixNano":"soon"}]}]}]}', JSON),
        (400, "spans[0].attributes[0].value.intValue: expected a 64-bit integer",
         b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"attributes":[{"key":"a","value":{"intValue":"9223372036854775808"'
         b"}}]}]}]}]}", JSON),
        (422, "JSON decode error", b"{", JSON),
    ]  # fmt: skip
    for status, why, body, headers in cases:
        answer = exporter.send(body, headers)
        assert answer.status_code == status, (why, answer.status_code, answer.text)
        told = failure(answer)
        assert why in told.message, told
        assert told.code == code_pb2.INVALID_ARGUMENT
    assert wire.calls() == [] and wire.objects() == []


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """A body that grows over the limit is 413, whatever packs it."""
    with HeddleProcess(tmp_path / "data", max_trace_body=64 * 1024) as server:
        exporter = Exporter(server.url, "a/b")
        big = request(span(attributes={"text": "x" * 10_000_000})).SerializeToString()
        for encoding, pack in (("gzip", gzip.compress), ("deflate", zlib.compress), ("zstd", zstandard.compress)):
            body = pack(big)
            assert len(body) < 64 * 1024
            answer = exporter.send(body, {**PROTOBUF, "content-encoding": encoding})
            assert answer.status_code == 413 and "max_trace_body" in failure(answer).message
        assert exporter.send(big, PROTOBUF).status_code == 413
        small = request(span(attributes={"text": "x" * 60_000})).SerializeToString()
        assert exporter.send(small, PROTOBUF).status_code == 200


def test_projects_come_from_resources_and_else_from_the_header(server: HeddleProcess, project: str) -> None:
    """Attributes win over the header; one export may hold several projects; a resource without one is rejected."""
    other = f"{project}-other"
    entity, name = other.split("/")
    message = request(span(1), resource={"wandb.entity": entity, "wandb.project": name})
    message.MergeFrom(request(span(2), resource={"wandb.entity": entity}))
    assert not Exporter(server.url, project).export(message).HasField("partial_success")
    assert [call["id"] for call in Wire(server.url, other).calls()] == [hex_id(1)]
    assert [call["id"] for call in Wire(server.url, project).calls()] == [hex_id(2)]
    message = request(span(3), resource={"wandb.entity": entity, "wandb.project": name})
    message.MergeFrom(request(span(4, name="lost"), resource=NAMELESS))
    partial = Exporter(server.url, None).export(message).partial_success
    assert partial.rejected_spans == 1 and "name='lost'" in partial.error_message
    assert "wandb.entity and wandb.project" in partial.error_message
    assert len(Wire(server.url, other).calls()) == 2


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_header_names_a_project_in_either_encoding(server: HeddleProcess, project: str, encoding: str) -> None:
    """UTF-8 comes from curl and from the Collector, Latin-1 from clients in Python and JavaScript."""
    named, body = f"{project}-küche-{encoding}", request(span()).SerializeToString()
    headers = {
        **{name.encode(): value.encode() for name, value in PROTOBUF.items()},
        b"project_id": named.encode(encoding),
    }
    assert httpx.post(f"{server.url}/v1/traces", content=body, headers=headers).status_code == 200
    assert len(Wire(server.url, named).calls()) == 1


def test_without_any_project_nothing_is_stored(server: HeddleProcess) -> None:
    body = request(span(), resource=NAMELESS).SerializeToString()
    answer = Exporter(server.url, None).send(body, PROTOBUF)
    assert answer.status_code == 400 and "No project: send the header 'project_id" in failure(answer).message
    answer = Exporter(server.url, "no-slash").send(body, PROTOBUF)
    assert answer.status_code == 400 and "expected 'entity/project'" in failure(answer).message
    assert Exporter(server.url, None).send(b"", PROTOBUF).status_code == 200
    assert Exporter(server.url, None).export_json(request()) == {"partial_success": None}


def test_spans_are_rejected_one_by_one(exporter: Exporter, wire: Wire) -> None:
    """Ids that are none; the others are stored, with a value and a subtree under one key, too."""
    both = span(2, name="both", attributes={"a": 1, "a.b": 2})
    bad_ids = {**span(3, name="short"), "span_id": b"abc"}, {**span(4, name="zeros"), "trace_id": bytes(16)}
    message = request(span(1), both, *bad_ids, span(5, attributes={"a.b": [1], "a.b.1": 2}))
    for sent in (exporter.export(message).partial_success, exporter.export_json(message)["partial_success"]):
        count, text = (
            (sent["rejected_spans"], sent["error_message"]) if isinstance(sent, dict) else (2, sent.error_message)
        )
        assert count == 2 and sent != {}
        assert text.count("Rejected span (") == 2 and f"span_id='{b'abc'.hex()}'" in text
        assert "span_id must be 16 hex digits" in text and "trace_id must not be all zeros" in text
    assert [call["id"] for call in wire.calls()] == [hex_id(1), hex_id(2), hex_id(5)]
    assert wire.call(hex_id(2))["attributes"]["a"] == {"b": 2, "_value": 1}
    assert wire.call(hex_id(5))["attributes"]["a"]["b"] == {"0": 1, "1": 2}


def test_many_rejections_are_cut(exporter: Exporter, wire: Wire) -> None:
    spans = [{**span(number), "span_id": bytes(8)} for number in range(1, 31)]
    partial = exporter.export(request(*spans)).partial_success
    assert partial.rejected_spans == 30
    assert partial.error_message.count("Rejected span (") == 20 and partial.error_message.endswith("; ...")
    assert wire.calls() == []


def test_the_same_span_again_replaces_itself(exporter: Exporter, wire: Wire) -> None:
    """Retries and corrections; the usage counts once."""
    for answer in ("first", "second"):
        attributes = {**CHAT, "gen_ai.completion.0.content": answer}
        exporter.export(request(span(1, attributes=attributes), span(1, attributes=attributes)))
    (call,) = wire.calls()
    assert call["output"] == {"gen_ai.completion": [{"content": "second"}]}
    usage = wire.post("/calls/usage", call_ids=[call["id"]])
    assert json.dumps(usage).count('"prompt_tokens":3'.replace(":", ": ")) == 1, usage


def test_placeholders_of_spans_are_left_out(exporter: Exporter, wire: Wire) -> None:
    """Logfire sends one when a span begins, as a child of the span."""
    kind = "logfire.span_type"
    first = span(1, 2, parent=1, attributes={kind: "pending_span", "logfire.pending_parent_id": hex_id(0)})
    assert not exporter.export(request(first)).HasField("partial_success")
    assert wire.calls() == []
    second = span(1, 3, parent=1, attributes={kind: "pending_span", "logfire.pending_parent_id": hex_id(0)})
    exporter.export(request(second, span(1, 1, attributes={kind: "span"})))
    assert [call["id"] for call in wire.calls()] == [hex_id(1)]


def test_costs_of_a_span(exporter: Exporter, wire: Wire) -> None:
    """Cached tokens lie within the input tokens, as the GenAI conventions have it, and cost less."""
    prices = {"prompt_token_cost": 0.01, "completion_token_cost": 0.1, "cache_read_input_token_cost": 0.001}
    wire.post("/cost/create", costs={"my-model": {**prices, "effective_date": "2020-01-01T00:00:00Z"}})
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "my-model",
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 60,
    }
    exporter.export(request(span(1, attributes=attributes), span(2, attributes={"http.method": "GET"})))
    weave = wire.call(hex_id(1), include_costs=True)["summary"]["weave"]
    costs = weave["costs"]["my-model"]
    assert costs["prompt_tokens_total_cost"] == pytest.approx(0.4)
    assert costs["cache_read_input_tokens_total_cost"] == pytest.approx(0.06)
    assert costs["completion_tokens_total_cost"] == pytest.approx(1.0)
    assert "costs" not in wire.call(hex_id(2), include_costs=True)["summary"]["weave"]


def test_what_is_indexed_for_the_agents_reads(exporter: Exporter, wire: Wire) -> None:
    """Spans of models and agents are there when the export is answered, with their messages and who sent them."""
    messages = '[{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]'
    attributes = {**CHAT, "gen_ai.operation.name": "chat", "gen_ai.input.messages": messages}
    exporter.export(request(span(1, attributes=attributes), span(2, attributes={"http.method": "GET"})))
    found = wire.post("/agents/spans/query", include_details=True)
    (seen,) = found["spans"]
    assert (seen["span_id"], seen["operation_name"], seen["conversation_id"]) == (hex_id(1), "chat", "conv1")
    assert seen["wb_user_id"] == wire.call(hex_id(1))["wb_user_id"]
    assert seen["input_messages"] and "hi" in json.dumps(seen["input_messages"])
    exporter.export(request(span(1, attributes={**attributes, "gen_ai.conversation.id": "conv2"})))
    again = wire.post("/agents/spans/query")
    assert [item["conversation_id"] for item in again["spans"]] == ["conv2"]


def test_spans_arrive_in_any_order(exporter: Exporter, wire: Wire) -> None:
    """A child before its parent, in another export; and one whose parent never comes."""
    exporter.export(request(span(2, parent=1), span(9, parent=8)))
    exporter.export(request(span(1, start_time_unix_nano=START - 10**9)))
    calls = {call["id"]: call["parent_id"] for call in wire.calls()}
    assert calls == {hex_id(1): None, hex_id(2): hex_id(1), hex_id(9): hex_id(8)}


def test_ops_are_the_latest_of_their_name(exporter: Exporter, wire: Wire) -> None:
    """A placeholder where there is none, the user's own where there is one."""
    exporter.export(request(span(1, name="My Op")))
    (placeholder,) = wire.objects()
    assert (placeholder["object_id"], placeholder["kind"]) == ("my_op", "op")
    assert placeholder["val"]["weave_type"] == {"type": "Op"}
    assert b"def func(*args, **kwargs)" in wire.file(placeholder["val"]["files"]["obj.py"])
    exporter.export(request(span(2, name="my op")))
    assert len(wire.objects()) == 1
    value = {**placeholder["val"], "note": "mine"}
    body = {"obj": {"project_id": wire.project, "object_id": "my_op", "val": value}}
    mine = wire.client.post("/obj/create", json=body).json()["digest"]
    exporter.export(request(span(3, name="MY OP!")))
    names = [call["op_name"] for call in wire.calls()]
    assert names[0] == names[1] and names[2] == f"weave:///{wire.project}/op/my_op:{mine}"
    body = {"project_id": wire.project, "object_id": "my_op", "digests": [mine]}
    assert wire.client.post("/obj/delete", json=body).status_code == 200
    exporter.export(request(span(4, name="my op")))
    assert wire.call(hex_id(4))["op_name"] == names[0]


def test_refs_in_spans_are_refs_of_calls(exporter: Exporter, wire: Wire) -> None:
    """What a span says about an object is found by the object; what only looks like a ref stays text."""
    ref = f"weave:///{wire.project}/object/data:{'x' * 43}"
    exporter.export(request(span(1, attributes={"input.value": ref, "output.value": "weave:///nonsense"})))
    (call,) = wire.calls(filter={"input_refs": [ref]})
    assert call["inputs"] == {"input.value": ref} and call["output"] == {"output.value": "weave:///nonsense"}
    assert call["attributes"]["otel_span"]["attributes"]["input"] == {"value": ref}


def test_media_and_large_fields(exporter: Exporter, wire: Wire) -> None:
    """An image becomes a file once, also in the whole span; a large text is read back whole."""
    picture = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
    uri = "data:image/png;base64," + base64.b64encode(picture).decode()
    exporter.export(
        request(span(1, attributes={"input.value": json.dumps({"image": uri}), "output.value": "x" * 3_000_000}))
    )
    call = wire.call(hex_id(1))
    content = call["inputs"]["input.value"]["image"]
    assert wire.file(content["files"]["content"]) == picture
    whole = call["attributes"]["otel_span"]["attributes"]
    assert whole["input"]["value"]["image"] == content
    assert call["output"] == {"output.value": "x" * 3_000_000} and whole["output"]["value"] == "x" * 3_000_000


def test_deep_and_odd_attributes_do_no_harm(exporter: Exporter, wire: Wire) -> None:
    odd = {
        ".".join("k" * 3000): 1,
        "..": 2,
        "json": "[" * 5000 + "]" * 5000,
        "broken": "{not json",
        "nan": float("nan"),
        "long": "[" * 150 + "]" * 150,
    }
    exporter.export(request(span(1, attributes=odd, name="")))
    call = wire.call(hex_id(1))
    kept = call["attributes"]["otel_span"]["attributes"]
    assert kept[".".join("k" * 3000)] == 1 and kept["broken"] == "{not json" and kept["nan"] == "nan"
    assert kept["json"] == odd["json"] and kept["long"] == odd["long"]
    assert call["op_name"].split("/")[-1].startswith("unknown:")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """A server that needs keys."""
    data = tmp_path_factory.mktemp("otel-keys") / "data"
    keys = {
        "writer": make_key(data, "writer", "--scope", "write"),
        "reader": make_key(data, "reader", "--scope", "read"),
        "one": make_key(data, "one", "--project", "team/one"),
    }
    with HeddleProcess(data, auth="on") as process:
        yield process.url, keys


def test_keys(guarded: tuple[str, dict[str, str]]) -> None:
    """Basic, Bearer and wandb-api-key are known; scope and reach of the key bound what is stored."""
    url, keys = guarded
    body = request(span()).SerializeToString()
    writer = keys["writer"]
    for auth in ({"auth": ("api", writer)}, {"headers": {"authorization": f"Bearer {writer}"}}):
        answer = httpx.post(
            url + ROUTES[0],
            content=body,
            **{**auth, "headers": {**PROTOBUF, "project_id": "team/one", **auth.get("headers", {})}},
        )
        assert answer.status_code == 200, answer.text
    sent = {**PROTOBUF, "project_id": "team/one"}
    for status, more in (
        (200, {"wandb-api-key": writer}),
        (401, {}),
        (401, {"wandb-api-key": "nonsense"}),
        (403, {"wandb-api-key": keys["reader"]}),
        (200, {"wandb-api-key": keys["one"]}),
        (403, {"wandb-api-key": keys["one"], "project_id": "team/two"}),
    ):
        for path in ROUTES:
            answer = httpx.post(url + path, content=body, headers={**sent, **more})
            assert answer.status_code == status, (more, answer.text)


def test_nothing_of_a_forbidden_export_is_stored(guarded: tuple[str, dict[str, str]]) -> None:
    """One resource of a project that the key does not reach refuses the whole request."""
    url, keys = guarded
    message = request(span(5), resource={"wandb.entity": "team", "wandb.project": "one"})
    message.MergeFrom(request(span(6), resource={"wandb.entity": "team", "wandb.project": "two"}))
    headers = {**PROTOBUF, "wandb-api-key": keys["one"]}
    answer = httpx.post(url + ROUTES[0], content=message.SerializeToString(), headers=headers)
    assert answer.status_code == 403
    read = httpx.post(
        url + "/calls/stream_query",
        json={"project_id": "team/one", "filter": {"call_ids": [hex_id(5)]}},
        headers={"wandb-api-key": keys["reader"]},
    )
    assert read.status_code == 200 and read.text == ""


def test_counts_beyond_reason(exporter: Exporter, wire: Wire) -> None:
    """Counts at the end of 64 bits are kept as they came, and sums over them are computed all the same."""
    most = 2**63 - 1
    counts = {f"gen_ai.usage.{name}": most for name in ("prompt_tokens", "output_tokens")}
    counts |= {"gen_ai.usage.input_tokens": most - 1, "gen_ai.usage.cache_read.input_tokens": -5}
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o", **counts}
    exporter.export(request(*[span(number, 1, attributes=attributes) for number in range(1, 5)]))
    day = {"start": "2026-11-20T00:00:00Z", "end": "2026-11-21T00:00:00Z"}
    figures = [{"metric": "input_tokens", "aggregations": ["sum"]}]
    rows = wire.post("/calls/stats", **day, usage_metrics=figures)["usage_buckets"]
    assert sum(row["sum_input_tokens"] for row in rows) == 4 * 2 * 10**12
    call = wire.lines("/calls/stream_query")[0]
    assert call["summary"]["usage"]["gpt-4o"]["output_tokens"] == most
    assert call["summary"]["usage"]["gpt-4o"]["cache_read_input_tokens"] is None
