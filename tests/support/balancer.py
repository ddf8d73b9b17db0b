"""A balancer as operators put one in front of several servers: in turns, to those whose /ready says 200; no retries."""

import http.client
import itertools
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import urlsplit

_LOOK_SECONDS = 0.1
_HOP = frozenset(("connection", "transfer-encoding", "content-length", "keep-alive"))


class Balancer:
    """Listens on a port of its own; a context manager."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._addresses = [urlsplit(url).netloc for url in urls]
        self._ready: list[str] = []
        self._turns = itertools.count()
        self._ending = threading.Event()
        handler = type("Handler", (_Handler,), {"balancer": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def chosen(self) -> str | None:
        """The server whose turn it is."""
        ready = self._ready
        return ready[next(self._turns) % len(ready)] if ready else None

    def _look(self) -> None:
        while not self._ending.is_set():
            self._ready = [address for address in self._addresses if _is_ready(address)]
            self._ending.wait(_LOOK_SECONDS)

    def __enter__(self) -> "Balancer":
        threading.Thread(target=self._look, daemon=True).start()
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._ending.set()
        self._server.shutdown()
        self._server.server_close()


def _is_ready(address: str) -> bool:
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    balancer: ClassVar[Balancer]

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        address = self.balancer.chosen()
        if address is None:
            self.send_error(502, "no server is ready")
            return
        upstream = http.client.HTTPConnection(address, timeout=60)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers))
            answer = upstream.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            self.send_error(502, f"{address}: {error!r}")
            return
        finally:
            upstream.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _pass_on

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
