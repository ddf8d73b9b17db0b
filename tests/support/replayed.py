"""HTTP answers of another product: recorded on their way through, or given again from a recording."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
Answer = Callable[[str, str, Any], tuple[int, Any]]
"""From method, target and JSON body to status and JSON answer (bytes go as they are)."""


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    """The address of a server that answers so."""

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            status, said = answer(self.command, self.path, json.loads(self.rfile.read(length) or b"null"))
            content = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = _handle

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()


def recorder(address: str, exchanges: list[Json]) -> Answer:
    """Passes requests on to an address, and notes what was asked and answered."""

    def answer(method: str, target: str, body: Any) -> tuple[int, Any]:
        content = None if method == "GET" else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(address + target, content, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status, said = response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            status, said = error.code, {"detail": error.reason}
        exchanges.append({"method": method, "target": target, "body": body, "status": status, "answer": said})
        return status, said

    return answer


def replay(exchanges: list[Json]) -> Answer:
    """Gives the recorded answer of the same request, 404 for any other."""
    known = {(one["method"], one["target"], json.dumps(one["body"])): one for one in exchanges}

    def answer(method: str, target: str, body: Any) -> tuple[int, Any]:
        found = known.get((method, target, json.dumps(body)))
        return (404, {"detail": f"not recorded: {target}"}) if found is None else (found["status"], found["answer"])

    return answer
