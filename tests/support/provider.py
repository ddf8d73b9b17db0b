"""A provider on this machine that speaks OpenAI's chat completions, and tells what it was asked."""

import base64
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Json = dict[str, Any]
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""One pixel as PNG."""
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 3,
    "total_tokens": 10,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}

ODD_CHUNKS: list[Json] = [
    {"id": "\ud800", "created": 10**30, "choices": [{"delta": {"content": [1], "reasoning": 5, "role": {}}}]},
    {"choices": [{"index": 10**30, "delta": {"content": "\udc00"}, "logprobs": {"content": [{"logprob": -1e999}]}}]},
    {"choices": [{"delta": {"content": "a", "reasoning": "b"}}], "usage": {"prompt_tokens": "x"}},
]
"""What no client of OpenAI's would expect: lone surrogates, endless numbers, a text that was a list."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that went away are what some tests are about."""


class FakeProvider:
    """Answers every chat with the last message's text in capitals.

    The model decides on failures: `model-missing` is 404, `model-html` no JSON, `model-moved` a redirect,
    `model-breaks` a stream that ends with an error, `model-odd` one of `ODD_CHUNKS`, `model-hangs` waits until `let_go`
    is set, `model-drips` sends a space now and then. Requests for images are
    answered with `PICTURE`, in the form that the model names.
    """

    def __init__(self) -> None:
        self.requests: list[Json] = []
        self.reply: Callable[[Json], str] = _shout
        """The text that answers the body of a chat."""
        self.next_failures: list[int] = []
        """Statuses that the next requests are answered with."""
        self.raw: bytes | None = None
        """The body that every chat is answered with, in place of its own."""
        self.loaded: list[str] = []
        self.key: str | None = None
        """What the list of models is shown for; None: to everybody."""
        self.inner_url = ""
        self.let_go = threading.Event()
        self.gone = threading.Event()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                provider.serve(self)

            def do_GET(self) -> None:
                if self.path == "/v1/models":
                    provider.serve_models(self)
                else:
                    provider.serve_image(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> "FakeProvider":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
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
        if self.next_failures:
            _send(handler, self.next_failures.pop(0), '{"error": {"message": "not now"}}')
            return
        if self.raw is not None:
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(self.raw)
            return
        failures = {
            "model-missing": (404, '{"error": {"message": "no such model", "type": "NotFoundError"}}'),
            "model-html": (200, "<html>"),
            "model-deep": (200, "[" * 100_000),
            "model-deep-object": (200, '{"a":' * 900 + "1" + "}" * 900),
            "model-surrogate": (200, '{"model": "\\ud800", "choices": [], "usage": {"total_tokens": 1e999}}'),
            "model-oddly-wrong": (429, '{"error": {"message": "\\ud800"}}'),
            "model-deeply-wrong": (400, "[" * 60_000),
            "model-moved": (302, ""),
        }
        if body["model"] == "model-drips":
            self._drip(handler)
        elif handler.path.endswith("/images/generations") and body["model"] not in failures:
            _send(handler, 200, json.dumps(self._images(body)))
        elif body["model"] in failures:
            _send(handler, *failures[body["model"]])
        elif body.get("stream"):
            self._stream(handler, body)
        else:
            if body["model"] == "model-hangs":
                self.let_go.wait(60)
            _send(handler, 200, json.dumps(_whole(body, self.reply(body))))

    def serve_models(self, handler: BaseHTTPRequestHandler) -> None:
        """List two models to whoever has the key, where there is one."""
        self.requests.append({"path": handler.path, "headers": dict(handler.headers.items()), "body": None})
        known = self.key is None or handler.headers.get("authorization") == f"Bearer {self.key}"
        refused = '{"error": {"message": "Incorrect API key provided"}}'
        _send(handler, *((200, '{"data": [{"id": "b"}, {"id": "a"}]}') if known else (401, refused)))

    def serve_image(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer the request for an image that an answer named."""
        self.loaded.append(handler.path)
        handler.send_response(200 if handler.path == "/picture.png" else 404)
        handler.send_header("content-length", str(len(PICTURE)))
        handler.end_headers()
        handler.wfile.write(PICTURE)

    def _images(self, body: Json) -> Json:
        """An image per `n`, in the form that the model names: `as-...` says which address."""
        encoded = base64.b64encode(PICTURE).decode()
        forms = {
            "picture": {"b64_json": encoded, "revised_prompt": f"A {body['prompt']}"},
            "as-url": {"url": self.url.removesuffix("/v1") + "/picture.png"},
            "as-lost-url": {"url": self.url.removesuffix("/v1") + "/lost.png"},
            "as-data-url": {"url": f"data:image/png;base64,{encoded}"},
            "as-inner-url": {"url": self.inner_url},
            "as-text": {"b64_json": base64.b64encode(b"hello").decode()},
            "as-noise": {"b64_json": "!!!"},
        }
        data = [forms[body["model"]]] * body.get("n", 1) if body["model"] in forms else []
        usage = {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12}
        return {"created": 1, "data": data, **({} if body["model"] == "as-url" else {"usage": usage})}

    def _stream(self, handler: BaseHTTPRequestHandler, body: Json) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.end_headers()
        try:
            for number, chunk in enumerate(ODD_CHUNKS if body["model"] == "model-odd" else _chunks(body)):
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

    def _drip(self, handler: BaseHTTPRequestHandler) -> None:
        """A body that goes on until it is let go."""
        handler.send_response(200)
        handler.end_headers()
        try:
            while not self.let_go.wait(0.1):
                handler.wfile.write(b" ")
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


def _shout(body: Json) -> str:
    return str(body["messages"][-1]["content"]).upper()


def _whole(body: Json, text: str) -> Json:
    message = {"role": "assistant", "content": text}
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

    text = [part({"content": letter}) for letter in _shout(body)]
    return [
        part({"role": "assistant", "content": ""}),
        *text,
        part({}, "stop"),
        {**base, "choices": [], "usage": USAGE},
    ]
