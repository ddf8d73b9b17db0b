"""A provider on this machine that speaks OpenAI's chat completions, and tells what it was asked."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Json = dict[str, Any]
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that went away are what some tests are about."""


class FakeProvider:
    """Answers every chat with the last message's text in capitals.

    The model decides on failures: `model-missing` is 404, `model-html` no JSON, `model-moved` a redirect,
    `model-breaks` a stream that ends with an error, `model-hangs` waits until `let_go` is set.
    """

    def __init__(self) -> None:
        self.requests: list[Json] = []
        self.let_go = threading.Event()
        self.gone = threading.Event()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                provider.serve(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> "FakeProvider":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_go.set()
        self._server.shutdown()
        self._server.server_close()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        self.requests.append({"path": handler.path, "headers": dict(handler.headers.items()), "body": body})
        failures = {
            "model-missing": (404, '{"error": {"message": "no such model", "type": "NotFoundError"}}'),
            "model-html": (200, "<html>"),
            "model-moved": (302, ""),
        }
        if body["model"] in failures:
            _send(handler, *failures[body["model"]])
        elif body.get("stream"):
            self._stream(handler, body)
        else:
            if body["model"] == "model-hangs":
                self.let_go.wait(60)
            _send(handler, 200, json.dumps(_whole(body)))

    def _stream(self, handler: BaseHTTPRequestHandler, body: Json) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.end_headers()
        try:
            for number, chunk in enumerate(_chunks(body)):
                handler.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
                handler.wfile.flush()
                if body["model"] == "model-breaks" and number == 1:
                    handler.wfile.write(b'data: {"error": {"message": "the engine died"}}\n\n')
                    return
                if body["model"] == "model-hangs":
                    self._wait_for_the_end(handler)
                    return
            handler.wfile.write(b"data: [DONE]\n\n")
        except OSError:
            self.gone.set()

    def _wait_for_the_end(self, handler: BaseHTTPRequestHandler) -> None:
        """Until the other side closes the connection."""
        handler.connection.settimeout(60)
        if handler.connection.recv(1) == b"":
            self.gone.set()


def _send(handler: BaseHTTPRequestHandler, status: int, text: str) -> None:
    handler.send_response(status)
    if status == 302:
        handler.send_header("location", "http://127.0.0.1:9/")
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(text)))
    handler.end_headers()
    handler.wfile.write(text.encode())


def _reply(body: Json) -> str:
    return str(body["messages"][-1]["content"]).upper()


def _whole(body: Json) -> Json:
    message = {"role": "assistant", "content": _reply(body)}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [choice],
        "usage": USAGE,
    }


def _chunks(body: Json) -> list[Json]:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}

    def part(delta: Json, finish: str | None = None) -> Json:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    text = [part({"content": letter}) for letter in _reply(body)]
    return [
        part({"role": "assistant", "content": ""}),
        *text,
        part({}, "stop"),
        {**base, "choices": [], "usage": USAGE},
    ]
