"""Usage that SDKs sum up into parents counts once in totals, in whatever order the calls come."""

import asyncio
import json
import random
import sqlite3
from pathlib import Path
from typing import Any

from heddle.store.sqlite import usage_repeats
from heddle.store.sqlite.database import DATABASE, open_writer
from heddle.wire import refs
from tests.support.inprocess import Trace, running_services

TREE = {"root": (None, 3), "chain": ("root", 2), "chat": ("chain", 1), "again": ("chain", 1), "other": ("root", 1)}
"""Parent, and how many model calls are in or below; the model calls are `chat`, `again` and `other`."""
Json = dict[str, Any]


def halves(project: str, name: str) -> list[tuple[str, Json]]:
    parent, requests = TREE[name]
    head = {"project_id": project, "id": f"{project}-{name}"}
    usage = {"requests": requests, "prompt_tokens": 10 * requests, "completion_tokens": requests}
    start = {**head, "op_name": name, "trace_id": f"{project}-root", "started_at": "2026-01-01T00:00:00Z"}
    start |= {"parent_id": parent and f"{project}-{parent}", "inputs": {}, "attributes": {}}
    end = {**head, "ended_at": "2026-01-01T00:00:01Z", "output": None, "summary": {"usage": {"m": usage}}}
    return [("/call/start", {"start": start}), ("/call/end", {"end": end})]


def counted(folder: Path) -> dict[str, tuple[int, int]]:
    """Rows that count, and their tokens, by project."""
    query = """SELECT n.v, count(*), sum(u.prompt) FROM usage u JOIN names n ON n.k = u.project
        WHERE NOT u.repeated GROUP BY 1"""
    with sqlite3.connect(folder / DATABASE) as raw:
        return {refs.external_project(name): (rows, tokens) for name, rows, tokens in raw.execute(query)}


def test_each_order_of_arrival(tmp_path: Path) -> None:
    chance = random.Random(6)
    chosen = [list(range(10)), [n for n in range(10) if n % 2] + [n for n in range(10) if not n % 2]]
    chosen += [chance.sample(range(10), 10) for _ in range(40)]

    async def run() -> None:
        async with running_services(tmp_path) as (_, client):
            for number, order in enumerate(chosen):
                trace = Trace(client, f"team/p{number}")
                parts = [part for name in TREE for part in halves(trace.project, name)]
                for place in order:
                    path, body = parts[place]
                    await trace.post(path, **body)

    asyncio.run(run())
    found = counted(tmp_path)
    assert len(found) == len(chosen) and set(found.values()) == {(3, 30)}, found


def test_all_in_one_batch_and_a_call_that_is_its_own_parent(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_services(tmp_path) as (_, client):
            for project in ("team/batch", "team/circle"):
                parts = [part for name in TREE for part in halves(project, name)]
                if project == "team/circle":
                    parts = parts[4:6]
                    parts[0][1]["start"]["parent_id"] = parts[0][1]["start"]["id"]
                batch = [{"mode": path.rpartition("/")[2], "req": body} for path, body in parts]
                await Trace(client, project).post("/call/upsert_batch", batch=batch)

    asyncio.run(run())
    assert counted(tmp_path) == {"team/batch": (3, 30), "team/circle": (1, 10)}


def test_ids_with_zero_characters(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_services(tmp_path) as (_, client):
            parts = [part for name in TREE for part in halves("team/zero", name)]
            text = json.dumps([{"mode": path.rpartition("/")[2], "req": body} for path, body in parts])
            batch = json.loads(text.replace("team/zero-", "\\u0000"))
            await Trace(client, "team/zero").post("/call/upsert_batch", batch=batch)

    asyncio.run(run())
    assert counted(tmp_path) == {"team/zero": (3, 30)}


def test_a_file_of_before_is_marked(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_services(tmp_path) as (_, client):
            for name in TREE:
                for path, body in halves("team/old", name):
                    await Trace(client, "team/old").post(path, **body)

    asyncio.run(run())
    session = open_writer(tmp_path / DATABASE, "normal", 0)
    session.raw.execute("ALTER TABLE usage DROP COLUMN repeated")
    usage_repeats.create(session.raw)
    session.close()
    assert counted(tmp_path) == {"team/old": (3, 30)}
