"""How long the first page of compared evaluations takes: 10,000 rows, 4 evaluations, three calls below each trial.

    python benchmarks/eval_results.py                  # the first run builds the folder (160,000 calls)
    python benchmarks/eval_results.py --rows 1000

The peer in the same run is reading the calls themselves: those of the page, and all trials as a client without this
route would have to.
"""

import argparse
import json
import random
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import load, support
from benchmarks.query import Client

PROJECT = "bench/evals"
EVALUATIONS = 4
BATCH_TRIALS = 100
GOAL = "≤ 300 ms"
COLUMNS = ("request", "answer", "p50 ms", "p95 ms", "CPU ms", "goal")
QUERY = f"/v2/{PROJECT}/eval_results/query"
STREAM = "/calls/stream_query"
Json = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One row of the table."""

    label: str
    path: str
    body: Json
    repeats: int = 20
    goal: str | None = None


def built_folder(rows: int, rebuild: bool) -> tuple[Path, Json]:
    """A data folder with a dataset and four evaluations of it, and their ids; built once."""
    home = support.CACHE / f"evals-{rows}x{EVALUATIONS}"
    facts = home / "facts.json"
    if facts.exists() and not rebuild:
        return home / "data", json.loads(facts.read_text())
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    began = time.perf_counter()
    with support.Heddle(home / "data") as server:
        assert server.process is not None
        client = Client(server.port)
        examples = dataset(client, rows)
        runs = [Run(number, examples) for number in range(EVALUATIONS)]
        before = support.cpu_seconds(server.process.pid)
        for run in runs:
            send(server.port, run)
            print(f"\rbuilding: evaluation {run.number + 1} of {EVALUATIONS}", end="", file=sys.stderr, flush=True)
        cpu = support.cpu_seconds(server.process.pid) - before
    built = {"ids": [run.id for run in runs], "rows": rows, "seconds": time.perf_counter() - began}
    built["cpu_per_call_us"] = cpu / (EVALUATIONS * (4 * rows + 1)) * 1e6
    built["megabytes"] = support.folder_megabytes(home / "data")
    facts.write_text(json.dumps(built))
    print(f"\rbuilt in {built['seconds']:.0f} s, {built['cpu_per_call_us']:.0f} µs of CPU per call", file=sys.stderr)
    return home / "data", built


def dataset(client: Client, count: int) -> list[str]:
    """Publish the dataset; returns the refs of its rows."""
    words = ("sum", "product", "difference", "quotient")
    rows = [
        {"id": number, "question": f"{words[number % 4]} of {number} and 7?", "expected": number}
        for number in range(count)
    ]
    table = orjson.loads(client.post("/table/create", {"table": {"project_id": PROJECT, "rows": rows}})[0])
    value = {"_type": "Dataset", "_class_name": "Dataset", "_bases": ["Object", "BaseModel"], "name": "questions"}
    value["rows"] = f"weave:///{PROJECT}/table/{table['digest']}"
    made = client.post("/obj/create", {"obj": {"project_id": PROJECT, "object_id": "questions", "val": value}})[0]
    prefix = f"weave:///{PROJECT}/object/questions:{orjson.loads(made)['digest']}/attr/rows/id/"
    return [prefix + digest for digest in table["row_digests"]]


class Run:
    """One evaluation as the Python SDK writes it: per row the trial, the call of the model and two of scorers."""

    def __init__(self, number: int, examples: list[str]) -> None:
        self.number = number
        self.id = str(uuid.UUID(int=number + 1))
        self._examples = examples
        self._random = random.Random(number)
        self._begin = datetime(2026, 1, 1 + number, tzinfo=UTC)
        self._self = f"weave:///{PROJECT}/object/quality:{'E' * 43}"
        self._model = f"weave:///{PROJECT}/object/model-{number}:{'M' * 43}"

    def root(self) -> Json:
        """The call of the whole run."""
        inputs = {"self": self._self, "model": self._model}
        return self._call(self.id, None, "Evaluation.evaluate", 0, 3600, inputs, {}, {}, {})

    def trial(self, place: int) -> list[Json]:
        """The four calls of a row, the children first."""
        call_id, at = str(uuid.UUID(int=(self.number + 1) << 64 | place)), 0.05 * place
        text = " ".join(self._random.choices(("alpha", "beta", "gamma", "delta"), k=60))
        exact, distance = self._random.random() < 0.6, self._random.random()
        meta = {"_weave_eval_meta": {"declarative": True}}
        tokens = self._random.randrange(100, 900)
        usage = {"usage": {"gpt-4o": {"prompt_tokens": tokens - 50, "completion_tokens": 50, "total_tokens": tokens}}}
        example = self._examples[place]
        predict = {"self": self._model, "question": f"{example}/key/question"}
        given = {"self": self._self, "model": self._model, "example": example}
        output = {"output": text, "scores": {"exact": exact, "distance": {"value": distance}}, "model_latency": 0.6}
        scored = {"output": text, "expected": f"{example}/key/expected"}
        marked = {**meta, "weave": {"kind": "scorer"}}
        return [
            self._call(f"{call_id}-predict", call_id, "Model.predict", at + 0.01, at + 0.6, predict, text, meta, usage),
            self._call(f"{call_id}-exact", call_id, "exact", at + 0.6, at + 0.61, scored, exact, meta, {}),
            self._call(
                f"{call_id}-distance",
                call_id,
                "Distance.score",
                at + 0.61,
                at + 0.62,
                scored,
                {"value": distance},
                marked,
                {},
            ),
            self._call(call_id, self.id, "Evaluation.predict_and_score", at, at + 0.7, given, output, meta, usage),
        ]

    def _call(
        self,
        call_id: str,
        parent: str | None,
        op: str,
        at: float,
        until: float,
        inputs: Json,
        output: Any,
        attributes: Json,
        summary: Json,
    ) -> Json:
        return {
            "project_id": PROJECT,
            "id": call_id,
            "trace_id": self.id,
            "parent_id": parent,
            "op_name": f"weave:///{PROJECT}/op/{op}:{'O' * 43}",
            "started_at": (self._begin + timedelta(seconds=at)).isoformat(),
            "ended_at": (self._begin + timedelta(seconds=until)).isoformat(),
            "attributes": attributes,
            "inputs": inputs,
            "output": output,
            "summary": summary,
        }

    def batches(self) -> Iterator[list[Json]]:
        """All calls, some trials at a time."""
        yield [self.root()]
        count = len(self._examples)
        for first in range(0, count, BATCH_TRIALS):
            places = range(first, min(count, first + BATCH_TRIALS))
            yield [call for place in places for call in self.trial(place)]


def send(port: int, run: Run) -> None:
    """Store a run through the API."""
    path = f"/v2/{PROJECT}/calls/complete"
    requests = [load.raw_request("POST", path, orjson.dumps({"batch": calls})) for calls in run.batches()]
    result = load.drive(port, requests, clients=4)
    if set(result.statuses) != {200}:
        support.fail(f"building the folder: answers {dict(result.statuses)}")


def requests(facts: Json) -> list[Request]:
    """What is asked."""
    ids = facts["ids"]
    page: Json = {"evaluation_call_ids": ids, "limit": 100}
    score = {"field": "scores.distance.value", "direction": "desc"}
    wrong = {"$expr": {"$eq": [{"$getField": "scores.exact"}, {"$literal": False}]}}
    summary = {"include_summary": True}
    return [
        Request("first page", QUERY, page, goal=GOAL),
        Request("  with the data", QUERY, page | {"include_raw_data_rows": True, "resolve_row_refs": True}, goal=GOAL),
        Request("  sorted by a score", QUERY, page | {"sort_by": [score]}, goal=GOAL),
        Request("  sorted by the difference of a score", QUERY, page | {"sort_by": [score | {"mode": "difference"}]}),
        Request("  sorted by the input", QUERY, page | {"sort_by": [{"field": "inputs.id", "direction": "desc"}]}),
        Request(
            "  filtered by a score of one", QUERY, page | {"filters": [{"query": wrong, "evaluation_call_id": ids[0]}]}
        ),
        Request("  only rows of all", QUERY, page | {"require_intersection": True}),
        Request("  with a summary", QUERY, page | summary, goal=GOAL),
        Request("  sorted by a score, with a summary", QUERY, page | summary | {"sort_by": [score]}, goal=GOAL),
        Request("  with a summary and costs", QUERY, page | summary | {"include_costs": True}),
        Request("page 50", QUERY, page | {"offset": 4900}, goal=GOAL),
        Request("all rows", QUERY, {"evaluation_call_ids": ids}, repeats=2),
    ]


def raw_requests(facts: Json, first: Json) -> list[Request]:
    """The same calls without this route: those of the first page, and all trials."""
    trials = [trial for row in first["rows"] for entry in row["evaluations"] for trial in entry["trials"]]
    ids = [trial["predict_and_score_call_id"] for trial in trials]
    own: Json = {"project_id": PROJECT, "filter": {"call_ids": ids}}
    below: Json = {"project_id": PROJECT, "filter": {"parent_ids": ids}}
    every: Json = {"project_id": PROJECT, "filter": {"parent_ids": facts["ids"]}}
    return [
        Request(f"raw: the {len(ids)} trials of that page", STREAM, own),
        Request("raw: the calls below them", STREAM, below),
        Request("raw: all trials", STREAM, every, repeats=2),
    ]


def measure(client: Client, pid: int, request: Request) -> list[object]:
    """Ask once to warm up, then `repeats` times."""
    content, _ = client.post(request.path, request.body)
    cpu = support.fine_cpu_seconds(pid)
    times = [client.post(request.path, request.body)[1] for _ in range(request.repeats)]
    cpu = (support.fine_cpu_seconds(pid) - cpu) / request.repeats * 1000
    quick, slow = support.percentile(times, 0.5) * 1000, support.percentile(times, 0.95) * 1000
    count = content.count(b'"row_digest"') if request.path == QUERY else content.count(b"\n")
    unit = "rows" if request.path == QUERY else "calls"
    print(f"{request.label.strip()}: done", file=sys.stderr)
    return [request.label, f"{count:,} {unit}, {len(content) / 1000:,.0f} kB", quick, slow, cpu, request.goal]


def main() -> None:
    """Print the table, and the memory of the server after all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000, help="rows of the dataset (default 10000)")
    parser.add_argument("--rebuild", action="store_true", help="build the folder anew")
    arguments = parser.parse_args()
    data, facts = built_folder(arguments.rows, arguments.rebuild)
    support.print_machine()
    with support.Heddle(data) as server:
        assert server.process is not None
        pid, client = server.process.pid, Client(server.port)
        support.settle(pid, limit=20)
        idle = support.private_megabytes(pid)
        asked = requests(facts)
        first = orjson.loads(client.post(asked[0].path, asked[0].body)[0])
        rows = [measure(client, pid, request) for request in asked[:-1]]
        paged = support.private_megabytes(pid)
        rows += [measure(client, pid, request) for request in [asked[-1], *raw_requests(facts, first)]]
        whole = support.private_megabytes(pid)
    title = f"{facts['rows']:,} rows x {EVALUATIONS} evaluations ({facts['megabytes']:,.0f} MB on disk)"
    support.print_table(title, COLUMNS, rows)
    print(f"\nprivate memory: {idle:.0f} MB at the start, {paged:.0f} MB after the pages, {whole:.0f} MB at the end")
    support.print_machine()


if __name__ == "__main__":
    main()
