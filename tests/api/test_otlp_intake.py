"""Telemetry from clients that were given an address and nothing else; and what is told of that which is not stored."""

import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from google.rpc import code_pb2, status_pb2
from google.rpc.error_details_pb2 import RetryInfo

from heddle.errors import Busy, HeddleError, InvalidRequest, StorageFull, Unavailable
from heddle.http.failures import render
from tests.conftest import Wire
from tests.support.cli import make_key
from tests.support.otlp import JSON, PROTOBUF, Exporter, as_json, request, span
from tests.support.server import HeddleProcess

COLLISIONS: list[dict[str, Any]] = [
    {"error": True, "error.type": "ValueError"},
    {"error.type": "ValueError", "error": "boom"},
    {"agno.agent": "helper", "agno.agent.id": "a-1", "agno.agent.name": "Helper"},
    {"user.id": "u-1", "user": "ann"},
    {"session": "s", "session.id": "s-1", "session.id.kind": "uuid"},
    {"input": "question", "input.value": "hi", "input.mime_type": "text/plain"},
]


def counted(url: str, cause: str, signal: str) -> float:
    """A counter of rejected telemetry, 0 where it was never counted."""
    wanted = f'heddle_otlp_rejected_total{{cause="{cause}",signal="{signal}"}} '
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))


def rejected(url: str, project: str, **query: Any) -> list[dict[str, Any]]:
    """What the page of a project tells of rejected telemetry."""
    answer = httpx.get(f"{url}/_ui/api/overview", params={"project": project, **query})
    return [{key: row[key] for key in ("signal", "cause", "count")} for row in answer.json()["rejected"]]


@pytest.mark.parametrize("attributes", COLLISIONS, ids=lambda attributes: "+".join(attributes))
def test_a_value_beside_a_subtree_is_stored_whole(
    attributes: dict[str, Any], server: HeddleProcess, wire: Wire
) -> None:
    """On spans, events and resources; every value is found by a filter."""
    event = {"name": "e", "time_unix_nano": 1, "attributes": request(span(attributes=attributes))}
    event["attributes"] = event["attributes"].resource_spans[0].scope_spans[0].spans[0].attributes
    message = request(span(1, attributes=attributes, events=[event]), resource={"service.name": "svc", **attributes})
    assert not Exporter(server.url, wire.project).export(message).HasField("partial_success")
    (call,) = wire.calls()
    dump = call["attributes"]["otel_span"]
    for held in (dump["attributes"], dump["events"][0]["attributes"], dump["resource"]["attributes"]):
        assert set(map(str, leaves(held))) >= set(map(str, attributes.values()))
    for key, value in attributes.items():
        is_parent = any(other.startswith(f"{key}.") for other in attributes)
        field = f"attributes.otel_span.attributes.{key}" + ("._value" if is_parent else "")
        literal = str(value).lower() if isinstance(value, bool) else value
        query = {"$expr": {"$eq": [{"$getField": field}, {"$literal": literal}]}}
        assert [found["id"] for found in wire.calls(query=query)] == [call["id"]], field


def leaves(value: Any) -> list[Any]:
    """The values at the ends of a tree."""
    return [leaf for item in value.values() for leaf in leaves(item)] if isinstance(value, dict) else [value]


@pytest.mark.parametrize("path", ["/v1/traces", "/otel/v1/traces", "/traces/v1/traces"])
def test_an_address_alone_is_enough(path: str, server: HeddleProcess, project: str) -> None:
    """The project is that of the service, in every encoding; SDKs call a nameless one unknown_service."""
    name = project.partition("/")[2]
    message = request(span(1), resource={"service.name": name})
    packed = {"gzip": gzip.compress, "zstd": zstandard.compress, "identity": bytes}
    exporter = Exporter(server.url, None, path)
    for encoding, pack in packed.items():
        for kind, body in ((PROTOBUF, message.SerializeToString()), (JSON, as_json(message))):
            answer = exporter.send(pack(body), {**kind, "content-encoding": encoding})
            assert answer.status_code == 200, answer.text
    assert [call["id"] for call in Wire(server.url, f"local/{name}").calls()] == [f"{1:016x}"]
    nameless = request(span(7, trace=hash(project) % 2**63), resource={"service.name": "unknown_service"})
    exporter.export(nameless)
    trace = f"{hash(project) % 2**63:032x}"
    assert len(Wire(server.url, "local/unknown_service").calls(filter={"trace_ids": [trace]})) == 1


def test_keys_and_the_default_project(tmp_path: Path) -> None:
    """A key of a project needs nothing else, one of an entity takes the service; else there is the default."""
    data = tmp_path / "data"
    bound, entity = make_key(data, "one", "--project", "team/one"), make_key(data, "two", "--entity", "team")
    anybody = make_key(data, "ann")
    with HeddleProcess(data, auth="on", default_project="shared/rest") as server:

        def send(key: str, number: int, **resource: str) -> int:
            body = request(span(number), resource=resource or {"host.name": "h"}).SerializeToString()
            headers = {**PROTOBUF, "authorization": f"Bearer {key}"}
            return httpx.post(f"{server.url}/v1/traces", content=body, headers=headers).status_code

        def stored(project: str) -> list[str]:
            headers = {"wandb-api-key": anybody}
            body = {"project_id": project}
            answer = httpx.post(f"{server.url}/calls/stream_query", json=body, headers=headers)
            return [json.loads(line)["id"] for line in answer.text.splitlines()]

        assert send(bound, 1, **{"service.name": "svc"}) == 200
        assert send(entity, 2, **{"service.name": "svc"}) == 200
        assert send(anybody, 3) == 200
        assert send(anybody, 4, **{"service.name": "unknown_service:python"}) == 200
        assert send(anybody, 5, **{"openinference.project.name": "px"}) == 200
        assert send(entity, 6) == 403
        found = {name: stored(name) for name in ("team/one", "team/svc", "shared/rest", "ann/px")}
        ids = {name: [int(one, 16) for one in some] for name, some in found.items()}
        assert ids == {"team/one": [1], "team/svc": [2], "shared/rest": [3, 4], "ann/px": [5]}


def test_what_is_rejected_is_counted_logged_once_and_kept(tmp_path: Path) -> None:
    """By cause, also through a restart; and in the log of the server, once."""
    bad = request(span(1), {**span(2, name="odd"), "span_id": b"x"}, {**span(3), "trace_id": bytes(16)})
    nameless = request(span(4, name="lost"), resource={"host.name": "h"})
    server = HeddleProcess(tmp_path / "data")
    with server:
        for _ in range(3):
            assert Exporter(server.url, "team/one", "/v1/traces").export(bad).partial_success.rejected_spans == 2
            answer = Exporter(server.url, None, "/v1/traces").send(nameless.SerializeToString(), PROTOBUF)
            assert answer.status_code == 400
        Exporter(server.url, "team/two").export(bad)
        broken = Exporter(server.url, "team/two").send(b"\xff", PROTOBUF)
        assert broken.status_code == 400
        assert counted(server.url, "invalid_id", "traces") == 8
        assert counted(server.url, "no_project", "traces") == 3
        assert rejected(server.url, "team/one") == [{"signal": "traces", "cause": "invalid_id", "count": 6}]
        assert rejected(server.url, "team/three") == []
        (nowhere,) = httpx.get(f"{server.url}/_ui/api/projects").json()["rejected"]
        assert (nowhere["cause"], nowhere["count"]) == ("no_project", 3)
    with server.start():
        assert rejected(server.url, "team/two") == [{"signal": "traces", "cause": "invalid_id", "count": 2}]
        assert rejected(server.url, "team/two", start=4e9, end=4.1e9) == []
    told = [line for line in server.log().splitlines() if "heddle.otlp" in line]
    assert [line for line in told if "(invalid_id)" in line and "name='odd'" in line] == [told[0], told[2]]
    assert len(told) == 4, told
    assert sum("(no_project)" in line and "name='lost'" in line for line in told) == 1
    assert "an export was rejected with 400: The body is not a valid ExportTraceServiceRequest" in told[3]


LONG = "é" * 257


@pytest.mark.parametrize(
    "attributes",
    [
        *({name: LONG} for name in ("gen_ai.agent.name", "gen_ai.conversation.id", "session.id")),
        *({name: LONG} for name in ("gen_ai.request.model", "wandb.wb_run_id", "langfuse.session.id")),
        {"gen_ai.agent.name": "a", "gen_ai.agent.version": LONG},
    ],
    ids=lambda attributes: list(attributes)[-1],
)
def test_ids_that_are_too_long_are_rejected_with_their_span(
    attributes: dict[str, Any], server: HeddleProcess, wire: Wire
) -> None:
    """The other spans of the export are stored; so is a span with long texts that nothing is looked up by."""
    attributes = {"gen_ai.operation.name": "chat", **attributes}
    fits = {name: text[:256] for name, text in attributes.items()} | {"gen_ai.conversation.name": "n" * 10_000}
    message = request(span(1, attributes=attributes), span(2, attributes=fits), span(3))
    told = Exporter(server.url, wire.project).export(message).partial_success
    assert (told.rejected_spans, "is longer than 512 bytes" in told.error_message) == (1, True)
    assert [call["id"] for call in wire.calls()] == [f"{number:016x}" for number in (2, 3)]


@pytest.mark.thorough
def test_workers_tell_what_they_reject(tmp_path: Path) -> None:
    bad = request(span(1), {**span(2), "span_id": b"x"})
    with HeddleProcess(tmp_path / "data", workers=2) as server:
        for _ in range(4):
            assert Exporter(server.url, "team/one", "/v1/traces").export(bad).partial_success.rejected_spans == 1
        assert rejected(server.url, "team/one") == [{"signal": "traces", "cause": "invalid_id", "count": 4}]


def test_javascript_reads_what_is_rejected(server: HeddleProcess, project: str) -> None:
    """The names of OTLP in JSON beside those of the API."""
    sent = Exporter(server.url, project, "/v1/traces").export_json(request({**span(1), "span_id": b"x"}))
    assert sent["partialSuccess"] == {"rejectedSpans": 1, "errorMessage": sent["partial_success"]["error_message"]}


@pytest.mark.parametrize(
    ("error", "status", "code", "seconds"),
    [
        (InvalidRequest("no"), 400, code_pb2.INVALID_ARGUMENT, None),
        (Busy("wait", retry_after=7), 429, code_pb2.RESOURCE_EXHAUSTED, 7),
        (Unavailable("away"), 503, code_pb2.UNAVAILABLE, 1),
        (StorageFull("full"), 503, code_pb2.UNAVAILABLE, 30),
        (HeddleError("oops"), 500, code_pb2.INTERNAL, None),
    ],
)
def test_failures_are_a_status(error: HeddleError, status: int, code: int, seconds: int | None) -> None:
    """Exporters try again after 429 and 503 alone, and as late as they are told."""
    headers = [(b"content-type", b"application/x-protobuf")]
    answer = render(error, {"type": "http", "path": "/v1/traces", "headers": headers})
    found = status_pb2.Status.FromString(answer.body)
    assert (answer.status_code, found.code, found.message) == (status, code, error.reason)
    waits = []
    for detail in found.details:
        info = RetryInfo()
        assert detail.Unpack(info)
        waits.append(info.retry_delay.seconds)
    assert waits == ([] if seconds is None else [seconds])
    assert answer.headers.get("retry-after") == (None if seconds is None else str(seconds))
    plain = json.loads(render(error, {"type": "http", "path": "/otel/v1/traces", "headers": []}).body)
    assert (plain["code"], plain["message"], plain["reason"]) == (code, error.reason, error.reason)


def test_a_full_store_lets_exporters_wait(tmp_path: Path) -> None:
    """Elsewhere a full store is 507, which exporters would take for final."""
    with HeddleProcess(tmp_path / "data", max_database_bytes=3_000_000) as server:
        exporter = Exporter(server.url, "team/one", "/v1/traces")
        number = itertools.count(1)
        while (
            answer := exporter.send(
                request(span(next(number), attributes={"text": "x" * 200_000})).SerializeToString(), PROTOBUF
            )
        ).status_code == 200:
            pass
        found = status_pb2.Status.FromString(answer.content)
        assert (answer.status_code, found.code) == (503, code_pb2.UNAVAILABLE)
        assert "max_database_bytes" in found.message and answer.headers["retry-after"] == "30"
        start = {"project_id": "team/one", "op_name": "o", "started_at": "2026-01-01T00:00:00Z"}
        body = {"start": {**start, "attributes": {}, "inputs": {"text": "x" * 300_000}}}
        assert httpx.post(f"{server.url}/call/start", json=body).status_code == 507


def test_the_wrong_method_says_so(server: HeddleProcess) -> None:
    answer = httpx.get(f"{server.url}/v1/traces")
    assert answer.status_code == 405 and re.search("Method Not Allowed", answer.text)
