"""A Weave project that is read over its API and stored again answers as before; heddle itself is the source."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.errors import HeddleError
from heddle.remote import Refused, Unreachable
from heddle.transfer.target import retry
from heddle.transfer.weave import fetch
from tests.support.cli import heddle
from tests.support.inprocess import running_services
from tests.support.moved import answers, fill_project
from tests.support.replayed import served
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
    assert "left out: 1 files that are referenced but missing on the server" in first.stdout
    assert "calls: 0 stored, 5 already there" in second.stdout

    async def ask_target() -> dict[str, str]:
        async with running_services(tmp_path / "target") as (_, client):
            return await answers(client, PROJECT)

    assert comparable(asyncio.run(ask_target())) == comparable(before)


def test_an_unreachable_source_leaves_nothing(tmp_path: Path) -> None:
    done = heddle("import", "weave", "--server", "ftp://x", "--project", PROJECT, "--data", tmp_path / "target")
    assert done.returncode == 1 and "must be like" in done.stderr
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


AT = "2026-01-01T00:00:00Z"
CALL = {"id": "a", "trace_id": "a", "op_name": "chat", "started_at": AT, "inputs": {}, "attributes": {}}
VERSION = {"kind": "object", "object_id": "o", "digest": "d", "version_index": 0, "is_latest": 1, "created_at": AT}
VERSION |= {"val": {"rows": f"weave:///{PROJECT}/table/good", "others": f"weave:///{PROJECT}/table/odd"}}
FEEDBACK = {"id": "f", "weave_ref": f"weave:///{PROJECT}/call/a", "feedback_type": "note", "payload": {}}
FEEDBACK |= {"created_at": AT}
PRICE = {"id": "p", "llm_id": "m", "prompt_token_cost": 0.1, "completion_token_cost": 0.2, "effective_date": AT}
ODD: dict[str, list[tuple[Any, str]]] = {
    "/calls/stream_query": [
        (5, "calls that are not objects"),
        ({**CALL, "trace_id": None}, "calls whose trace_id is missing"),
        ({**CALL, "inputs": []}, "calls whose inputs is not an object"),
        ({**CALL, "started_at": "now"}, "calls whose started_at is not a valid time"),
        ({**CALL, "thread_id": 3}, "calls whose thread_id is not a string"),
        ({**CALL, "wb_run_step": 2**63}, "calls whose run_step is not a whole number in range"),
        ({**CALL, "wb_run_id": "a/b"}, "calls that cannot be stored: Invalid wb_run_id"),
        ({**CALL, "inputs": {"a": "weave:///x"}}, "calls that cannot be stored: Invalid URI"),
    ],
    "/objs/query": [
        ({**VERSION, "digest": ""}, "object versions whose digest is missing"),
        ({**VERSION, "tags": [{}]}, "object versions whose tags has an item that is not a string"),
        ({**VERSION, "is_latest": None}, "object versions whose is_latest is missing"),
        ({name: VERSION[name] for name in VERSION if name != "val"}, "object versions whose val is missing"),
    ],
    "/feedback/query": [
        ({**FEEDBACK, "payload": "text"}, "feedback whose payload is not an object"),
        ({**FEEDBACK, "weave_ref": None}, "feedback whose weave_ref is missing"),
        ({**FEEDBACK, "scorer_ratings": [1]}, "feedback whose scorer_ratings is not an object of numbers"),
    ],
    "/cost/query": [
        ({**PRICE, "llm_id": None}, "costs whose llm_id is missing"),
        ({**PRICE, "prompt_token_cost": "1"}, "costs whose prompt_token_cost is not a number"),
    ],
}


def answer_oddly(method: str, target: str, body: Any) -> tuple[int, Any]:
    """A project whose every list holds odd rows before and behind one that fits."""
    odd = [row for row, _ in ODD.get(target, ())]
    if target == "/calls/stream_query":
        return 200, b"\n".join(json.dumps(row).encode() for row in [*odd, CALL, *odd])
    if target == "/table/query_stats":
        return 200, {"count": 1}
    if target == "/table/query":
        row = {"val": {"a": 1}, "original_index": 0}
        return 200, {"rows": [row | {"digest": "r"} if body["digest"] == "good" else row]}
    key, fits = {
        "/objs/query": ("objs", VERSION),
        "/feedback/query": ("result", FEEDBACK),
        "/cost/query": ("results", PRICE),
    }[target]
    return 200, {key: [*odd, fits, *odd]}


def test_rows_that_do_not_fit_are_counted_with_their_field_and_the_others_stored(tmp_path: Path) -> None:
    with served(answer_oddly) as address:
        words = ("import", "weave", "--server", address, "--project", PROJECT, "--data", tmp_path / "target")
        done = heddle(*words)
    assert done.returncode == 3, done.stderr
    for group in ("calls", "object versions", "rows of tables", "tables", "feedback", "costs"):
        assert f"  {group}: 1 stored" in done.stdout
    for path, rows in ODD.items():
        for number, (_, why) in enumerate(rows, 1):
            assert f"left out: 2 {why} (the first: number {number} of {path})" in done.stdout
    assert "left out: 1 tables with rows whose digest is missing (the first: odd)" in done.stdout
    assert done.stdout.count("left out:") == sum(map(len, ODD.values())) + 1


@pytest.mark.parametrize("path", ["/calls/stream_query", "/objs/query", "/feedback/query", "/cost/query"])
def test_a_server_that_does_not_heed_the_offset_ends_the_import(tmp_path: Path, path: str) -> None:
    def answer(method: str, target: str, body: Any) -> tuple[int, Any]:
        page: list[Any] = [{"id": str(number)} for number in range(1000)] if target == path else []
        if target == "/calls/stream_query":
            return 200, b"\n".join(json.dumps(row).encode() for row in page)
        return 200, dict.fromkeys(("objs", "result", "results"), page)

    with (
        served(answer) as address,
        pytest.raises(HeddleError, match=f"the pages of {path} repeat: the page from 1000"),
    ):
        fetch(address, None, PROJECT, tmp_path / "archive")
    assert not list(tmp_path.iterdir())


def test_a_table_whose_pages_are_all_its_first_ends_the_import(tmp_path: Path) -> None:
    rows = [{"digest": "r", "val": number, "original_index": number} for number in range(1000)]

    def answer(method: str, target: str, body: Any) -> tuple[int, Any]:
        objs = [VERSION] if target == "/objs/query" else []
        return 200, {"objs": objs, "result": [], "results": [], "rows": rows, "count": 2000, "id": None}

    with (
        served(answer) as address,
        pytest.raises(HeddleError, match="other rows of the table good than those from row 1000"),
    ):
        fetch(address, None, PROJECT, tmp_path / "archive")
