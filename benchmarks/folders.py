"""Data folders with many calls, built once through the API and kept in `.cache/bench` for the next run."""

import contextlib
import json
import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from benchmarks import load, support
from benchmarks.payloads import Call, Payloads

BIG_TRACE = 50_000
CHUNK = 20_000
KEPT = 300
Facts = dict[str, Any]


def built_folder(count: int, rebuild: bool = False) -> tuple[Path, Facts]:
    """A data folder with `count` calls in `bench/chat` and a trace of 50,000 in `bench/large`, and what is in it."""
    home = support.CACHE / f"calls-{count}"
    facts = home / "facts.json"
    if facts.exists() and not rebuild:
        return home / "data", json.loads(facts.read_text())
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    built = build(home / "data", count)
    facts.write_text(json.dumps(built))
    return home / "data", built


def forget_indexes(data: Path) -> None:
    """Drop the indexes on JSON paths that earlier runs earned, so that the unindexed rows are what they say."""
    with contextlib.closing(sqlite3.connect(data / "heddle.db", isolation_level=None)) as database:
        for (name,) in database.execute("SELECT name FROM path_indexes").fetchall():
            database.execute(f'DROP INDEX IF EXISTS "{name}"')
        database.execute("DELETE FROM path_indexes")


def build(data: Path, count: int) -> Facts:
    """Write the calls by `calls/complete` in batches of 100 and note ids that the queries need."""
    facts: Facts = {"count": count, "ids": [], "traces_200": [], "starts": []}
    facts["word"] = next(word for word in Payloads().words[12_000:] if len(word) >= 8)
    began = time.perf_counter()
    with support.Heddle(data) as server:
        assert server.process is not None
        payloads = Payloads()
        done = 0
        for chunk in chunks(payloads, count):
            send(server.port, "bench/chat", chunk)
            note(facts, chunk, done)
            done += len(chunk)
            print(f"\rbuilding: {done:,} of {count:,} calls", end="", file=sys.stderr, flush=True)
        large = Payloads("bench/large", seed=3)
        trace = large.trace(BIG_TRACE)
        for first in range(0, BIG_TRACE, CHUNK):
            send(server.port, "bench/large", trace[first : first + CHUNK])
        facts["big_trace"] = trace[0]["trace_id"]
        facts["cpu"] = support.cpu_seconds(server.process.pid) / (count + BIG_TRACE) * 1e6
    facts["wall"] = time.perf_counter() - began
    facts["megabytes"] = support.folder_megabytes(data)
    print(f"\rbuilt {count:,} calls in {facts['wall']:.0f} s, {facts['megabytes']:,.0f} MB", file=sys.stderr)
    return facts


def chunks(payloads: Payloads, count: int) -> Iterator[list[Call]]:
    """The calls in lists of at most 20,000."""
    while count > 0:
        chunk = list(payloads.calls(min(CHUNK, count)))
        count -= len(chunk)
        yield chunk


def send(port: int, project: str, calls: list[Call]) -> None:
    """Store the calls, four batches at a time."""
    path = f"/v2/{project}/calls/complete"
    bodies = [orjson.dumps({"batch": calls[first : first + 100]}) for first in range(0, len(calls), 100)]
    result = load.drive(port, [load.raw_request("POST", path, body) for body in bodies], clients=4)
    if set(result.statuses) != {200}:
        support.fail(f"building the folder: answers {dict(result.statuses)}")


def note(facts: Facts, calls: list[Call], offset: int) -> None:
    """Keep about 300 ids over the whole range, the last traces of 200, and every 10,000th start time."""
    facts["ids"] = [*facts["ids"], *(call["id"] for call in calls[:: max(1, facts["count"] // KEPT)])]
    sizes: dict[str, int] = {}
    for call in calls:
        sizes[call["trace_id"]] = sizes.get(call["trace_id"], 0) + 1
    facts["traces_200"] = [*facts["traces_200"], *(trace for trace, size in sizes.items() if size == 200)][-KEPT:]
    facts["starts"] += [[offset + index, calls[index]["started_at"]] for index in range(0, len(calls), 10_000)]
    facts["last_start"] = calls[-1]["started_at"]
    facts["op"] = calls[-1]["op_name"]
