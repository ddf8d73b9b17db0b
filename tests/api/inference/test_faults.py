"""Clients that go away, a worker and a server that die, a server that stops, a server without the extra."""

import contextlib
import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.chat import API_KEY, Chat, data_lines, error_of, joined, until
from tests.support.server import HeddleProcess, ParentProcess

ENDLESS = {"max_tokens": 1500, "ignore_eos": True}


def request_bytes(chat: Chat, **fields: object) -> bytes:
    """A streaming request as raw HTTP."""
    body = json.dumps(chat.body(stream=True, **fields)).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {API_KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def open_stream(port: int, payload: bytes, wait_for: bytes) -> socket.socket:
    """A connection whose stream has begun, known by what has arrived."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(payload)
    received = b""
    while wait_for not in received:
        part = connection.recv(65536)
        assert part, received[-500:]
        received += part
    return connection


def workers(process: HeddleProcess) -> list[psutil.Process]:
    """The processes below a server."""
    assert process.process is not None
    return psutil.Process(process.process.pid).children(recursive=True)


def engine_worker(process: HeddleProcess) -> psutil.Process:
    """The process that holds the model: the largest below the server."""
    return max(workers(process), key=lambda child: child.memory_info().rss)


def test_a_client_that_goes_away_frees_its_place(chat: Chat, server: HeddleProcess) -> None:
    """Closed after the first chunks: nothing runs, waits or holds blocks, and it counts as aborted."""
    chat.answer()
    before = chat.engine()["aborted"]
    for _ in range(5):
        open_stream(server.port, request_bytes(chat, **ENDLESS), b"data: ").close()
    figures = chat.until_idle()
    assert figures["aborted"] >= before + 5 and figures["kv_blocks_used"] == 0
    assert chat.answer()["choices"]


def test_a_client_that_goes_away_while_it_waits_for_a_whole_answer(chat: Chat, server: HeddleProcess) -> None:
    chat.answer()
    before = chat.engine()["aborted"]
    body = json.dumps(chat.body(**ENDLESS)).encode()
    payload = request_bytes(chat).split(b"content-length")[0] + b"content-length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(payload)
        until(lambda: chat.engine()["running"] > 0, "the request runs")
    assert chat.until_idle()["aborted"] > before


def test_half_a_request_is_no_request(chat: Chat, server: HeddleProcess) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(request_bytes(chat)[:-5])
    chat.answer()


def test_a_killed_worker_ends_its_requests_with_an_error_and_comes_back(tmp_path: Path) -> None:
    """A stream gets a data line with the error, a whole answer is 503; the server stays ready and goes on."""
    with ParentProcess(tmp_path / "data") as process, Chat(process.url) as chat, ThreadPoolExecutor(1) as pool:
        tokens = chat.token_ids()
        with chat.streaming(**ENDLESS) as stream:
            pieces = stream.iter_text()
            text = next(pieces)
            waiting = pool.submit(chat.ask, **ENDLESS)
            with Chat(process.url) as other:
                until(lambda: other.engine()["running"] == 2, "both requests run")
            engine_worker(process).send_signal(signal.SIGKILL)
            text += "".join(pieces)
        lines = data_lines(text)
        assert lines[-1] == "[DONE]"
        error = json.loads(lines[-2])["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["code"] == 503
        answer = waiting.result()
        assert answer.status_code == 503 and "retry-after" in answer.headers
        assert error_of(answer)["type"] == "ServiceUnavailableError"
        assert httpx.get(process.url + "/ready").status_code == 200
        assert httpx.post(process.url + "/calls/query_stats", json={"project_id": "a/b"}).status_code == 200
        assert chat.token_ids() == tokens
        assert chat.until_idle()["kv_blocks_used"] == 0


@pytest.mark.thorough
def test_sigterm_ends_streams_and_the_worker(tmp_path: Path) -> None:
    """A stream in flight comes to its end within the grace, the exit code is 0, no process is left."""
    with ParentProcess(tmp_path / "data") as process, Chat(process.url) as chat:
        chat.answer()
        below = workers(process)
        assert below
        with chat.streaming(max_tokens=300, ignore_eos=True) as stream:
            pieces = stream.iter_text()
            text = next(pieces)
            assert process.process is not None
            process.process.send_signal(signal.SIGTERM)
            text += "".join(pieces)
        lines = data_lines(text)
        assert lines[-1] == "[DONE]"
        assert json.loads(lines[-2])["choices"][0]["finish_reason"] == "length"
        assert process.process.wait(60) == 0
        assert not psutil.wait_procs(below, timeout=120)[1]
        assert "Traceback" not in process.log()


@pytest.mark.soak
@pytest.mark.skipif(os.environ.get("HEDDLE_SOAK") != "1", reason="one more server; runs with HEDDLE_SOAK=1")
def test_sigterm_cuts_streams_after_the_grace(tmp_path: Path) -> None:
    """What is not done when the grace is over is cut; still exit code 0 and no process left."""
    with ParentProcess(tmp_path / "data", shutdown_grace=1) as process, Chat(process.url) as chat:
        chat.answer()
        below = workers(process)
        with chat.streaming(max_tokens=30_000, ignore_eos=True) as stream:
            pieces = stream.iter_text()
            text = next(pieces)
            assert process.process is not None
            process.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(httpx.RemoteProtocolError):
                text += "".join(pieces)
        assert process.process.wait(60) == 0
        assert not psutil.wait_procs(below, timeout=120)[1]


def test_a_killed_server_leaves_no_worker(tmp_path: Path) -> None:
    with ParentProcess(tmp_path / "data") as process, Chat(process.url) as chat:
        chat.answer()
        below = workers(process)
        assert below
        process.kill()
        assert not psutil.wait_procs(below, timeout=120)[1]


def test_a_long_prompt_does_not_starve_short_chats(chat: Chat) -> None:
    """A prompt near the length of the context beside short chats: all succeed."""
    limit = next(
        model["max_model_len"] for model in chat.client.get("/v1/models").json()["data"] if model["id"] == chat.model
    )
    words = min(limit - 200, 2000)
    messages = [{"role": "user", "content": "lamp " * words}]
    with ThreadPoolExecutor(9) as pool:
        long = pool.submit(chat.answer, messages=messages, truncate_prompt_tokens=words)
        short = list(pool.map(lambda _: chat.answer(ignore_eos=True), range(16)))
        assert long.result()["usage"]["prompt_tokens"] == words
    assert all(answer["usage"]["completion_tokens"] == 4 for answer in short)
    assert chat.until_idle()["kv_blocks_used"] == 0


def test_streams_are_whole_beside_each_other(chat: Chat) -> None:
    alone = joined(chat.chunks(max_tokens=20, ignore_eos=True))
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: joined(chat.chunks(max_tokens=20, ignore_eos=True)), range(16)))
    assert texts == [alone] * 16
