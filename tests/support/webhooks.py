"""A receiver of webhooks that checks signatures by itself and can refuse for a while."""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from tests.support.chat import until

R = TypeVar("R")


class Receiver:
    """What came: `messages` are parsed bodies with their ids, in order; `refuse` counts down refusals (503)."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.attempts: list[str] = []
        self.refuse = 0
        self.secrets: dict[str, str] = {}
        self._condition = threading.Lock()

    def take(self, headers: Any, body: bytes) -> int:
        """The status to answer."""
        message_id, timestamp = headers["webhook-id"], headers["webhook-timestamp"]
        with self._condition:
            self.attempts.append(message_id)
            if self.refuse:
                self.refuse -= 1
                return 503
            parsed = json.loads(body)
            signed = f"{message_id}.{timestamp}.".encode() + body
            key = base64.b64decode(self.secrets[parsed["data"]["alert_id"]].removeprefix("whsec_"))
            expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
            self.messages.append({**parsed, "id": message_id, "signed": headers["webhook-signature"] == expected})
            return 204

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """The messages, once there are so many."""
        until(lambda: len(self.messages) >= count, f"{count} messages")
        return self.messages


class PlainReceiver:
    """Takes everything: `bodies` are path, parsed body and headers, in order."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, Any, dict[str, str]]] = []

    def take(self, path: str, headers: Any, body: bytes) -> int:
        """The status to answer."""
        self.bodies.append((path, json.loads(body), dict(headers.items())))
        return 200


def receiving() -> AbstractContextManager[tuple[Receiver, str]]:
    """A receiver of signed messages and its address."""
    receiver = Receiver()
    return _serving(receiver, lambda _, headers, body: receiver.take(headers, body), "/hooks")


def receiving_plain() -> AbstractContextManager[tuple[PlainReceiver, str]]:
    """A receiver of any messages and its address."""
    receiver = PlainReceiver()
    return _serving(receiver, receiver.take, "")


@contextmanager
def _serving(receiver: R, take: Callable[[str, Any, bytes], int], path: str) -> Iterator[tuple[R, str]]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(take(self.path, self.headers, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver, f"http://127.0.0.1:{server.server_address[1]}{path}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
