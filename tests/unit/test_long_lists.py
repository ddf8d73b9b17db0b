"""Lists of large values are read and sent a slice at a time: no part of an answer holds all of them."""

import asyncio
import base64
import json
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest
import sqlalchemy as sa

from heddle.app import create_app
from heddle.services import open_services
from heddle.settings import Settings
from heddle.store.control import objects
from heddle.store.control.feedback import FeedbackRows, feedback
from heddle.store.control.objects import ObjectFilter
from heddle.store.control.row_queries import SLICE_ROWS, RowRequest, Selection
from heddle.trace.rows import answer_rows
from heddle.wire import refs
from tests.support.memory import MemoryExecutor
from tests.support.trials import Run

T = TypeVar("T")
PROJECT = "team/long"
MIB = 1 << 20
COUNT = 24
MOST = 9 * MIB
"""Bytes of one part of an answer; those below have at least twice as many in all."""


async def parts(app: Any, method: str, path: str, body: Any = None) -> list[bytes]:
    """The parts that an answer of 200 is sent in."""
    sent: list[dict[str, Any]] = []
    content = b"" if body is None else json.dumps(body).encode()
    plain, _, query = path.partition("?")
    key = base64.b64encode(f"{PROJECT}:{'k' * 40}".encode())
    scope = {
        "type": "http", "method": method, "path": plain, "raw_path": plain.encode(), "query_string": query.encode(),
        "headers": [(b"host", b"localhost"), (b"authorization", b"Basic " + key)], "client": ("127.0.0.1", 1),
        "server": ("localhost", 80), "scheme": "http", "http_version": "1.1", "root_path": "",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
    }  # fmt: skip
    waiting = [{"type": "http.request", "body": content}]

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    assert sent[0]["status"] == 200, sent
    return [message["body"] for message in sent[1:]]


def call(number: int, text: str, **more: Any) -> dict[str, Any]:
    head = {"project_id": PROJECT, "id": f"c{number:03}", "trace_id": "t", "op_name": "o", "attributes": {}}
    times = {"started_at": f"2026-01-01T00:00:{number:02}Z", "ended_at": "2026-01-01T00:01:00Z"}
    return {**head, **times, "inputs": {"n": number, "x": text}, "output": text, "summary": {}, **more}


CURSOR = "/api/public/v2/observations?limit=40&fields=io"
DOWN = {"field": "object_id", "direction": "desc"}
LISTS = {
    "/api/public/observations?limit=100": ("data", 2 * COUNT + 1),
    CURSOR: ("data", 40),
    "/api/public/traces?limit=100": ("data", COUNT + 1),
    "/api/public/traces/t0": ("observations", COUNT + 1),
    "/api/public/sessions/s": ("traces", COUNT + 1),
}


@pytest.mark.thorough
def test_lists_of_langfuse(tmp_path: Path) -> None:
    async def run() -> None:
        chosen = Settings(data=str(tmp_path), model="none")
        async with open_services(chosen) as services:
            app = create_app(chosen, services)
            for number in range(COUNT + 1):
                root = call(number, "x" * (MIB // 2), thread_id="s", trace_id=f"t{number}")
                below = [{**root, "id": f"d{number:03}", "trace_id": "t0", "parent_id": "c000"}] if number else []
                await parts(app, "POST", f"/v2/{PROJECT}/calls/complete", {"batch": [root, *below]})
            for path, (name, count) in LISTS.items():
                pieces = await parts(app, "GET", path)
                answer = orjson.loads(b"".join(pieces))
                assert len(answer[name]) == count, path
                assert sum(map(len, pieces)) > 2 * MOST and max(map(len, pieces)) < MOST, path
                if name == "observations":
                    assert (answer["id"], answer["input"]["n"], answer["scores"]) == ("t0", 0, [])
            cursor = orjson.loads(b"".join(await parts(app, "GET", CURSOR)))["meta"]["cursor"]
            left = orjson.loads(b"".join(await parts(app, "GET", f"{CURSOR}&cursor={cursor}")))
            assert (len(left["data"]), left["meta"]) == (2 * COUNT + 1 - 40, {})

    asyncio.run(run())


class LongReads(MemoryExecutor):
    """Counts reads of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {False: 0, True: 0}

    async def read(self, work: Callable[[sa.Connection], T], *, is_long: bool = False) -> T:
        self.counts[is_long] += 1
        return await super().read(work, is_long=is_long)


@pytest.mark.parametrize(("rows", "counts"), [(SLICE_ROWS - 1, (1, 0)), (3 * SLICE_ROWS, (1, 3))])
def test_who_reads_everything_takes_turns_with_others_who_do(rows: int, counts: tuple[int, int]) -> None:
    executor = LongReads()
    stored = FeedbackRows(executor)

    async def run() -> list[str]:
        required = (column.name for column in feedback.c if not (column.nullable or column.primary_key))
        row = dict.fromkeys(required, "{}") | {"project": PROJECT}
        await stored.create([{**row, "id": f"{number:05}", "created_at": number} for number in range(rows)])
        executor.counts = {False: 0, True: 0}
        found = await stored.query(PROJECT, RowRequest(["id"]))
        return [row["id"] for row in found.rows] + [row["id"] async for part in found.rest or nothing() for row in part]

    assert asyncio.run(run()) == [f"{number:05}" for number in range(rows)]
    assert executor.counts == {False: counts[0], True: counts[1]}


async def nothing() -> AsyncIterator[list[Any]]:
    """What follows a list of one slice."""
    for _ in ():
        yield []


@pytest.mark.thorough
def test_results_of_evaluations(tmp_path: Path) -> None:
    made = Run(PROJECT)
    for number in range(3 * COUNT):
        made.trial({"n": number}, "x" * (MIB // 2), {"s": number})

    async def run() -> None:
        chosen = Settings(data=str(tmp_path), model="none")
        async with open_services(chosen) as services:
            app = create_app(chosen, services)
            for one in made.calls:
                await parts(app, "POST", f"/v2/{PROJECT}/calls/complete", {"batch": [one]})
            asked = {"evaluation_call_ids": [made.id], "include_raw_data_rows": True}
            pieces = await parts(app, "POST", f"/v2/{PROJECT}/eval_results/query", asked)
            rows = orjson.loads(b"".join(pieces))["rows"]
            assert sorted(row["raw_data_row"]["n"] for row in rows) == list(range(3 * COUNT))
            assert max(map(len, pieces)) < len(b"".join(pieces)) // 2

    asyncio.run(run())


@pytest.mark.parametrize("with_values", [True, False])
def test_versions_of_objects(tmp_path: Path, with_values: bool) -> None:
    async def run() -> list[list[int]]:
        chosen = Settings(data=str(tmp_path), model="none")
        async with open_services(chosen) as services:
            app = create_app(chosen, services)
            for number in range(COUNT):
                value = {"n": number, "x": "x" * ((5 if number == 7 else 1) * MIB)}
                body = {"obj": {"project_id": PROJECT, "object_id": f"o{number:02}", "val": value}}
                await parts(app, "POST", "/obj/create", body)
            asked = {"project_id": PROJECT, "metadata_only": not with_values, "sort_by": [DOWN], "limit": COUNT - 1}
            found = orjson.loads(b"".join(await parts(app, "POST", "/objs/query", asked)))["objs"]
            assert [one["object_id"] for one in found] == [f"o{number:02}" for number in range(COUNT - 1, 0, -1)]
            pages = services.store.objects.pages(
                refs.internal_project(PROJECT), ObjectFilter(), with_values=with_values
            )
            return [[len(version.val or "") for version in page] async for page in pages]

    sizes = asyncio.run(run())
    assert sum(map(len, sizes)) == COUNT
    if with_values:
        assert max(map(sum, sizes)) < objects.PAGE_BYTES + 2 * MIB and len(sizes) > 6
    else:
        assert len(sizes) == 1


class Row(dict[str, Any]):
    """A row that may be watched."""


def test_rows_are_not_held_while_a_client_reads_what_was_written() -> None:
    watched: list[weakref.ref[Row]] = []

    def made() -> list[dict[str, Any]]:
        rows = [Row(n=number) for number in range(3)]
        watched.extend(map(weakref.ref, rows))
        return [*rows]

    async def rest() -> AsyncIterator[list[dict[str, Any]]]:
        for _ in range(2):
            yield made()

    async def read() -> list[int]:
        answered: Any = answer_rows("result", Selection(made(), 9, rest()), total_count=9)
        return [sum(row() is not None for row in watched) async for _ in answered.body_iterator]

    assert asyncio.run(read()) == [0, 0, 0, 0]
    assert len(watched) == 9
