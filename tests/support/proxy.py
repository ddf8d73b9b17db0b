"""A proxy that shows a server under a path, as operators put one in front: it takes the path off."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import ClassVar

_HOP = frozenset(("connection", "transfer-encoding", "content-length", "keep-alive"))


class PrefixProxy:
    """Listens on a port of its own; a context manager. What lies outside the prefix is answered 404."""

    def __init__(self, port: int, prefix: str) -> None:
        handler = type("Handler", (_Handler,), {"port": port, "prefix": prefix})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "PrefixProxy":
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    port: ClassVar[int]
    prefix: ClassVar[str]

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self.path.startswith(self.prefix + "/"):
            self.send_error(404, "outside the path of this server")
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        upstream.request(self.command, self.path.removeprefix(self.prefix), body, dict(self.headers))
        answer = upstream.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        upstream.close()

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _pass_on

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
