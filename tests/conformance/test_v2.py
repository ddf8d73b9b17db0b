"""Random work on the /v2 families: heddle answers as the reference's in-memory server does.

Left out is what that server does otherwise than the contract asks for: names that an op and an object share, versions
named by alias in answers, the order of pages, finishing, null names (trace-evals, sections 2 and 3).
"""

import json
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

Json = Any
SOAK = os.environ.get("HEDDLE_SOAK") == "1"
SEEDS = range(4) if SOAK else range(2)
STEPS = 80
CLOCK = ("created_at", "started_at", "finished_at")
NAMES = ["A", "a b", "x/Y", "Ünï-1._", "z"]
ROWS = [[], [{"a": 1}], [{"a": 1.0, "é": None}, {"b": [1, {"c": True}]}]]
ATTRIBUTES = [None, {"t": 0.5}, {"name": "over"}, {"_bases": ["Model", "Object", "BaseModel"]}]

pytestmark = [
    pytest.mark.differential,
    pytest.mark.skipif(not ENVIRONMENT.exists(), reason="weave 0.53.0 is not installed in .clients/weave-0.53.0"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A heddle of its own."""
    with HeddleProcess(tmp_path_factory.mktemp("families") / "data") as process:
        yield process


class Sides:
    """Both servers; `ids` are the oracle's ids of calls by heddle's."""

    def __init__(self, url: str, project: str) -> None:
        self.project = project
        self.client = httpx.Client(base_url=url, timeout=60)
        self.oracle = Oracle()
        self.ids: dict[str, str] = {}
        info = self.client.post("/service/projects_info", json={"project_ids": [project]}).json()
        self.oracle.answer("PROJECT", "", {"external": project, "internal": info[0]["internal_project_id"]})

    def ask(self, verb: str, path: str, body: Json) -> tuple[Json, Json]:
        """Both bodies of an answer whose status is the same; ids of calls are those of heddle."""
        given = {"json": body} if verb == "POST" else {"params": body}
        ours = self.client.request(verb, f"/v2/{self.project}/{path}", **given)
        named = json.loads(self.translated(json.dumps({"path": path, "body": body}), self.ids))
        sent = {"project_id": self.project, **named["body"]}
        status, theirs = self.oracle.answer(verb, f"/v2/{self.project}/{named['path']}", sent)
        assert ours.status_code == status, (verb, path, body, ours.text, theirs)
        if ours.headers["content-type"].startswith(("application/x-ndjson", "application/jsonl")):
            return [json.loads(line) for line in ours.text.split("\n") if line], theirs
        return ours.json(), theirs

    def same(self, verb: str, path: str, **body: Json) -> Json:
        """Ask both and compare; returns heddle's answer, None for a refusal."""
        ours, theirs = self.ask(verb, path, body)
        if isinstance(ours, dict) and "reason" in ours:
            return None
        back = {theirs: ours for ours, theirs in self.ids.items()}
        found = list(differences(self.plain(json.loads(self.translated(json.dumps(theirs), back))), self.plain(ours)))
        assert not found, (verb, path, body, found[:10])
        return ours

    def make(self, family: str, key: str, **body: Json) -> str:
        """Make a run, a prediction or a score on both sides; returns heddle's id of it."""
        ours, theirs = self.ask("POST", family, body)
        self.ids[ours[key]] = theirs[key]
        return str(ours[key])

    @staticmethod
    def translated(text: str, names: dict[str, str]) -> str:
        """The JSON text with the names replaced."""
        for name, other in names.items():
            text = text.replace(name, other)
        return text

    def plain(self, value: Json) -> Json:
        """The answer without instants, and without what a list adds here."""
        if isinstance(value, list):
            return [self.plain(item) | {"source_evaluation_run_id": None} for item in value]
        return {key: item for key, item in value.items() if key not in CLOCK}

    def close(self) -> None:
        """End the oracle and the connections."""
        self.oracle.close()
        self.client.close()


@pytest.fixture
def sides(server: HeddleProcess, request: pytest.FixtureRequest) -> Iterator[Sides]:
    """Both servers with a project of the test's own."""
    both = Sides(server.url, f"oracle/{request.function.__name__}-{request.getfixturevalue('seed')}")
    yield both
    both.close()


def a_version(random_: random.Random, family: str) -> Json:
    """The body that makes a version."""
    name = f"{family} {random_.choice(NAMES)}"
    if family == "ops":
        return {"name": name, "source_code": random_.choice(["x = 1", "x = 2", "é"])}
    if family == "datasets":
        return {"name": name, "description": random_.choice([None, "d"]), "rows": random_.choice(ROWS)}
    source = random_.choice(["m = 1", "m = 2"])
    return {"name": name, "source_code": source, "attributes": random_.choice(ATTRIBUTES)}


@pytest.mark.parametrize("seed", with_breadth(SEEDS))
def test_objects_are_answered_alike(sides: Sides, seed: int) -> None:
    """Versions are made, read, listed and deleted, made again among them."""
    random_ = random.Random(seed)
    known: dict[str, set[tuple[str, str]]] = {"ops": set(), "datasets": set(), "models": set()}
    for _ in range(STEPS):
        family, step = random_.choice(list(known)), random_.random()
        if step < 0.45 or not known[family]:
            made = sides.same("POST", family, **a_version(random_, family))
            known[family].add((made["object_id"], made["digest"]))
            continue
        name, digest = random_.choice(sorted(known[family]))
        if step < 0.65:
            sides.same("GET", f"{family}/{name}/versions/{random_.choice([digest, digest, 'wrong'])}")
        elif step < 0.8:
            named = random_.choice([{}, {"digests": [digest]}, {"digests": [digest, "wrong"]}, {"digests": ["v0"]}])
            sides.same("DELETE", f"{family}/{name}", **named)
        elif family != "ops":
            sides.same("GET", family, **random_.choice([{}, {"limit": 0}]))


@pytest.mark.parametrize("seed", with_breadth(SEEDS))
def test_calls_are_answered_alike(sides: Sides, seed: int) -> None:
    """Runs, predictions and scores are made, read and listed."""
    random_ = random.Random(seed)
    prefix = f"weave:///{sides.project}/object"
    model, runs, predictions = f"{prefix}/Mö:" + "M" * 43, [], []
    belongs: dict[str, str | None] = {}
    for _ in range(STEPS):
        step, page = random_.random(), random_.choice([{}, {"limit": 3, "offset": 1}])
        if step < 0.1 or not runs:
            source = random_.choice([None, "other"])
            refs = {"evaluation": f"{prefix}/exam:" + "E" * 43, "model": model}
            run = sides.make("evaluation_runs", "evaluation_run_id", **refs, source_evaluation_run_id=source)
            runs.append(run)
        elif step < 0.35 or not predictions:
            run_id = random_.choice([None, *runs])
            answer = {"inputs": {"q": random_.randrange(3)}, "output": random_.choice([1, 2.5, "t", None, {"a": 1}])}
            found = sides.make("predictions", "prediction_id", model=model, **answer, evaluation_run_id=run_id)
            predictions.append(found)
            belongs[found] = run_id
        elif step < 0.6:
            prediction = random_.choice(predictions)
            run_id = random_.choice([None, belongs[prediction]])
            said = {"scorer": f"{prefix}/s:" + "S" * 43, "value": random_.choice([1, 0.5, False, None, "w", {"x": 2}])}
            sides.make("scores", "score_id", prediction_id=prediction, **said, evaluation_run_id=run_id)
        elif step < 0.7:
            sides.same("GET", f"evaluation_runs/{random_.choice(runs)}")
        elif step < 0.8:
            sides.same("GET", f"predictions/{random_.choice(predictions)}")
        elif step < 0.9:
            sides.same("GET", random_.choice(["scores", "predictions", "evaluation_runs"]), **page)
        else:
            sides.same("GET", random_.choice(["scores", "predictions"]), evaluation_run_id=random_.choice(runs))
