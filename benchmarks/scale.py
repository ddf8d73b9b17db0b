"""What a call costs to write and a query to answer as the calls grow, on SQLite and on ClickHouse.

    python benchmarks/scale.py                                  # 100,000 and 1,000,000 calls on both
    python benchmarks/scale.py --sizes 100000,1000000,10000000  # some 40 GB and an hour

Calls are written by the store itself, 1,000 at a time, without HTTP (benchmarks/ingest.py has that): what grows with
the data is the store. The bodies are a tenth of those of the other benchmarks, so that ten million fit a disk.
ClickHouse is its engine in process behind an HTTP look-alike; its CPU is counted in. The peer is the other store in
the same run.
"""

import argparse
import asyncio
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import folders, query, support
from benchmarks.payloads import Payloads
from heddle.settings import load as load_settings
from heddle.store.open import opened_store
from heddle.trace.calls.models import CompletedCallSchemaForInsert
from heddle.trace.calls.packing import Packer
from heddle.wire import refs, times
from heddle.wire.calls import End, Start
from tests.support.clickhouse import ClickhouseProcess

STORES = ("sqlite", "clickhouse")
PATTERN = 20_000
"""Calls that are made once; the rest are these again, with other ids and later."""
BATCH = 1000
SAMPLE = 50
"""Batches at the end of each size whose cost is reported."""
LABELS = (
    "newest 50 roots",
    "filter by op",
    "call by id",
    "page of 100",
    "trace of 200",
    "count of all",
    "usage by model",
)
LABELS += ("JSON filter", "contains")
COLUMNS = ("store", "calls", "write: CPU us", "write: wall us", "MB", "bytes per call")
Halves = tuple[list[Start], list[End]]


@dataclass
class Site:
    """A store of the benchmark: where it is and what its engine costs beside this process."""

    name: str
    data: Path
    settings: dict[str, str]
    engine: int | None = None

    def engine_cpu(self) -> float:
        """CPU seconds of the engine's own process; 0 where there is none."""
        return support.cpu_seconds(self.engine) if self.engine is not None else 0.0


def pattern() -> Halves:
    """The halves of the first calls, with bodies of some 300 bytes."""
    packer = Packer(refs.internal_project, "bench", 1 << 20)
    for call in Payloads(query.PROJECT).calls(PATTERN):
        words = orjson.dumps(call["inputs"])[:200].decode(errors="ignore").replace('"', " ").replace("\\", " ")
        slim = call | {"inputs": {"customer": call["inputs"].get("customer"), "messages": words}, "output": words[:60]}
        packer.complete(
            CompletedCallSchemaForInsert.model_validate(slim | {"op_name": refs.to_internal(call["op_name"])})
        )
    return packer.packed.starts, packer.packed.ends


def batches(halves: Halves, first: int, last: int) -> Iterator[Halves]:
    """Calls number `first` to `last` in batches: the pattern over and over, later each time."""
    starts, ends = halves
    span = starts[-1].started_at - starts[0].started_at + times.SECOND
    for begin in range(first, last, BATCH):
        turn, place = divmod(begin, PATTERN)
        later, mark = turn * span, f"{turn:06x}"
        chosen = range(place, place + BATCH)
        yield (
            [
                replace(
                    starts[n],
                    id=mark + starts[n].id[6:],
                    trace_id=mark + starts[n].trace_id[6:],
                    parent_id=None if starts[n].parent_id is None else mark + str(starts[n].parent_id)[6:],
                    started_at=starts[n].started_at + later,
                )
                for n in chosen
            ],
            [replace(ends[n], id=mark + ends[n].id[6:], ended_at=ends[n].ended_at + later) for n in chosen],
        )


async def grow(site: Site, halves: Halves, done: int, count: int) -> tuple[float, float]:
    """Write calls until there are `count`; CPU and wall microseconds per call of the last batches."""
    settings = load_settings({**site.settings, "data": str(site.data)}, environment={})
    async with opened_store(settings) as store:
        total = (count - done) // BATCH
        cpu = wall = 0.0
        for number, (starts, ends) in enumerate(batches(halves, done, count)):
            began, spent = time.perf_counter(), time.process_time() + site.engine_cpu()
            await store.calls.write(starts, ends)
            if number >= total - SAMPLE:
                wall += time.perf_counter() - began
                cpu += time.process_time() + site.engine_cpu() - spent
            if number % 100 == 0:
                print(f"\r{site.name}: {done + number * BATCH:,} of {count:,}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    written = min(SAMPLE, total) * BATCH
    return cpu / written * 1e6, wall / written * 1e6


def facts(halves: Halves, count: int) -> folders.Facts:
    """What the queries need to know of the calls."""
    starts, _ = halves
    found: folders.Facts = {
        "count": count,
        "big_trace": "none",
        "op": refs.to_external(starts[-1].op_name),
        "ids": [],
        "starts": [],
    }
    found["word"] = next(word for word in Payloads().words[12_000:] if len(word) >= 8)
    sizes: dict[str, int] = {}
    for start in starts:
        sizes[start.trace_id] = sizes.get(start.trace_id, 0) + 1
    turns = range(0, count // PATTERN, max(1, count // PATTERN // 20))
    for turn in turns:
        found["ids"] += [f"{turn:06x}{start.id[6:]}" for start in starts[:: PATTERN // 10]]
    found["traces_200"] = [f"{turn:06x}{name[6:]}" for turn in turns for name, size in sizes.items() if size == 200]
    span = starts[-1].started_at - starts[0].started_at + times.SECOND
    last = starts[-1].started_at + (count // PATTERN - 1) * span
    for index in range(0, count, 10_000):
        turn, place = divmod(index, PATTERN)
        found["starts"].append([index, times.to_iso(starts[place].started_at + turn * span)])
    found["last_start"] = times.to_iso(last + 1)
    return found


def ask(site: Site, known: folders.Facts) -> list[list[object]]:
    """The standard queries against a server on that store."""
    rows: list[list[object]] = []
    with support.Heddle(site.data, **site.settings) as server:
        assert server.process is not None
        client = query.Client(server.port)
        least = sorted(client.health() for _ in range(50))[25]
        for wanted in query.queries(known):
            if not wanted.label.startswith(LABELS) or "feedback" in wanted.label:
                continue
            cpu = site.engine_cpu()
            row = query.measure(client, server.process.pid, replace(wanted, goal=None), least)
            times_asked = wanted.repeats + (wanted.repeats > 2)
            engine = (site.engine_cpu() - cpu) / times_asked * 1000
            rows.append([site.name, f"{known['count']:,}", *row[:5], engine])
            print(*rows[-1], sep=", ", file=sys.stderr, flush=True)
    return rows


def opened(stack: ExitStack, name: str) -> Site:
    """A store with nothing in it."""
    home = support.CACHE / f"scale-{name}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    if name == "sqlite":
        return Site(name, home / "data", {})
    engine = stack.enter_context(ClickhouseProcess(home / "clickhouse"))
    assert engine.process is not None
    return Site(name, home / "data", {"store": engine.new_database()}, engine.process.pid)


def run(names: Sequence[str], sizes: Sequence[int]) -> tuple[list[list[object]], list[list[object]]]:
    """The rows of both tables."""
    written: list[list[object]] = []
    asked: list[list[object]] = []
    halves = pattern()
    for name in names:
        with ExitStack() as stack:
            site, done = opened(stack, name), 0
            for size in sizes:
                cpu, wall = asyncio.run(grow(site, halves, done, size))
                done = size
                megabytes = support.folder_megabytes(site.data.parent)
                written.append([name, f"{size:,}", cpu, wall, megabytes, megabytes * 1e6 / size])
                print(*written[-1], sep=", ", file=sys.stderr, flush=True)
                asked += ask(site, facts(halves, size))
        shutil.rmtree(support.CACHE / f"scale-{name}")
    return written, asked


def main() -> None:
    """Print what writing and asking cost, size by size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sizes", default="100000,1000000", help="numbers of calls, multiples of 20,000")
    parser.add_argument("--stores", default=",".join(STORES), help="sqlite, clickhouse or both")
    arguments = parser.parse_args()
    sizes = [int(part) for part in arguments.sizes.split(",")]
    support.print_machine()
    written, asked = run(arguments.stores.split(","), sizes)
    support.print_table("Writing calls, 1,000 at a time", COLUMNS, written)
    columns: tuple[Any, ...] = ("store", "calls", "query", "answer", "p50 ms", "p95 ms", "CPU ms", "engine CPU ms")
    support.print_table("Asking over HTTP", columns, sorted(asked, key=lambda row: (str(row[2]), str(row[0]))))


if __name__ == "__main__":
    main()
