"""Rows for fine-tuning from files, datasets and allowed addresses."""

import asyncio
import http.server
import ssl
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle import certificates
from heddle.auth import LOCAL, Caller, Grant
from heddle.errors import Forbidden, HeddleError, InvalidRequest, NotFound, TooLarge, ValidationFailed
from heddle.services import Services
from heddle.trace.training_data import TrainingData
from tests.support.inprocess import Trace, running_services

PROJECT = "team/tuned"
ROWS = [{"messages": [{"role": "user", "content": str(n)}]} for n in range(3)]
LINES = b'{"a": 1}\n\n{"a": 2}\r\n'
Test = Callable[[Services, Trace], Awaitable[None]]
BOUND = Caller("eve", (Grant.parse("editor:team/other"),))


def with_services(folder: Path, test: Test, sources: str = "none") -> None:
    """Run a test with an open services."""

    async def run() -> None:
        async with running_services(folder / "data", training_sources=sources) as (services, client):
            await test(services, Trace(client, PROJECT))

    asyncio.run(run())


async def rows(services: Services, url: str, caller: Caller = LOCAL, max_bytes: int = 1 << 20) -> list[dict[str, Any]]:
    """What is read."""
    return await TrainingData(services.settings, services.store).read(caller, PROJECT, url, max_bytes)


async def uploaded(trace: Trace, content: bytes) -> str:
    """The digest of an uploaded file."""
    answer = await trace.client.post("/file/create", data={"project_id": trace.project}, files={"file": ("f", content)})
    return str(answer.json()["digest"])


def test_an_uploaded_file_is_read(tmp_path: Path) -> None:
    async def test(services: Services, trace: Trace) -> None:
        digest = await uploaded(trace, LINES)
        assert await rows(services, digest) == [{"a": 1}, {"a": 2}]
        with pytest.raises(TooLarge, match="max_training_body"):
            await rows(services, digest, max_bytes=len(LINES) - 1)
        with pytest.raises(Forbidden):
            await rows(services, digest, BOUND)
        with pytest.raises(NotFound):
            await rows(services, "A" * 43)

    with_services(tmp_path, test)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b'{"a": 1}\n\n[2]\n', "line 3 is not a JSON object"), (b'{"a": 1}\n{"a"', "line 2 is not valid JSON")],
)
def test_a_file_that_is_no_jsonl_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    async def test(services: Services, trace: Trace) -> None:
        with pytest.raises(InvalidRequest, match=reason) as caught:
            await rows(services, await uploaded(trace, content))
        assert caught.value.param == "training_data_url"

    with_services(tmp_path, test)


def test_a_dataset_is_read(tmp_path: Path) -> None:
    async def test(services: Services, trace: Trace) -> None:
        ref = await trace.dataset("chats", ROWS)
        assert await rows(services, ref) == ROWS
        assert await rows(services, ref.rpartition(":")[0] + ":latest") == ROWS
        inline = await trace.publish("inline", {"_type": "Dataset", "rows": ROWS[:1]})
        assert await rows(services, inline) == ROWS[:1]
        with pytest.raises(TooLarge):
            await rows(services, ref, max_bytes=20)
        with pytest.raises(Forbidden):
            await rows(services, ref, BOUND)
        with pytest.raises(NotFound):
            await rows(services, f"weave:///{PROJECT}/object/none:latest")
        with pytest.raises(InvalidRequest, match="not a Dataset"):
            await rows(services, await trace.publish("other", {"x": 1}))
        with pytest.raises(InvalidRequest, match="row 1 of the dataset is not an object"):
            await rows(services, await trace.publish("mixed", {"rows": [{}, 1]}))
        lost = f"weave:///{PROJECT}/table/" + "0" * 64
        with pytest.raises(NotFound, match="Table"):
            await rows(services, await trace.publish("lost", {"rows": lost}))

    with_services(tmp_path, test)


@pytest.mark.parametrize(
    "url",
    [
        *("", "rows.jsonl", "weave:///x", "weave:///team/tuned/call/1", "weave:///team/tuned/object/a:v0/attr/rows"),
        *("http://127.0.0.1/allowed/rows", "ftp://host/x", "https://[::1/x", "https://other.example/allowed/rows"),
        *("https://host.example/allowed-not/rows", "https://host.example/allowed/../secret"),
        *("https://host.example/allowed/%2e%2e/secret", "https://host.example@evil.example/allowed/x"),
        *("https://host.example.evil/allowed/x", "file:///etc/passwd", "file://host.example/allowed/rows", "\0"),
    ],
)
def test_other_addresses_are_refused(tmp_path: Path, url: str) -> None:
    async def test(services: Services, _trace: Trace) -> None:
        with pytest.raises(ValidationFailed) as caught:
            await rows(services, url)
        assert caught.value.detail[0]["loc"] == ["body", "training_data_url"]

    with_services(tmp_path, test, "https://host.example/allowed, file:///nowhere/allowed/")


def test_files_of_allowed_folders_are_read(tmp_path: Path) -> None:
    folder, secret = tmp_path / "allowed", tmp_path / "secret.jsonl"
    folder.mkdir()
    secret.write_bytes(LINES)
    (folder / "rows 1.jsonl").write_bytes(LINES)
    (folder / "link.jsonl").symlink_to(secret)

    async def test(services: Services, _trace: Trace) -> None:
        assert await rows(services, f"file://{folder}/rows%201.jsonl") == [{"a": 1}, {"a": 2}]
        with pytest.raises(TooLarge):
            await rows(services, f"file://{folder}/rows%201.jsonl", max_bytes=3)
        refused: list[tuple[str, type[HeddleError]]] = [
            (f"{folder}/link.jsonl", ValidationFailed),
            (f"{folder}/../secret.jsonl", ValidationFailed),
            (str(secret), ValidationFailed),
            (f"{folder}/none", NotFound),
            (str(folder), NotFound),
        ]
        for path, kind in refused:
            with pytest.raises(kind):
                await rows(services, f"file://{path}")

    with_services(tmp_path, test, f"file://{folder}")


class Pages(http.server.BaseHTTPRequestHandler):
    """Rows, a redirect to them, and nothing else."""

    def do_GET(self) -> None:
        """Answer."""
        status = {"/data/rows": 200, "/data/moved": 302}.get(self.path, 404)
        self.send_response(status)
        self.send_header("location", "/data/rows")
        self.end_headers()
        self.wfile.write(LINES if status == 200 else b"")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an HTTPS server whose certificate is trusted."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *names]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    certificates.read.cache_clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"https://localhost:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    certificates.read.cache_clear()


def test_allowed_addresses_are_read(tmp_path: Path, site: str) -> None:
    async def test(services: Services, _trace: Trace) -> None:
        assert await rows(services, f"{site}/data/rows") == [{"a": 1}, {"a": 2}]
        with pytest.raises(TooLarge):
            await rows(services, f"{site}/data/rows", max_bytes=3)
        with pytest.raises(InvalidRequest, match="returned 302"):
            await rows(services, f"{site}/data/moved")
        with pytest.raises(InvalidRequest, match="returned 404"):
            await rows(services, f"{site}/data/none")
        with pytest.raises(InvalidRequest, match="cannot be read"):
            await rows(services, "https://localhost:1/data/rows")

    with_services(tmp_path, test, f"{site}/data,https://localhost:1/data")
