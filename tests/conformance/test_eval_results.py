"""Random evaluations and requests: heddle answers eval_results/query as the reference's in-memory server does.

Left out of the requests is what that server does not do (contract: trace-evals, section 5, point 9).
"""

import os
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conformance.differential.compare import differences
from tests.conformance.differential.sides import ENVIRONMENT, Oracle
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess
from tests.support.trials import LOGGER, PYTHON, TYPESCRIPT, Run

Json = Any
SOAK = os.environ.get("HEDDLE_SOAK") == "1"
SEEDS = range(12) if SOAK else range(3)
REQUESTS = 40

pytestmark = [
    pytest.mark.differential,
    pytest.mark.skipif(not ENVIRONMENT.exists(), reason="weave 0.53.0 is not installed in .clients/weave-0.53.0"),
]


class Sides:
    """Both servers; what is sent goes to each."""

    def __init__(self, url: str, project: str) -> None:
        self.project = project
        self.client = httpx.Client(base_url=url, timeout=60)
        self.oracle = Oracle()
        info = self.client.post("/service/projects_info", json={"project_ids": [project]}).json()
        internal = info[0]["internal_project_id"]
        self.oracle.answer("PROJECT", "", {"external": project, "internal": internal})

    def write(self, path: str, body: Json) -> Json:
        """Store the same on both sides."""
        ours, theirs = self.client.post(path, json=body), self.oracle.answer("POST", path, body)
        assert (ours.status_code, theirs[0]) == (200, 200), (ours.text, theirs)
        return ours.json()

    def ask(self, body: Json) -> tuple[tuple[int, Json], tuple[int, Json]]:
        """Both answers to one query."""
        path, body = f"/v2/{self.project}/eval_results/query", {"project_id": self.project, **body}
        ours = self.client.post(path, json=body)
        return (ours.status_code, ours.json()), self.oracle.answer("POST", path, body)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A heddle of its own."""
    with HeddleProcess(tmp_path_factory.mktemp("eval-results") / "data") as process:
        yield process


def a_score(random_: random.Random, name: str) -> Json:
    """A score of some type; those named `exact` are sorted by, and the other server leaves booleans out of that."""
    values = [0, 3, 0.25, -1.5, 1e22, "good", "0.5", "", None, [1], {"a": True, "b": {"c": 2.5}}, {"a": "x"}, {}]
    return random_.choice(values if name == "exact" else [*values, True, False])


def an_output(random_: random.Random) -> Json:
    """A model's answer."""
    return random_.choice(
        [None, "", "é", "7", 7, 2.5, True, [1, {"z": 1}], {"k": "v", "n": random_.randrange(5)}, {"k": 3}]
    )


def filled(sides: Sides, random_: random.Random) -> list[str]:
    """Write a dataset and two to four evaluations about its rows and about inline ones; returns their call ids."""
    rows = [{"q": f"é{number}", "n": random_.choice([number, float(number), str(number)])} for number in range(8)]
    table = sides.write("/table/create", {"table": {"project_id": sides.project, "rows": rows}})
    value = {"_type": "Dataset", "_class_name": "Dataset", "_bases": ["Object", "BaseModel"], "name": "d"}
    value["rows"] = f"weave:///{sides.project}/table/{table['digest']}"
    body = {"obj": {"project_id": sides.project, "object_id": "d", "val": value}}
    dataset = f"weave:///{sides.project}/object/d:{sides.write('/obj/create', body)['digest']}"
    examples = [f"{dataset}/attr/rows/id/{digest}" for digest in table["row_digests"]]
    runs = [
        Run(sides.project, number, random_.choice([PYTHON, LOGGER, TYPESCRIPT]), random_.choice([None, "named"]))
        for number in range(random_.randrange(2, 5))
    ]
    for run in runs:
        for _ in range(random_.randrange(12)):
            place = random_.randrange(len(rows))
            example = random_.choice([examples[place], examples[place], rows[place], {"inline": place}, None])
            scores = {name: a_score(random_, name) for name in ("exact", "close") if random_.random() < 0.8}
            run.trial(example, an_output(random_), scores, random_.choice([None, 0, 17]))
        calls = list(run.calls)
        random_.shuffle(calls)
        sides.write(f"/v2/{sides.project}/calls/complete", {"batch": calls})
    return [run.id for run in runs]


FIELDS = [
    "scores.exact", "scores.close", "scores.close.a", "scores.close.b", "scores.close.b.c", "inputs", "inputs.q",
    "inputs.n", "inputs.inline", "row_digest",
]  # fmt: skip
LITERALS = [0, 1, 2.5, 7, -1.5, 0.7, "7", "v", "é3", "good", "0.5", "", "true", True, False, None]


def a_condition(random_: random.Random) -> Json:
    """A condition on some field, or two. Left out is where the contract and that server part: `$in`, `exists`, `$not`
    of a connective, what of the output TypeScript calls otherwise."""
    if random_.random() < 0.2:
        return {random_.choice(["$and", "$or"]): [a_condition(random_), a_condition(random_)]}
    field: Json = {"$getField": random_.choice(FIELDS)}
    if random_.random() < 0.2:
        substring = {"$literal": random_.choice(["v", "É", "3", "G"])}
        return {"$contains": {"input": field, "substr": substring, "case_insensitive": random_.random() < 0.5}}
    literal = random_.choice(LITERALS)
    if random_.random() < 0.2 and literal is not None:
        field = {"$convert": {"input": field, "to": random_.choice(["double", "int", "string", "bool"])}}
    compared = {random_.choice(["$eq", "$eq", "$gt", "$gte", "$lt", "$lte"]): [field, {"$literal": literal}]}
    return {"$not": [compared]} if random_.random() < 0.2 else compared


def a_request(random_: random.Random, ids: list[str]) -> Json:
    """A query in the part of the language that both speak."""
    chosen = random_.sample([*ids, "unknown"], random_.randrange(1, len(ids) + 1))
    body: dict[str, Json] = {random_.choice(["evaluation_call_ids", "evaluation_run_ids"]): [*chosen, chosen[0]]}
    for key in (
        "require_intersection",
        "include_raw_data_rows",
        "include_summary",
        "include_predict_and_score_children",
    ):
        body[key] = random_.random() < 0.5
    body["resolve_row_refs"] = True
    if random_.random() < 0.5:
        body |= {"limit": random_.randrange(6), "offset": random_.randrange(4)}
    if random_.random() < 0.2:
        body["include_rows"] = False
    elif random_.random() < 0.4:
        fields = random_.sample(["scores.exact", "scores.close.b.c", "scores.none"], 2)
        body["sort_by"] = [{"field": field, "direction": random_.choice(["asc", "desc"])} for field in fields]
    if random_.random() < 0.4:
        # That server knows no other way to join filters.
        body["filter_logic_operator"] = "and"
        body["filters"] = [
            {"query": {"$expr": a_condition(random_)}, "evaluation_call_id": random_.choice([None, *ids])}
            for _ in range(random_.randrange(1, 3))
        ]
    elif "sort_by" not in body and random_.random() < 0.5:
        body["summary_require_intersection"] = random_.random() < 0.5
    return body


def comparable(answer: Json, body: Json) -> Json:
    """The answer without what heddle adds (contract: the points marked [D]), and without what the other leaves out."""
    if answer.get("summary"):
        for item in answer["summary"]["evaluations"]:
            item.pop("predict_total_cost", None)
            if "sort_by" in body:
                # The other server sums in the order of the rows, which decides the type of a mixed dimension.
                item["scorer_stats"].sort(key=lambda stats: (stats["scorer_key"], stats["path"] or ""))
                for stats in item["scorer_stats"]:
                    stats.pop("value_type")
        answer["summary"]["evaluations"].sort(key=lambda item: item["evaluation_call_id"])
    for row in answer.get("rows", ()):
        if not body["include_raw_data_rows"]:
            row["raw_data_row"] = None
        for trial in (trial for entry in row["evaluations"] for trial in entry["trials"]):
            trial.pop("total_cost", None)
            # Added: the output of TypeScript, a plain latency, and calls of function scorers.
            for added in ("model_output", "model_latency_seconds", "scorer_call_ids"):
                trial.pop(added)
    if body.get("include_rows") is False:
        answer["total_rows"] = 0
    return answer


@pytest.mark.parametrize("seed", with_breadth(SEEDS))
def test_same_answers(server: HeddleProcess, seed: int) -> None:
    """Each query is answered alike."""
    random_ = random.Random(seed)
    sides = Sides(server.url, f"oracle/results-{seed}")
    try:
        ids = filled(sides, random_)
        for _ in range(REQUESTS):
            body = a_request(random_, ids)
            (status, ours), (expected_status, theirs) = sides.ask(body)
            assert status == expected_status == 200, (body, ours, theirs)
            found = list(differences(comparable(theirs, body), comparable(ours, body)))
            assert not found, (body, found[:10])
    finally:
        sides.oracle.close()
        sides.client.close()
