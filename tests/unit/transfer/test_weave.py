"""A Weave project that is read over its API and stored again answers as before; heddle itself is the source."""

import asyncio
from pathlib import Path

import httpx
import pytest

from heddle.errors import HeddleError
from heddle.remote import Refused, Unreachable
from heddle.transfer.target import retry
from tests.support.cli import heddle
from tests.support.inprocess import running_services
from tests.support.moved import answers, fill_project
from tests.support.server import HeddleProcess

PROJECT = "team/source"


async def fill(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await fill_project(client, PROJECT)
        op = {"_type": "CustomWeaveType", "weave_type": {"type": "Op"}, "files": {"obj.py": "nowhere"}}
        body = {"obj": {"project_id": PROJECT, "object_id": "lost", "val": op}}
        assert (await client.post("/obj/create", json=body)).status_code == 200


def comparable(said: dict[str, str]) -> dict[str, str]:
    """The answers without what the API does not tell: spans of agents, and who made a price."""
    shown = {path: text for path, text in said.items() if not path.startswith("/agents")}
    return {path: text.replace('"created_by":"local"', '"created_by":""') for path, text in shown.items()}


@pytest.mark.thorough
def test_a_project_comes_over_with_everything_that_the_api_shows(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "source", model="none") as server:
        asyncio.run(fill(server.url))

        async def ask_source() -> dict[str, str]:
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                return await answers(client, PROJECT)

        before = asyncio.run(ask_source())
        words = ("import", "weave", "--server", server.url, "--project", PROJECT, "--data", tmp_path / "target")
        first, second = heddle(*words), heddle(*words)
    assert first.returncode == 3, first.stderr
    assert "calls: 5 stored" in first.stdout and "rows of tables: 1500 stored" in first.stdout
    assert "left out: 1 files that are named and that the server does not have" in first.stdout
    assert "calls: 0 stored, 5 there already" in second.stdout

    async def ask_target() -> dict[str, str]:
        async with running_services(tmp_path / "target") as (_, client):
            return await answers(client, PROJECT)

    assert comparable(asyncio.run(ask_target())) == comparable(before)


def test_an_unreachable_source_leaves_nothing(tmp_path: Path) -> None:
    done = heddle("import", "weave", "--server", "ftp://x", "--project", PROJECT, "--data", tmp_path / "target")
    assert done.returncode == 1 and "must look like" in done.stderr
    assert not (tmp_path / "target" / "heddle.db").exists()


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("heddle.transfer.target.time.sleep", waits.append)

    def busy() -> None:
        raise Refused("busy", 503)

    with pytest.raises(Refused):
        retry(busy)
    assert len(waits) == 5 and waits == sorted(waits)
    outcomes = iter([Unreachable("gone"), Refused("later", 429), None])

    def recovers() -> str:
        if (failure := next(outcomes)) is not None:
            raise failure
        return "here"

    assert retry(recovers) == "here"


def test_what_is_wrong_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("heddle.transfer.target.time.sleep", lambda seconds: pytest.fail(f"waited {seconds}"))

    def wrong() -> None:
        asked.append(1)
        raise Refused("no such project", 404)

    with pytest.raises(HeddleError):
        retry(wrong)
    assert asked == [1]
