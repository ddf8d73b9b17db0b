"""Keys and training: each reaches its own projects only, reads or writes as its scopes say."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.cli import make_key
from tests.support.server import HeddleProcess
from tests.support.training import TrainingWire, two_rollouts


@dataclass(frozen=True)
class Guarded:
    """A server that needs keys, and a caller for each sort of key."""

    process: HeddleProcess
    keys: dict[str, str]
    models: dict[str, dict[str, Any]]
    jobs: dict[str, str]

    def wire(self, who: str) -> TrainingWire:
        """A caller with one of the keys."""
        return TrainingWire(self.process.url, bearer=self.keys[who])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A model with a job in each of three projects."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    keys = {
        "root": make_key(data, "root", "--scope", "admin"),
        "reader": make_key(data, "reader", "--scope", "read"),
        "writer": make_key(data, "writer", "--scope", "write"),
        "one": make_key(data, "one", "--role", "editor+delete:team/one"),
        "team": make_key(data, "team", "--role", "editor+delete:team"),
    }
    with HeddleProcess(data, auth="on") as process, TrainingWire(process.url, bearer=keys["root"]) as root:
        models, jobs = {}, {}
        for place in ("team/one", "team/two", "other/one"):
            entity, project = place.split("/")
            models[place] = root.model(entity=entity, project=project)
            jobs[place] = root.job(models[place], two_rollouts(equal=True))
        for job_id in jobs.values():
            root.until_ended(job_id)
        yield Guarded(process, keys, models, jobs)


REACHED = {
    "root": {"team/one", "team/two", "other/one"},
    "reader": {"team/one", "team/two", "other/one"},
    "one": {"team/one"},
    "team": {"team/one", "team/two"},
}


@pytest.mark.parametrize("who", REACHED)
def test_what_a_key_sees(who: str, guarded: Guarded) -> None:
    with guarded.wire(who) as caller:
        found = {f"{model['entity']}/{model['project']}" for model in caller.get("/models")["data"]}
        assert found == REACHED[who]
        seen = {job["id"] for job in caller.get("/training-jobs")["data"]}
        assert seen == {guarded.jobs[place] for place in REACHED[who]}
        for place, model in guarded.models.items():
            status = 200 if place in REACHED[who] else 404
            for path in (
                f"/models/{model['id']}",
                f"/models/{model['id']}/checkpoints",
                f"/models/{model['id']}/logs",
                f"/training-jobs/{guarded.jobs[place]}",
                f"/training-jobs/{guarded.jobs[place]}/events",
                f"/training-jobs/{guarded.jobs[place]}/trajectories",
            ):
                assert caller.ask("GET", path).status_code == status, (place, path)


def test_what_a_key_cannot_change(guarded: Guarded) -> None:
    with guarded.wire("one") as caller:
        other = guarded.models["team/two"]
        job = {"model_id": other["id"], "trajectory_groups": []}
        assert caller.refused(404, "POST", "/training-jobs", job)["detail"] == "Model not found"
        caller.refused(404, "POST", f"/models/{other['id']}/log", {"split": "val", "trajectory_groups": []})
        caller.refused(404, "POST", f"/models/{other['id']}/rollback", {"step": 0})
        caller.refused(404, "DELETE", f"/models/{other['id']}")
        caller.refused(404, "DELETE", f"/models/{other['id']}/checkpoints", {"steps": [0]})
        caller.refused(404, "POST", f"/training-jobs/{guarded.jobs['team/two']}/cancel")
        refused = caller.refused(403, "POST", "/models", caller.wanted(entity="team", project="two"))
        assert "cannot access" in refused["detail"]
        own = guarded.models["team/one"]
        address = f"wandb-artifact:///team/two/{other['name']}:step0"
        body = {"model_id": own["id"], "trajectory_groups": [], "experimental_config": {"kl_ref_adapter_path": address}}
        assert "not found in team/two" in caller.refused(400, "POST", "/training-jobs", body)["detail"]


def test_the_entity_of_a_bound_key(guarded: Guarded) -> None:
    with guarded.wire("team") as caller:
        model = caller.model(entity=None, project="mine")
        assert model["entity"] == "team"
        job_id = caller.job(model, two_rollouts(equal=True))
        caller.delete(f"/models/{model['id']}")
        caller.until_ended(job_id)
    with guarded.wire("one") as other:
        other.refused(404, "GET", f"/training-jobs/{job_id}")


def test_scopes(guarded: Guarded) -> None:
    model, job_id = guarded.models["team/one"], guarded.jobs["team/one"]
    with guarded.wire("reader") as reader, guarded.wire("writer") as writer:
        for method, path, body in (
            ("POST", "/models", reader.wanted()),
            ("DELETE", f"/models/{model['id']}", None),
            ("POST", f"/models/{model['id']}/rollback", {"step": 0}),
            ("POST", f"/models/{model['id']}/log", {"split": "val", "trajectory_groups": []}),
            ("DELETE", f"/models/{model['id']}/checkpoints", {"steps": [0]}),
            ("POST", "/training-jobs", {"model_id": model["id"], "trajectory_groups": []}),
            ("POST", "/sft-training-jobs", {"model_id": model["id"], "training_data_url": "x"}),
            ("POST", f"/training-jobs/{job_id}/cancel", None),
        ):
            needed = "delete" if method == "DELETE" else "write"
            assert needed in reader.refused(403, method, path, body)["detail"]
        for path in ("/models", f"/models/{model['id']}", "/training-jobs", f"/training-jobs/{job_id}/events"):
            assert "read" in writer.refused(403, "GET", path)["detail"]
        assert writer.post(f"/models/{model['id']}/log", split="val", trajectory_groups=[]) is None
    with TrainingWire(guarded.process.url, bearer="wrong") as stranger:
        stranger.refused(401, "GET", "/models")
