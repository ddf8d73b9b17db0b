"""A receiver of webhooks that checks signatures by itself and can refuse for a while."""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.chat import until


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


@contextmanager
def receiving() -> Iterator[tuple[Receiver, str]]:
    """A receiver and its address."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self.send_response(receiver.take(self.headers, body))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver, f"http://127.0.0.1:{server.server_address[1]}/hooks"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
