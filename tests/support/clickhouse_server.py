"""An HTTP look-alike of a ClickHouse server over chDB, the same engine in process: `python -m ... FOLDER PORT`.

It speaks what clickhouse-connect's ordinary clients send: queries with bound parameters and settings, native inserts
(plain, lz4 or gzip), several databases, errors with their codes. It is also both shards of the cluster `two`.
"""

import gzip
import io
import queue
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import lz4.frame
from chdb import session
from python_multipart import parse_form
from python_multipart.multipart import Field

_FORMAT = re.compile(r"\sFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_INSERT_HEAD = re.compile(rb"\s*INSERT\s.*?FORMAT\s+(\w+)\s", re.IGNORECASE | re.DOTALL)
_CODE = re.compile(r"Code:\s*(\d+)")
_OWN = {"query", "database", "default_format", "session_id", "query_id", "user", "password", "compress", "decompress"}
_OWN |= {"client_protocol_version", "enable_http_compression", "session_timeout", "session_check", "role"}
# What the embedded engine lacks or what its answers do not need.
_OWN |= {"wait_end_of_query", "send_progress_in_http_headers", "http_headers_progress_interval_ms", "async_insert"}
_OWN |= {"wait_for_async_insert", "cancel_http_readonly_queries_on_client_close"}

_SHARD = "<shard><replica><host>127.0.0.1</host><port>9000</port></replica></shard>"
_CONFIG = f"""<clickhouse><tcp_port>9000</tcp_port>
<remote_servers><two>{2 * _SHARD}</two></remote_servers></clickhouse>"""
"""The port is the engine's own, so that it asks itself and opens no connection."""


class Engine:
    """Sessions over one folder, one per query that runs."""

    def __init__(self, folder: str) -> None:
        config = Path(f"{folder}.xml")
        config.write_text(_CONFIG)
        self._folder = f"{folder}?config-file={config}"
        self._root = session.Session(self._folder)
        self._idle: queue.LifoQueue[Any] = queue.LifoQueue()

    @contextmanager
    def session(self, database: str | None) -> Iterator[Any]:
        """A session that nobody else uses meanwhile, in a database."""
        try:
            taken = self._idle.get_nowait()
        except queue.Empty:
            taken = session.Session(self._folder)
        try:
            taken.query(f"USE `{database or 'default'}`")
            yield taken
        finally:
            self._idle.put(taken)


class Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    engine: Engine

    def do_GET(self) -> None:
        """The same as POST."""
        self.do_POST()

    def do_POST(self) -> None:
        """Run one statement."""
        address = urlsplit(self.path)
        parameters = dict(parse_qsl(address.query, keep_blank_values=True))
        body = self._body()
        if self.headers.get_content_maintype() == "multipart":
            parameters, body = parameters | _form(self.headers["Content-Type"], body), b""
        if address.path.startswith("/ping"):
            return self._answer(200, b"Ok.\n")
        try:
            with self.engine.session(parameters.get("database")) as opened:
                content, form = run(opened, parameters, body)
        except Exception as error:  # whatever the engine says is the client's to read
            found = _CODE.search(str(error))
            return self._answer(500, str(error).encode(), ("X-ClickHouse-Exception-Code", found[1] if found else "1"))
        return self._answer(200, content, ("X-ClickHouse-Format", form))

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = []
            while size := int(self.rfile.readline().strip() or b"0", 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(pieces)
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        packing = self.headers.get("Content-Encoding")
        return _frames(body) if packing == "lz4" else gzip.decompress(body) if packing == "gzip" else body

    def _answer(self, status: int, content: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-ClickHouse-Summary", '{"read_rows":"0"}')
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing: the tests look at answers."""


def run(opened: Any, parameters: dict[str, str], body: bytes) -> tuple[bytes, str]:
    """The answer of one statement and its format; raises what the engine raises."""
    statement = parameters.get("query")
    if statement is None:
        head = _INSERT_HEAD.match(body)
        statement, body = (head.group(0).decode(), body[head.end() :]) if head else (body.decode(), b"")
    if body and re.match(r"\s*INSERT", statement, re.IGNORECASE):
        return _insert(opened, statement, parameters, body)
    asked = _FORMAT.search(statement)
    form = asked[1] if asked else parameters.get("default_format", "TabSeparated")
    statement = statement[: asked.start()] if asked else statement
    if re.match(r"\s*(SELECT|WITH)\b", statement, re.IGNORECASE):
        statement += _settings(parameters)
    values = {name[6:]: value for name, value in parameters.items() if name.startswith("param_")}
    result = opened.query(statement, form, params=values) if values else opened.query(statement, form)
    return (result.bytes() if hasattr(result, "bytes") else b""), form


def _form(kind: str, body: bytes) -> dict[str, str]:
    """The fields that clients send in place of an address that would be too long."""
    fields: dict[str, str] = {}

    def add(field: Field) -> None:
        fields[field.field_name.decode()] = (field.value or b"").decode()

    headers = {"Content-Type": kind.encode(), "Content-Length": str(len(body)).encode()}
    parse_form(headers, io.BytesIO(body), add, None)
    return fields


def _frames(packed: bytes) -> bytes:
    """What lz4 frames hold; clients send one for each block of rows."""
    blocks, at = [], 0
    while at < len(packed):
        block, size = lz4.frame.decompress(memoryview(packed)[at:], return_bytes_read=True)
        blocks.append(block)
        at += size
    return b"".join(blocks)


def _insert(opened: Any, statement: str, parameters: dict[str, str], body: bytes) -> tuple[bytes, str]:
    asked = _FORMAT.search(statement.rstrip())
    form = asked[1] if asked else "Native"
    statement = statement[: asked.start()] if asked else statement
    insert = opened._conn.send_insert(statement + _settings(parameters), form)
    insert.append(body)
    insert.finish()
    return b"", form


def _settings(parameters: dict[str, str]) -> str:
    given = {name: value for name, value in parameters.items() if name not in _OWN and not name.startswith("param_")}
    if not given:
        return ""
    return "\nSETTINGS " + ", ".join(f"{name} = {_value(value)}" for name, value in given.items())


def _value(text: str) -> str:
    return text if re.fullmatch(r"-?\d+(\.\d+)?", text) else "'" + text.replace("'", "\\'") + "'"


def main(folder: str, port: str) -> None:
    """Serve until killed."""
    Handler.engine = Engine(folder)
    ThreadingHTTPServer.request_queue_size = 128
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    server.daemon_threads = True
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
