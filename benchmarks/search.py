"""What a text search costs: how long the newest 50 hits take, what the index adds to taking calls in, and its size.

    python benchmarks/search.py                      # 100,000 calls; the first run builds the folder
    python benchmarks/search.py --calls 1000000

Words, phrases and identifiers are drawn from the calls themselves: words evenly over their ranks, so that common and
rare ones are among them. Times are those of one client over HTTP, from the request to the last byte.
"""

import argparse
import contextlib
import random
import sqlite3
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import folders, load, support
from benchmarks.ingest import completes
from benchmarks.payloads import Payloads
from benchmarks.query import NEWEST, PROJECT, Client

COLUMNS = ("search", "texts", "hits of 50", "p50 ms", "p95 ms", "slowest ms", "CPU ms", "goal")
INGEST_COLUMNS = ("way", "calls", "calls/s", "server CPU µs/call", "index behind, s", "goal")
GOAL = "p95 ≤ 50 ms"


def texts_of(facts: folders.Facts, count: int) -> dict[str, list[str]]:
    """Search texts of each kind."""
    chance = random.Random(5)
    payloads = Payloads()
    words = payloads.words
    sentences = [chance.choice(payloads.sentences).split() for _ in range(2 * count)]
    at = [chance.randrange(len(sentence) - 4) for sentence in sentences]
    ids = chance.sample(facts["ids"], min(count, len(facts["ids"])))
    return {
        "any word": [words[round(len(words) ** chance.random()) - 1] for _ in range(count)],
        "one of the 20 commonest words": [chance.choice(words[:20]) for _ in range(count)],
        "two words": [" ".join(chance.sample(words[:5000], 2)) for _ in range(count)],
        "phrase of 2 words": [
            f'"{" ".join(sentence[start : start + 2])}"' for sentence, start in zip(sentences[:count], at, strict=False)
        ],
        "phrase of 4 words": [
            f'"{" ".join(sentence[start : start + 4])}"'
            for sentence, start in zip(sentences[count:], at[count:], strict=False)
        ],
        "identifier in an output": [f"chatcmpl-{found[-12:]}" for found in ids],
        "id of a call": ids,
        "no hit": [f"absent{number}" for number in range(count)],
        "prefix of 4 letters": [f"{word[:4]}*" for word in chance.sample([w for w in words if len(w) > 5], count)],
    }


def body(text: str, **more: Any) -> dict[str, Any]:
    """The request for the newest 50 calls that hold a text."""
    query = {"$expr": {"$search": {"text": text}}}
    return {"project_id": PROJECT, "limit": 50, "sort_by": NEWEST, "query": query, **more}


def measure(client: Client, pid: int, label: str, texts: Iterable[str], **more: Any) -> list[object]:
    """A row: each text once, without a request before it."""
    times, hits = [], []
    cpu = support.fine_cpu_seconds(pid)
    for text in texts:
        content, taken = client.post("/calls/stream_query", body(text, **more))
        times.append(taken * 1000)
        hits.append(content.count(b"\n"))
    cpu = (support.fine_cpu_seconds(pid) - cpu) / len(times) * 1000
    quick, slow = support.percentile(times, 0.5), support.percentile(times, 0.95)
    goal = GOAL if label.startswith(("any", "phrase", "ident")) else None
    return [label, len(times), sum(hits) / len(hits), quick, slow, max(times), cpu, goal]


def wait_for_index(data: Path) -> float:
    """Wait until everything is indexed; the seconds that it took."""
    began = time.perf_counter()
    left = "SELECT (SELECT max(rid) FROM calls) - high + low + (SELECT count(*) FROM search_waiting) FROM search_state"
    with contextlib.closing(sqlite3.connect(f"file:{data / 'heddle.db'}?mode=ro", uri=True)) as database:
        while database.execute(f"{left} WHERE kind = 'calls'").fetchone()[0]:
            time.sleep(0.5)
    return time.perf_counter() - began


def index_share(data: Path) -> tuple[float, float]:
    """Megabytes of the index, and of everything else in the database."""
    with contextlib.closing(sqlite3.connect(f"file:{data / 'heddle.db'}?mode=ro", uri=True)) as database:
        sizes = dict(database.execute("SELECT name LIKE 'search%', sum(pgsize) FROM dbstat GROUP BY 1"))
    return sizes.get(1, 0) / 1e6, sizes.get(0, 0) / 1e6


def ingest_row(count: int, with_index: bool) -> list[object]:
    """Server CPU per call of taking calls in and indexing them, until the index has them all."""
    calls = list(Payloads(seed=7).calls(count))
    requests = [load.raw_request("POST", path, content) for path, content in completes(calls)]
    warm = [load.raw_request("POST", path, content) for path, content in completes(list(Payloads(seed=2).calls(1000)))]
    with (
        support.scratch_folder() as folder,
        support.Heddle(folder / "data", search="on" if with_index else "off") as server,
    ):
        assert server.process is not None
        load.drive(server.port, warm, 4)
        support.settle(server.process.pid, limit=10)
        before = support.cpu_seconds(server.process.pid)
        result = load.drive(server.port, requests, 4)
        behind = wait_for_index(folder / "data") if with_index else None
        support.settle(server.process.pid, limit=10)
        cpu = support.cpu_seconds(server.process.pid) - before
    label = "calls/complete, 100, 4 clients, " + ("with the index" if with_index else "without")
    return [label, count, count / result.wall, cpu / count * 1e6, behind, "≤ 200 µs" if with_index else None]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=100_000, help="calls in the folder (default 100000)")
    parser.add_argument("--searches", type=int, default=100, help="texts of each kind (default 100)")
    parser.add_argument(
        "--ingest", type=int, default=20_000, help="calls of a row of ingest, 0 for none (default 20000)"
    )
    parser.add_argument("--rebuild", action="store_true", help="build the folder anew")
    arguments = parser.parse_args()
    data, facts = folders.built_folder(arguments.calls, arguments.rebuild)
    support.print_machine()
    with support.Heddle(data) as server:
        assert server.process is not None
        pid, client = server.process.pid, Client(server.port)
        print(f"indexed what was not yet in {wait_for_index(data):.0f} s", file=sys.stderr)
        support.settle(pid, limit=20)
        client.post("/calls/stream_query", body("absent"))
        rows = [measure(client, pid, label, texts) for label, texts in texts_of(facts, arguments.searches).items()]
        traces = {"filter": {"trace_roots_only": True}}
        words = texts_of(facts, arguments.searches)["any word"]
        rows.append(measure(client, pid, "word among roots", words, **traces))
        index, others = index_share(data)
    support.print_table(f"The newest 50 of a search among {facts['count']:,} calls", COLUMNS, rows)
    print(f"\nindex {index:,.0f} MB beside {others:,.0f} MB: {index / others:.1%} (goal ≤ 25 %)")
    if arguments.ingest:
        ingested = [ingest_row(arguments.ingest, with_index) for with_index in (False, True)]
        support.print_table("Taking calls in, until the index has them", INGEST_COLUMNS, ingested)
    support.print_machine()


if __name__ == "__main__":
    main()
