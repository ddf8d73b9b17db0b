"""What requests cost this checkout and another commit of heddle: CPU of each, taken in turns over the same requests.

    python benchmarks/compare.py main~20                         # about ten minutes; make bench-compare REF=main~20
    python benchmarks/compare.py v0.1.0 --only OTLP --rounds 21

Both servers run at once with folders of their own and are asked alternately, so that a busy machine slows both alike;
the figure is the median over the rounds of CPU per request. The ratio is the median of the rounds' ratios; its interval
has the median of ever more rounds in it 95 times of 100, whatever the distribution: 1 inside shows no difference.
"""

import argparse
import contextlib
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import load, otlp, payloads, support
from tests.support.server import free_port

PROJECT = "bench/chat"
CHAT = {"model": "heddle-tiny", "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 1}
FILLED = 4000
"""Calls that both servers hold before anything is measured, beside a trace of 200."""
COLUMNS = ("request", "now, µs CPU", "before, µs CPU", "now / before", "95 % interval")


@dataclass(frozen=True)
class Row:
    """One kind of request; `make` gives the requests of a round, and `units` is what each of them holds."""

    label: str
    make: Callable[[int], list[bytes]]
    units: int = 1


@dataclass
class Server:
    """A server of one checkout."""

    process: subprocess.Popen[bytes]
    port: int

    def cpu(self) -> float:
        """CPU seconds of the serving process, the engine's apart."""
        return support.fine_cpu_seconds(self.process.pid)

    def ask(self, requests: Sequence[bytes], clients: int = 4) -> float:
        """CPU seconds that the requests cost; fails on any answer but 200."""
        before = self.cpu()
        result = load.drive(self.port, requests, clients)
        if set(result.statuses) != {200}:
            support.fail(f"answers {dict(result.statuses)} to {requests[0][:300]!r}")
        self.wait_until_idle()
        return self.cpu() - before

    def wait_until_idle(self) -> None:
        """Return when what was left to do is done, also that for which calls wait half a second: their text index."""
        before = -1.0
        while self.cpu() - before > 0.02:
            before = self.cpu()
            time.sleep(0.7)


@contextlib.contextmanager
def checked_out(reference: str) -> Iterator[Path]:
    """The `src` of a commit, in a worktree that is removed at the end."""
    git = ["git", "-C", str(support.ROOT), "worktree"]
    with tempfile.TemporaryDirectory(prefix="heddle-compare-") as folder:
        added = subprocess.run([*git, "add", "--detach", f"{folder}/other", reference], capture_output=True, text=True)
        if added.returncode:
            support.fail(added.stderr)
        try:
            yield Path(folder, "other", "src")
        finally:
            subprocess.run([*git, "remove", "--force", f"{folder}/other"], check=True)


def environment_of(source: Path) -> dict[str, str]:
    """What a command of a checkout runs with: nothing that was set for another heddle."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("HEDDLE_")}
    return own | {"PYTHONPATH": str(source), "HEDDLE_ACCESS_LOG": "off"}


@contextlib.contextmanager
def serving(source: Path, folder: Path) -> Iterator[Server]:
    """The server of a checkout's `src` on a new folder."""
    port = free_port()
    command = [sys.executable, "-m", "heddle", "serve", "--port", str(port), "--data", str(folder / "data")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment_of(source), stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            while not is_ready(client):
                if process.poll() is not None:
                    support.fail((folder / "log").read_text())
                time.sleep(0.02)
        yield Server(process, port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def is_ready(client: httpx.Client) -> bool:
    """True when `/ready` answers 200."""
    try:
        return client.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def post(path: str, body: Any) -> bytes:
    """A request with a body of JSON, and a key as SDKs send one."""
    return load.raw_request("POST", path, orjson.dumps(body), {"Authorization": "Bearer none"})


def some_calls(number: int, count: int) -> list[payloads.Call]:
    """Calls that no other round has."""
    return list(payloads.Payloads(seed=1000 + number).calls(count))


def fill(server: Server) -> str:
    """Give a server the calls that the reading rows read; the id of the trace of 200."""
    source = payloads.Payloads(seed=7)
    large = source.trace(200)
    calls = [*source.calls(FILLED), *large]
    parts = [calls[at : at + 100] for at in range(0, len(calls), 100)]
    server.ask([post("/call/upsert_batch", payloads.upsert_batch(part)) for part in parts])
    return str(large[0]["trace_id"])


def batches(number: int) -> list[bytes]:
    """Twenty batches of 100 starts and their ends."""
    calls = some_calls(number, 2000)
    return [post("/call/upsert_batch", payloads.upsert_batch(calls[at : at + 100])) for at in range(0, 2000, 100)]


def starts(number: int) -> list[bytes]:
    """Single starts."""
    return [post("/call/start", payloads.start_half(call)) for call in some_calls(number + 10_000, 500)]


def exports(number: int) -> list[bytes]:
    """Ten exports of 100 spans."""
    calls = some_calls(number + 20_000, 1000)
    headers = {"Content-Type": "application/x-protobuf", "project_id": PROJECT}
    return [
        load.raw_request("POST", "/otel/v1/traces", otlp.export_request(calls[at : at + 100]), headers)
        for at in range(0, 1000, 100)
    ]


def asking(path: str, count: int, **fields: Any) -> Callable[[int], list[bytes]]:
    """The same question again and again."""
    return lambda _: [post(path, {"project_id": PROJECT, **fields})] * count


def feedback(number: int) -> list[bytes]:
    """Reactions to a call."""
    note = {"project_id": PROJECT, "weave_ref": f"weave:///{PROJECT}/call/{number}", "feedback_type": "custom"}
    return [post("/feedback/create", {**note, "payload": {"note": at}}) for at in range(200)]


def field_is(field: str, value: object) -> dict[str, Any]:
    """The query `field == value`."""
    return {"$expr": {"$eq": [{"$getField": field}, {"$literal": value}]}}


NEWEST = [{"field": "started_at", "direction": "desc"}]
TRACE = "00000000-0000-0000-0000-000000000200"
"""Stands for the id of the trace of 200, which is as long."""
DAY = {"start": "2026-10-01T00:00:00Z", "end": "2026-10-02T00:00:00Z", "usage_metrics": [{"metric": "total_cost"}]}
ROWS = (
    Row("/call/upsert_batch, 100 starts and ends, per call", batches, 100),
    Row("/call/start", starts),
    Row("OTLP, 100 spans, per span", exports, 100),
    Row("/calls/stream_query, newest 100", asking("/calls/stream_query", 60, limit=100, sort_by=NEWEST)),
    Row(
        "/calls/stream_query, newest 100 with costs and feedback",
        asking("/calls/stream_query", 40, limit=100, sort_by=NEWEST, include_costs=True, include_feedback=True),
    ),
    Row("/calls/stream_query, a trace of 200", asking("/calls/stream_query", 30, filter={"trace_ids": [TRACE]})),
    Row(
        "/calls/stream_query, a condition on inputs",
        asking("/calls/stream_query", 20, limit=20, query=field_is("inputs.model", "none")),
    ),
    Row("/calls/query_stats", asking("/calls/query_stats", 60)),
    Row("/calls/stats, cost by model", asking("/calls/stats", 40, **DAY)),
    Row("/feedback/create", feedback),
    Row("/feedback/query", asking("/feedback/query", 60, limit=100)),
    Row("/v1/chat/completions, 1 token", lambda _: [post("/v1/chat/completions", CHAT)] * 60),
)


def compare(row: Row, now: Server, before: Server, rounds: int, trace: str) -> list[object]:
    """The figures of one row; the first round warms up."""
    costs: list[tuple[float, float]] = []
    for number in range(rounds + 1):
        requests = [request.replace(TRACE.encode(), trace.encode()) for request in row.make(number)]
        order = (now, before) if number % 2 else (before, now)
        spent = {id(server): server.ask(requests) for server in order}
        each = 1e6 / (len(requests) * row.units)
        costs.append((spent[id(now)] * each, spent[id(before)] * each))
    return [row.label, *figures(costs[1:])]


def start_cost(source: Path) -> float:
    """Microseconds of CPU from the start of the process to the first `/ready`."""
    with tempfile.TemporaryDirectory() as folder, serving(source, Path(folder)) as server:
        return server.cpu() * 1e6


def help_cost(source: Path) -> float:
    """Microseconds of CPU of `heddle --help`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "heddle", "--help"]
    subprocess.run(command, env=environment_of(source), check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e6


PROCESSES = (("start of the server", start_cost), ("heddle --help", help_cost))


def compare_processes(
    label: str, cost: Callable[[Path], float], sources: tuple[Path, Path], rounds: int
) -> list[object]:
    """The figures of processes that begin from nothing."""
    costs = []
    for number in range(rounds):
        spent = {which: cost(sources[which]) for which in ((0, 1) if number % 2 else (1, 0))}
        costs.append((spent[0], spent[1]))
    return [label, *figures(costs)]


def figures(costs: Sequence[tuple[float, float]]) -> list[object]:
    """Medians, and the interval of the median ratio."""
    low, middle, high = median_interval([now / before for now, before in costs])
    medians = [statistics.median(column) for column in zip(*costs, strict=True)]
    return [*medians, f"{middle:.3f}", f"{low:.3f} to {high:.3f}"]


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median between the two values that have the true one between them 95 times of 100; 6 values at least.

    Each value is below the true median as often as above it, so that the binomial distribution says how many are.
    """
    ordered, count = sorted(values), len(values)
    left_out, tail = 0, 2.0**-count
    while tail <= 0.025:
        left_out += 1
        tail += math.comb(count, left_out) * 2.0**-count
    if not left_out:
        raise ValueError(f"{count} values are too few for an interval")
    return ordered[left_out - 1], statistics.median(ordered), ordered[count - left_out]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference", help="the other commit, as git names it")
    parser.add_argument("--rounds", type=int, default=11, help="rounds of each row, 6 or more (default 11)")
    parser.add_argument("--only", default="", help="only rows whose label contains this text")
    arguments = parser.parse_args()
    if arguments.rounds < 6:
        parser.error("fewer than 6 rounds have no interval")
    support.print_machine()
    rows = []
    with contextlib.ExitStack() as stack:
        sources = (support.ROOT / "src", stack.enter_context(checked_out(arguments.reference)))
        print(f"against {support.commit_of(sources[1])} ({arguments.reference})")
        chosen = [row for row in ROWS if arguments.only in row.label]
        if chosen:
            folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in sources]
            now, before = (stack.enter_context(serving(*pair)) for pair in zip(sources, folders, strict=True))
            trace, _ = [fill(server) for server in (now, before)]
            for row in chosen:
                rows.append(compare(row, now, before, arguments.rounds, trace))
                print(*rows[-1], file=sys.stderr)
        for label, cost in PROCESSES:
            if arguments.only in label:
                rows.append(compare_processes(label, cost, sources, arguments.rounds))
                print(*rows[-1], file=sys.stderr)
    support.print_table("CPU per request or process", COLUMNS, rows)
    support.print_machine()


if __name__ == "__main__":
    main()
