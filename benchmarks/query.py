"""How long readers wait, and what an answer costs the server, in a folder of many calls.

    python benchmarks/query.py                       # 100,000 calls; the first run builds the folder
    python benchmarks/query.py --calls 1000000

Times are those of one client over HTTP, from the request to the last byte. The peer in the same run is `/health`: the
least that any answer of this server takes.
"""

import argparse
import asyncio
import http.client
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import folders, load, support

PROJECT = "bench/chat"
NEWEST = [{"field": "started_at", "direction": "desc"}]
USAGE_METRICS = [{"metric": name} for name in ("input_tokens", "output_tokens", "total_tokens", "total_cost")]
COLUMNS = ("query", "answer", "p50 ms", "p95 ms", "CPU ms", "x /health", "goal")


@dataclass(frozen=True)
class Query:
    """One row: a request, or several that differ only in what they name."""

    label: str
    path: str
    bodies: Sequence[dict[str, Any]]
    repeats: int
    goal: str | None = None
    unit: str = "calls"


def field_is(field: str, value: object) -> dict[str, Any]:
    """The query `field == value`."""
    return {"$expr": {"$eq": [{"$getField": field}, {"$literal": value}]}}


def contains(field: str, text: str) -> dict[str, Any]:
    """The query "the text of `field` contains `text`"."""
    return {"$expr": {"$contains": {"input": {"$getField": field}, "substr": {"$literal": text}}}}


def newest_range(facts: folders.Facts, count: int) -> tuple[str, str, int]:
    """A time range that holds the newest calls, about `count` of them: begin, end, how many exactly."""
    total, starts = facts["count"], facts["starts"]
    index, begin = min(starts, key=lambda pair: abs(total - count - pair[0]))
    return begin, facts["last_start"], total - index - 1


def queries(facts: folders.Facts) -> list[Query]:
    """All rows, the cheap ones first."""
    stream, stats = "/calls/stream_query", "/calls/query_stats"

    def page(limit: int, **more: Any) -> dict[str, Any]:
        return {"project_id": PROJECT, "limit": limit, "sort_by": NEWEST, **more}

    begin, end, ranged = newest_range(facts, 100_000)
    first = facts["starts"][0][1]
    thousand = {"project_id": "bench/large", "filter": {"trace_ids": [facts["big_trace"]]}, "limit": 1000}
    ids, traces = facts["ids"], facts["traces_200"]
    by_id = [{"project_id": PROJECT, "id": identity} for identity in ids]
    by_trace = [{"project_id": PROJECT, "filter": {"trace_ids": [trace]}} for trace in traces]
    by_op = {"op_names": [facts["op"]]}
    usage = {"project_id": PROJECT, "start": begin, "end": end, "usage_metrics": USAGE_METRICS}
    rare, text = field_is("inputs.customer", "customer-7"), contains("inputs.messages", facts["word"])
    return [
        Query("newest 50 roots", stream, [page(50, filter={"trace_roots_only": True})], 60, "≤ 5 ms in the store"),
        Query("filter by op, newest 50", stream, [page(50, filter=by_op)], 60, "≤ 5 ms in the store"),
        Query("call by id", "/call/read", by_id, 100, "≤ 5 ms in the store"),
        Query("page of 100", stream, [page(100)], 40, "≤ 50 ms"),
        Query(
            "page of 100 with costs and feedback",
            stream,
            [page(100, include_costs=True, include_feedback=True)],
            40,
            "≤ 6 ms",
        ),
        Query("trace of 200", stream, by_trace, 40, "≤ 6 ms"),
        Query("trace of 50,000: first 1,000", stream, [thousand], 10, "≤ 1,000 ms"),
        Query("count of all", stats, [{"project_id": PROJECT}], 20, "≤ 50 ms", "count"),
        Query(f"usage by model over {ranged:,}", "/calls/stats", [usage], 5, "≤ 120 ms", "buckets"),
        Query("usage by model over all", "/calls/stats", [{**usage, "start": first}], 20, "≤ 150 ms", "buckets"),
        Query("JSON filter, newest 50", stream, [page(50, query=rare)], 2),
        Query(
            "JSON filter, count, first time",
            stats,
            [{"project_id": PROJECT, "query": rare}],
            2,
            "≤ 800 ms",
            "count",
        ),
        Query("contains in inputs, count", stats, [{"project_id": PROJECT, "query": text}], 2, None, "count"),
    ]


def indexed_filter() -> Query:
    """The JSON filter again, after it was used often enough for an index."""
    rare = field_is("inputs.customer", "customer-7")
    return Query(
        "JSON filter, count, indexed",
        "/calls/query_stats",
        [{"project_id": PROJECT, "query": rare}],
        20,
        "≤ 20 ms",
        "count",
    )


class Client:
    """One kept-alive connection."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)

    def post(self, path: str, body: dict[str, Any]) -> tuple[bytes, float]:
        """The answer and the seconds until its last byte; ends the program when it is not 200."""
        data = orjson.dumps(body)
        began = time.perf_counter()
        self.connection.request("POST", path, data, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        content = answer.read()
        taken = time.perf_counter() - began
        if answer.status != 200:
            support.fail(f"{path} {data[:300]!r}: {answer.status} {content[:500]!r}")
        return content, taken

    def health(self) -> float:
        """Seconds of the least answer."""
        began = time.perf_counter()
        self.connection.request("GET", "/health")
        self.connection.getresponse().read()
        return time.perf_counter() - began


def size_of(query: Query, content: bytes) -> str:
    """How much the answer holds, in the query's unit."""
    if query.unit == "count":
        return f"count {orjson.loads(content)['count']:,}"
    if query.unit == "buckets":
        return f"{len(orjson.loads(content)['usage_buckets']):,} buckets"
    rows = 1 if query.path == "/call/read" else content.count(b"\n")
    return f"{rows:,} calls, {len(content) / 1000:,.0f} kB"


def measure(client: Client, pid: int, query: Query, least: float) -> list[object]:
    """Ask once to warm up where that is cheap, then `repeats` times."""
    bodies = cycle(query.bodies)
    if query.repeats > 2:
        client.post(query.path, next(bodies))
    cpu = support.fine_cpu_seconds(pid)
    answers = [client.post(query.path, next(bodies)) for _ in range(query.repeats)]
    cpu = (support.fine_cpu_seconds(pid) - cpu) / query.repeats * 1000
    times = [taken for _, taken in answers]
    quick, slow = support.percentile(times, 0.5) * 1000, support.percentile(times, 0.95) * 1000
    return [query.label, size_of(query, answers[-1][0]), quick, slow, cpu, quick / least, query.goal]


def wait_for_index(client: Client, pid: int, query: Query, limit: float) -> None:
    """Use the filter some times, then ask now and then until an index answers or `limit` seconds are over."""
    first = min(client.post(query.path, query.bodies[0])[1] for _ in range(3))
    deadline = time.perf_counter() + limit
    while time.perf_counter() < deadline:
        support.settle(pid, limit=min(30.0, limit))
        if client.post(query.path, query.bodies[0])[1] < first / 5:
            return
        time.sleep(2)


def stream_rows(port: int, pid: int, count: int) -> list[list[object]]:
    """A stream of `count` calls while `/health` is probed: its time, and the gaps of the event loop."""
    body = orjson.dumps({"project_id": PROJECT, "limit": count, "sort_by": NEWEST})
    request = load.raw_request("POST", "/calls/stream_query", body)

    async def both() -> tuple[list[float], list[float]]:
        gaps: list[float] = []
        ended = asyncio.Event()
        probe = asyncio.create_task(probe_health(port, gaps, ended))
        times = [(await load.send_all(port, [request], 1)).wall for _ in range(5)]
        ended.set()
        await probe
        return times, gaps

    cpu = support.fine_cpu_seconds(pid)
    times, gaps = asyncio.run(both())
    cpu = (support.fine_cpu_seconds(pid) - cpu) / len(times) * 1000
    label = f"stream of {count:,} calls, probed"
    quick, slow = support.percentile(times, 0.5) * 1000, support.percentile(times, 0.95) * 1000
    middle, tail = support.percentile(gaps, 0.5) * 1000, support.percentile(gaps, 0.99) * 1000
    probes = f"{len(gaps)} probes"
    return [
        [label, f"{count:,} calls", quick, slow, cpu, None, "≤ 500 ms"],
        ["  /health meanwhile: p50 and p99 (not p95)", probes, middle, tail, None, None, "gap p99 ≤ 20 ms"],
    ]


async def probe_health(port: int, gaps: list[float], ended: asyncio.Event) -> None:
    """Ask `/health` every 2 ms over one connection and note how long each answer takes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = load.raw_request("GET", "/health", b"")
    while not ended.is_set():
        began = time.perf_counter()
        writer.write(request)
        await load.read_answer(reader)
        gaps.append(time.perf_counter() - began)
        await asyncio.sleep(0.002)
    writer.close()


def main() -> None:
    """Print the table and the memory of the server after all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=100_000, help="calls in the folder (default 100000)")
    parser.add_argument("--rebuild", action="store_true", help="build the folder anew")
    parser.add_argument("--only", default="", help="only rows whose label contains this text")
    parser.add_argument("--index-wait", type=float, default=120, help="seconds to wait for the index (default 120)")
    arguments = parser.parse_args()
    data, facts = folders.built_folder(arguments.calls, arguments.rebuild)
    support.print_machine()
    folders.forget_indexes(data)
    with support.Heddle(data) as server:
        assert server.process is not None
        pid, client = server.process.pid, Client(server.port)
        idle = support.resident_megabytes(pid)
        support.settle(pid, limit=20)
        rows = run(client, pid, facts, arguments)
        if "stream" in arguments.only or not arguments.only:
            rows += stream_rows(server.port, pid, min(10_000, arguments.calls))
        memory, own = support.resident_megabytes(pid), support.private_megabytes(pid)
    title = f"Reading from {facts['count']:,} calls ({facts['megabytes']:,.0f} MB on disk)"
    support.print_table(title, COLUMNS, rows)
    print(
        f"\nresident memory: {idle:.0f} MB at the start, {memory:.0f} MB at the end ({own:.0f} MB without file pages)"
    )
    support.print_machine()


def run(client: Client, pid: int, facts: folders.Facts, arguments: argparse.Namespace) -> list[list[object]]:
    """The rows that one client asks, one after the other."""
    least = support.percentile([client.health() for _ in range(200)], 0.5) * 1000
    rows: list[list[object]] = [["/health", None, least, None, None, 1.0, None]]
    for query in (query for query in queries(facts) if arguments.only in query.label):
        rows.append(measure(client, pid, query, least))
        print(f"{query.label}: done", file=sys.stderr)
    if arguments.only in indexed_filter().label:
        wait_for_index(client, pid, indexed_filter(), arguments.index_wait)
        rows.append(measure(client, pid, indexed_filter(), least))
    return rows


if __name__ == "__main__":
    main()
