"""`python -m tests.support.garbage serve --port N`: heddle, whose process sends itself requests and counts what these
leave for the garbage collector."""

import gc
import http.client
import json
import os
import signal
import sys
import threading
from collections import Counter

from heddle.cli import main

COUNT = 20
"""Of each request, on a connection that is kept and on one of its own."""
_JSON = "application/json"
_FORM = "multipart/form-data; boundary=x"
_START = {"project_id": "a/b", "op_name": "x", "started_at": "2026-01-01T00:00:00Z", "attributes": {}, "inputs": {}}
_PARTS = (("name=project_id", "a/b"), ("name=file; filename=f", "content"))
_UPLOAD = "".join(f"--x\r\nContent-Disposition: form-data; {head}\r\n\r\n{text}\r\n" for head, text in _PARTS)
_NONE = {"project_id": "a/b", "object_id": "none"}
REQUESTS = (
    ("GET", "/health", "", "", 200),
    ("GET", "/nowhere", "", "", 404),
    ("POST", "/call/start", json.dumps({"start": _START}), _JSON, 200),
    ("POST", "/call/start", "{", _JSON, 422),
    ("POST", "/calls/stream_query", json.dumps({"project_id": "a/b"}), _JSON, 200),
    ("POST", "/obj/delete", json.dumps(_NONE), _JSON, 404),
    ("POST", "/files/create", f"{_UPLOAD}--x--\r\n", _FORM, 200),
    ("POST", "/files/create", _UPLOAD, _FORM, 422),
    ("POST", "/call/upsert_batch", json.dumps({"batch": [{}] * 3000}), _JSON, 422),
    ("POST", "/v1/chat/completions", json.dumps({"model": "m"}), _JSON, 422),
    ("POST", "/v1/completions", json.dumps({"model": "m", "prompt": {"a": 1}}), _JSON, 422),
    ("POST", "/v1/embeddings", json.dumps({"model": "m", "input": {"a": 1}}), _JSON, 422),
    ("POST", "/v1/responses", json.dumps({"model": "m", "input": [{"type": 5}]}), _JSON, 400),
)


def ask(connection: http.client.HTTPConnection, request: tuple[str, str, str, str, int]) -> None:
    """Send a request; raises AssertionError for another status."""
    method, path, body, kind, status = request
    headers = {"content-type": kind} if kind else {}
    if path.startswith("/v1/"):
        headers["authorization"] = "Bearer any"
    connection.request(method, path, body.encode() if body else None, headers)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == status, (path, answer.status, text)


def ask_all(port: int, count: int) -> None:
    """Send every request so many times on a connection that is kept, and so many on their own."""
    for request in REQUESTS:
        kept = http.client.HTTPConnection("127.0.0.1", port)
        for _ in range(count):
            ask(kept, request)
            once = http.client.HTTPConnection("127.0.0.1", port)
            ask(once, request)
            once.close()
        kept.close()


def watch(port: int) -> None:
    """Count once the server answers, and end it."""
    try:
        while True:
            try:
                ask_all(port, 2)
                break
            except ConnectionError:
                pass
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        ask_all(port, COUNT)
        gc.collect()
        print("found", len(gc.garbage), Counter(type(each).__name__ for each in gc.garbage), flush=True)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=watch, args=(int(sys.argv[sys.argv.index("--port") + 1]),), daemon=True).start()
    main()
