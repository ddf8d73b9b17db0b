"""Addresses of files that need no key for a while."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from heddle.errors import Forbidden
from heddle.http.signing import Signer, check_signature
from heddle.store.data_folder import secret
from tests.conftest import Wire
from tests.support.cli import make_key
from tests.support.server import HeddleProcess


def upload(wire: Wire, content: bytes) -> str:
    """The digest of a new file."""
    answer = wire.client.post("/file/create", data={"project_id": wire.project}, files={"file": ("f", content)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["digest"])


def resolve(wire: Wire, *uris: str) -> httpx.Response:
    """The answer of /files/resolve_url."""
    return wire.client.post("/files/resolve_url", json={"project_id": wire.project, "uris": list(uris)})


def test_both_forms_of_a_file_become_addresses(wire: Wire) -> None:
    first, second = upload(wire, b"one"), upload(wire, b"two")
    answer = resolve(wire, first, f"weave:///{wire.project}/file/{second}", first).json()
    contents = [httpx.get(url) for url in answer["download_urls"]]
    assert [found.content for found in contents] == [b"one", b"two", b"one"]
    assert contents[0].headers["content-disposition"] == "attachment"
    assert answer["expires_at"].endswith("Z")
    assert resolve(wire).json()["download_urls"] == []


@pytest.mark.parametrize(
    ("uri", "status"),
    [
        ("s3://bucket/key", 400),
        ("", 400),
        ("https://example.com/x", 400),
        (f"weave:///other/project/file/{'x' * 43}", 400),
        ("weave:///a", 400),
        ("x" * 43, 404),
    ],
)
def test_other_uris_are_refused(wire: Wire, uri: str, status: int) -> None:
    answer = resolve(wire, uri)
    assert answer.status_code == status, answer.text
    assert answer.json()["reason"]


@pytest.mark.parametrize("size", [3, 3 << 20])
def test_head_tells_the_size_of_a_file(wire: Wire, size: int) -> None:
    (url,) = resolve(wire, upload(wire, b"x" * size)).json()["download_urls"]
    with httpx.Client() as client:
        head = client.head(url)
        assert (head.status_code, head.headers["content-length"], head.content) == (200, str(size), b"")
        assert len(client.get(url).content) == size


def test_an_address_cannot_be_made_up_or_changed(wire: Wire) -> None:
    mine, other = upload(wire, b"mine"), upload(wire, b"other")
    (url,) = resolve(wire, mine).json()["download_urls"]
    fields = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    changes: list[dict[str, Any]] = [
        {"digest": other}, {"project": "x"}, {"expires": int(fields["expires"]) + 1}, {"signature": "0" * 64},
        {"signature": "é"},
    ]  # fmt: skip
    for change in changes:
        answer = wire.client.get("/files/download", params={**fields, **change})
        assert answer.status_code == 403, change
    missing = {name: value for name, value in fields.items() if name != "signature"}
    assert wire.client.get("/files/download", params=missing).status_code == 422


def test_an_address_needs_no_key_and_outlives_a_restart(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = make_key(data, "team", "--entity", "team")
    server = HeddleProcess(data, auth="on").start()
    try:
        wire = Wire(server.url, "team/p")
        wire.client.auth = httpx.BasicAuth("api", key)
        (url,) = resolve(wire, upload(wire, b"secret")).json()["download_urls"]
        assert httpx.get(url).content == b"secret"
        bare = httpx.post(f"{server.url}/files/resolve_url", json={"project_id": "team/p", "uris": []})
        assert bare.status_code == 401
        server.terminate()
        server.start()
        assert httpx.get(url).content == b"secret"
        assert stat.S_IMODE((data / "secret").stat().st_mode) == 0o600
    finally:
        server.kill()


def test_an_address_ends_after_its_time() -> None:
    signer = Signer("http://server/", b"key", 1000)
    query = parse_qs(urlsplit(signer.address("files/download", project="p", digest="d")).query)
    signature, said = query["signature"][0], ("files/download", "p", "d")
    check_signature(b"key", signature, 999, 1000, *said)
    with pytest.raises(Forbidden, match="expired at 1970-01-01"):
        check_signature(b"key", signature, 1000, 1000, *said)
    with pytest.raises(Forbidden, match="not signed by this server"):
        check_signature(b"other", signature, 999, 1000, *said)
    with pytest.raises(Forbidden, match="not signed by this server"):
        check_signature(b"key", signature, 999, 1000, "other/route", "p", "d")


def test_servers_that_share_a_folder_sign_alike(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [pool.submit(secret.__wrapped__, tmp_path) for _ in range(16)]
    assert len({key.result() for key in made}) == 1 and len(made[0].result()) == 32
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
