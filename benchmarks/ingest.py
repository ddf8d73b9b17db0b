"""What it costs to take calls in: server CPU per call, rate, latency, against JSON parse + raw append in the same run.

    python benchmarks/ingest.py                      # about a minute
    python benchmarks/ingest.py --calls 50000 --only "single call"

Every row is a real heddle process with an empty folder and default settings (durable writes). The load comes from
another process; its CPU is a column, because it shares the cores with the server.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import load, payloads, support
from benchmarks.payloads import Call

COMPLETE = "/v2/bench/chat/calls/complete"


@dataclass(frozen=True)
class Row:
    """One way to write calls."""

    label: str
    make: Callable[[list[Call]], list[tuple[str, bytes]]]
    clients: int
    share: float = 1.0
    goal: str | None = None


def in_batches(calls: list[Call], size: int) -> list[list[Call]]:
    """The calls in lists of `size`."""
    return [calls[first : first + size] for first in range(0, len(calls), size)]


def upserts(calls: list[Call]) -> list[tuple[str, bytes]]:
    """Batches of 100 starts and their 100 ends."""
    return [("/call/upsert_batch", orjson.dumps(payloads.upsert_batch(batch))) for batch in in_batches(calls, 100)]


def completes(calls: list[Call]) -> list[tuple[str, bytes]]:
    """Batches of 100 finished calls, as the SDK sends them."""
    return [(COMPLETE, orjson.dumps({"batch": batch})) for batch in in_batches(calls, 100)]


def single_completes(calls: list[Call]) -> list[tuple[str, bytes]]:
    """One finished call per request."""
    return [(COMPLETE, orjson.dumps({"batch": [call]})) for call in calls]


def single_starts(calls: list[Call]) -> list[tuple[str, bytes]]:
    """One start per request."""
    return [("/call/start", orjson.dumps(payloads.start_half(call))) for call in calls]


ROWS = (
    Row("upsert_batch, 100 start+end, 4 clients", upserts, 4, goal="≤ 200 µs CPU, aim 120"),
    Row("upsert_batch, 100 start+end, 1 client", upserts, 1, share=0.5),
    Row("calls/complete, 100, 4 clients", completes, 4, goal="≤ 200 µs CPU, aim 120"),
    Row("calls/complete, 100, 1 client", completes, 1, share=0.5),
    Row("single call, calls/complete of 1, 32 clients", single_completes, 32, goal="≥ 2,000/s, p50 ≤ 15 ms"),
    Row("single call, call/start, 32 clients", single_starts, 32, goal="≥ 2,000/s, p50 ≤ 15 ms"),
    Row("single call, calls/complete of 1, 1 client", single_completes, 1, share=0.1),
)
COLUMNS = (
    "way",
    "calls",
    "calls/s",
    "server CPU µs/call",
    "x floor",
    "server cores",
    "client CPU µs/call",
    "answer p50 ms",
    "p99 ms",
    "goal",
)


def measure(row: Row, calls: list[Call], settings: dict[str, Any]) -> list[object]:
    """Start a server, warm it, send the row's load, and the figures of the table."""
    requests = [load.raw_request("POST", path, body) for path, body in row.make(calls)]
    warm = [
        load.raw_request("POST", path, body) for path, body in row.make(list(payloads.Payloads(seed=2).calls(1000)))
    ]
    with support.scratch_folder() as folder, support.Heddle(folder / "data", **settings) as server:
        assert server.process is not None
        pid = server.process.pid
        load.drive(server.port, warm, row.clients)
        support.settle(pid, limit=5)
        before = support.cpu_seconds(pid)
        result = load.drive(server.port, requests, row.clients)
        cpu = support.cpu_seconds(pid) - before
    if set(result.statuses) != {200}:
        support.fail(f"{row.label}: answers {dict(result.statuses)}")
    count = len(calls)
    quick, slow = (support.percentile(result.latencies, share) * 1000 for share in (0.5, 0.99))
    client = result.client_cpu / count * 1e6
    return [count, count / result.wall, cpu / count * 1e6, None, cpu / result.wall, client, quick, slow]


def floor(calls: list[Call]) -> tuple[float, list[object]]:
    """µs of CPU per call that parse and append alone take, and its row."""
    bodies = [body for _, body in upserts(calls)]
    with support.scratch_folder() as folder:
        cpu, wall = support.parse_and_append(bodies, folder)
    each = cpu / len(calls) * 1e6
    durable = wall / len(bodies) * 1000
    rate = len(calls) / wall
    label = "floor: orjson.loads + raw append of the same batches, fdatasync each"
    return each, [label, len(calls), rate, each, 1.0, None, None, durable, None, None]


def main() -> None:
    """Print the table; exit code 1 when an answer was not 200."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20_000, help="calls per row (default 20000)")
    parser.add_argument("--only", default="", help="only rows whose label contains this text")
    parser.add_argument("--repeat", type=int, default=1, help="measure each row so often and print each")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings of the server")
    arguments = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in arguments.set)
    support.print_machine()
    rows = run(arguments.calls, arguments.only, arguments.repeat, settings)
    support.print_table("Taking calls in", COLUMNS, rows)
    support.print_machine()


def run(count: int, only: str, repeat: int, settings: dict[str, Any]) -> Sequence[list[object]]:
    """All rows of the table, the floor first."""
    calls = list(payloads.Payloads().calls(count))
    least, first = floor(calls)
    rows = [first]
    for row in ROWS:
        if only not in row.label:
            continue
        for _ in range(repeat):
            figures = measure(row, calls[: round(count * row.share)], settings)
            figures[3] = float(figures[2]) / least  # type: ignore[arg-type]
            rows.append([row.label, *figures, row.goal])
            print(f"{row.label}: done", file=sys.stderr)
    return rows


if __name__ == "__main__":
    main()
