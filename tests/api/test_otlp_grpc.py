"""OTLP over gRPC: the keys, projects, limits and answers of HTTP; and what a hostile client does not reach."""

import contextlib
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf.message import Message
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.conftest import Wire
from tests.support.cli import heddle, make_key
from tests.support.otlp import request, span
from tests.support.server import HeddleProcess, free_port

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")

EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
MIB = 1024**2


class Client:
    """A client of the gRPC port, which sends what it is told."""

    def __init__(self, port: int, **metadata: str) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)])
        self.metadata = [(name.replace("_key", "-api-key"), value) for name, value in metadata.items()]

    def send(self, body: bytes, method: str = EXPORT, **options: Any) -> bytes:
        """The answer to any bytes."""
        found: bytes = self.channel.unary_unary(method)(
            body, metadata=self.metadata, timeout=60, wait_for_ready=True, **options
        )
        return found

    def export(self, message: Message, **options: Any) -> ExportTraceServiceResponse:
        """Send an export; must succeed."""
        return ExportTraceServiceResponse.FromString(self.send(message.SerializeToString(), **options))

    def send_until_taken(self, message: Message) -> None:
        """Send an export again and again as an exporter does while nobody is there."""
        while True:
            try:
                self.export(message)
                return
            except grpc.RpcError as error:
                # Both are to be sent again: opentelemetry.io/docs/specs/otlp, Failures.
                assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

    def refusal(self, body: bytes, **options: Any) -> tuple[Any, str, int | None]:
        """The code and the reason of a refusal, and after how many seconds to try again."""
        with pytest.raises(grpc.RpcError) as refused:
            self.send(body, **options)
        return outcome(refused.value)

    def begin(self) -> Any:
        """A call whose message never comes."""
        held = threading.Event()

        def nothing() -> Iterator[bytes]:
            held.wait(60)
            yield b""

        call = self.channel.stream_unary(EXPORT).future(nothing(), metadata=self.metadata, timeout=60)
        call.add_done_callback(lambda _: held.set())
        return call


def outcome(error: Any) -> tuple[Any, str, int | None]:
    """What an ended call says."""
    details = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin", b"")
    status = status_pb2.Status.FromString(details)
    seconds = None
    for detail in status.details:
        info = RetryInfo()
        assert detail.Unpack(info)
        seconds = info.retry_delay.seconds
    if details:
        assert (status.code, status.message) == (error.code().value[0], error.details())
    return error.code(), error.details(), seconds


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HeddleProcess, int]]:
    """A server with a gRPC port, small messages and short patience."""
    port = free_port()
    data = tmp_path_factory.mktemp("grpc") / "data"
    limits = {"max_trace_body": MIB, "max_unfinished_bytes": 2 * MIB, "body_timeout": 1}
    with HeddleProcess(data, otlp_grpc_port=port, **limits) as server:
        yield server, port


@pytest.mark.parametrize("compression", ["NoCompression", "Gzip", "Deflate"])
def test_exports_become_calls(compression: str, served: tuple[HeddleProcess, int], project: str) -> None:
    server, port = served
    client = Client(port, project_id=project)
    answer = client.export(request(span(1, attributes={"text": "x" * 5000})), compression=grpc.Compression[compression])
    assert not answer.HasField("partial_success")
    (call,) = Wire(server.url, project).calls()
    assert call["id"] == f"{1:016x}" and call["attributes"]["text"] == "x" * 5000


def test_partial_success_and_refusals(served: tuple[HeddleProcess, int], project: str) -> None:
    server, port = served
    client = Client(port, project_id=project)
    partial = client.export(request(span(1), {**span(2), "span_id": b"x"})).partial_success
    assert partial.rejected_spans == 1 and "span_id must be 16 hex digits" in partial.error_message
    assert len(Wire(server.url, project).calls()) == 1
    nameless = request(span(), resource={"host.name": "h"}).SerializeToString()
    code, reason, seconds = Client(port).refusal(nameless)
    assert (code, seconds) == (grpc.StatusCode.INVALID_ARGUMENT, None) and reason.startswith("No project: ")
    code, reason, _ = client.refusal(b"\x0a\xff")
    assert code is grpc.StatusCode.INVALID_ARGUMENT and "not a valid ExportTraceServiceRequest" in reason
    assert client.refusal(b"", method="/x.Y/Z")[0] is grpc.StatusCode.UNIMPLEMENTED
    client.metadata.append(("x-forwarded-for", "192.0.2.1"))
    code, reason, _ = client.refusal(b"")
    assert code is grpc.StatusCode.PERMISSION_DENIED and "The request came through a proxy" in reason


def test_messages_are_as_large_as_over_http(served: tuple[HeddleProcess, int], project: str) -> None:
    """Also when they are compressed: what grows over the limit is not unpacked."""
    _, port = served
    client = Client(port, project_id=project)
    big = request(span(attributes={"text": "x" * 60 * MIB})).SerializeToString()
    code, reason, seconds = client.refusal(big)
    assert (code, seconds) == (grpc.StatusCode.RESOURCE_EXHAUSTED, None) and "larger than max" in reason
    code, reason, seconds = client.refusal(big, compression=grpc.Compression.Gzip)
    assert (code, seconds) == (grpc.StatusCode.RESOURCE_EXHAUSTED, None) and "max_trace_body" in reason
    client.export(request(span(attributes={"text": "x" * (MIB - 5000)})))


def test_messages_that_never_come_hold_up_nobody(served: tuple[HeddleProcess, int], project: str) -> None:
    """Each is given up, the places of one address are few, and HTTP knows nothing of it."""
    server, port = served
    hostile = [Client(port, project_id=project).begin() for _ in range(40)]
    assert httpx.post(f"{server.url}/calls/query_stats", json={"project_id": project}).status_code == 200
    found = [outcome(call.exception()) for call in hostile]
    codes = {code for code, _, _ in found}
    assert codes <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert all(seconds in (1, 2) for _, _, seconds in found), "an honest client would try again"
    assert any("body_timeout = 1 s" in reason for _, reason, _ in found)
    Client(port, project_id=project).export(request(span(1)))


def test_what_is_no_grpc_holds_up_nobody(served: tuple[HeddleProcess, int], project: str) -> None:
    server, port = served
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    for number, connection in enumerate(connections):
        connection.sendall((b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 1000)[number % 3])
    Client(port, project_id=project).export(request(span(1)))
    assert len(Wire(server.url, project).calls()) == 1
    for connection in connections:
        connection.close()


def connected(port: int) -> socket.socket:
    """A connection, once the port listens."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), timeout=10)


def raw_call(port: int, path: bytes, **metadata: bytes) -> bytes:
    """What is answered to an empty export with headers that no library sends, up to its status."""

    def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
        return len(content).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + content

    named = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"x", b"te": b"trailers"}
    named |= {b"content-type": b"application/grpc"} | {name.encode(): value for name, value in metadata.items()}
    headers = b"".join(
        b"\0" + b"".join(bytes((len(text),)) + text for text in pair) for pair in named.items() if len(pair[1]) < 127
    )
    frames = frame(4, 0, 0, b"") + frame(1, 4, 1, headers) + frame(0, 1, 1, bytes(5))
    with connected(port) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frames)
        answer = b""
        while b"grpc-message" not in answer and (part := connection.recv(65_536)):
            answer += part
    return answer


def test_a_method_that_is_no_text_ends_nothing(served: tuple[HeddleProcess, int], project: str) -> None:
    """One such call closed the port until the next start of the server."""
    server, port = served
    (pid,) = children(server)
    for number in range(1, 4):
        raw_call(port, b"/\xff")
        Client(port, project_id=project).send_until_taken(request(span(number)))
    assert len(Wire(server.url, project).calls()) == 3
    assert children(server) == [pid] and "was reopened" in server.log()
    assert "UnicodeDecodeError" not in server.log()


@pytest.mark.parametrize("value", [b"\xff\xfe", "é/x".encode(), b"a\r\nx: y", b"a\0b", b"a\x7fb"])
def test_metadata_that_no_header_holds_are_refused(value: bytes, served: tuple[HeddleProcess, int]) -> None:
    server, port = served
    answer = raw_call(port, EXPORT.encode(), project_id=value)
    assert b"grpc-status\x013" in answer and b"The metadata project_id contains a character" in answer
    assert "UnicodeEncodeError" not in server.log()


def test_a_process_that_dies_is_started_again(served: tuple[HeddleProcess, int], project: str) -> None:
    server, port = served
    client = Client(port, project_id=project)
    client.export(request(span(1)))
    (pid,) = children(server)
    os.kill(pid, signal.SIGKILL)
    client.send_until_taken(request(span(2)))
    assert [call["id"] for call in Wire(server.url, project).calls()] == [f"{1:016x}", f"{2:016x}"]
    assert children(server) != [pid] and "the gRPC port was killed (signal 9)" in server.log()


def children(server: HeddleProcess) -> list[int]:
    """The processes of the gRPC port."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words, stat = path.read_bytes().split(b"\0"), (path.parent / "stat").read_text()
        except OSError:
            continue
        if b"heddle.otlp_grpc" in words and int(stat.rpartition(")")[2].split()[1]) == server.process.pid:
            found.append(int(path.parent.name))
    return found


def test_keys(tmp_path: Path) -> None:
    """Every spelling of HTTP; nothing is read from a stranger."""
    data, port = tmp_path / "data", free_port()
    writer, reader = make_key(data, "ann", "--project", "team/one"), make_key(data, "eve", "--scope", "read")
    body = request(span()).SerializeToString()
    with HeddleProcess(data, auth="on", otlp_grpc_port=port) as server:
        for metadata in ({"wandb_key": writer}, {"x_key": writer}, {"authorization": f"Bearer {writer}"}):
            assert Client(port, **metadata).send(body) == b""
        stranger = Client(port)
        assert stranger.refusal(body)[0] is grpc.StatusCode.UNAUTHENTICATED
        assert stranger.begin().exception().code() is grpc.StatusCode.UNAUTHENTICATED
        assert Client(port, wandb_key="nonsense").refusal(body)[0] is grpc.StatusCode.UNAUTHENTICATED
        code, reason, _ = Client(port, wandb_key=reader).refusal(body)
        assert code is grpc.StatusCode.PERMISSION_DENIED and "scope 'write'" in reason
        elsewhere = Client(port, wandb_key=writer, project_id="team/two").refusal(body)
        assert elsewhere[0] is grpc.StatusCode.PERMISSION_DENIED
        headers = {"wandb-api-key": writer}
        answer = httpx.post(f"{server.url}/calls/query_stats", json={"project_id": "team/one"}, headers=headers)
        assert answer.json()["count"] == 1


@pytest.mark.thorough
def test_workers_answer_too(tmp_path: Path) -> None:
    port = free_port()
    with HeddleProcess(tmp_path / "data", workers=2, otlp_grpc_port=port) as server:
        Client(port, project_id="team/one").export(request(span()))
        assert len(Wire(server.url, "team/one").calls()) == 1


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=re.escape(f"Cannot listen on 127.0.0.1:{port}")):
            HeddleProcess(tmp_path / "data", otlp_grpc_port=port).start()
        checked = heddle("check", "--data", tmp_path / "data", "--port", "0", otlp_grpc_port=port)
    assert checked.returncode == 1 and "choose another with --otlp-grpc-port" in " ".join(checked.stdout.split())
