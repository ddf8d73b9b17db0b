"""Jobs on the wire: queued with their body, their events, cancelled, listed, and refused when too many wait."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import HeddleProcess
from tests.support.training import NOBODY, TrainingWire, succeeded, two_rollouts

IDS = ["id", "model_id", "kind", "state", "step", "parent_step", "error", "config", "created_at", "ended_at"]


def test_a_job(training: TrainingWire) -> None:
    model = training.model()
    body = {
        "model_id": model["id"],
        "trajectory_groups": two_rollouts(),
        "experimental_config": {"learning_rate": 0.01},
    }
    created = training.post("/training-jobs", **body)
    assert set(created) == {"id"}
    events = training.until_ended(created["id"])
    assert [event["type"] for event in events] == ["training_started", "gradient_step", "training_ended"]
    assert all(set(event) == {"id", "type", "data"} for event in events)
    assert all(isinstance(value, float) for value in events[1]["data"].values())
    assert events[0]["data"]["num_sequences"] == 1 and events[2]["data"]["step"] == 1
    job = training.get(f"/training-jobs/{created['id']}")
    assert set(IDS) <= set(job)
    assert (job["state"], job["kind"], job["step"], job["parent_step"]) == ("succeeded", "rl", 1, 0)
    config = job["config"]
    assert config["settings"]["learning_rate"] == 0.01
    assert (config["threads"], config["dtype"], config["promotion"], config["source"]) == (1, "float32", None, None)
    assert training.steps(model) == [0, 1]
    stored = training.get(f"/training-jobs/{created['id']}/trajectories")
    assert stored["trajectory_groups"] == body["trajectory_groups"] and stored["id"] == created["id"]


def test_events_are_stable_pages(training: TrainingWire) -> None:
    model = training.model()
    job_id = training.job(model)
    events = training.until_ended(job_id)
    path = f"/training-jobs/{job_id}/events"
    assert training.get(path)["data"] == events == training.get(path, after="")["data"]
    first = training.get(path, limit=1)
    assert (first["data"], first["has_more"]) == (events[:1], True)
    rest = training.get(path, limit=2, after=events[0]["id"])
    assert (rest["data"], rest["has_more"]) == (events[1:], False)
    end = training.get(path, after=events[-1]["id"])
    assert end == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}
    assert training.refused(400, "GET", path, after=NOBODY)["error"]["param"] == "after"
    for limit in (0, 101, "x"):
        assert training.refused(422, "GET", path, limit=limit)["detail"][0]["loc"] == ["query", "limit"]


def streamed(training: TrainingWire, path: str, headers: dict[str, str]) -> list[dict[str, Any]]:
    """The events of a stream that ends by itself; id and event lines must agree with the data."""
    events = []
    with training.client.stream("GET", f"/v1/preview{path}", headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        for block in "".join(answer.iter_text()).split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
            if lines:
                event = json.loads(lines["data"])
                assert (lines["id"], lines["event"]) == (event["id"], event["type"])
                events.append(event)
    return events


def test_events_as_a_stream(training: TrainingWire) -> None:
    model = training.model()
    job_id = training.job(model)
    accept = {"accept": "text/event-stream"}
    live = streamed(training, f"/training-jobs/{job_id}/events", accept)
    assert live == training.events(job_id) and live[-1]["type"] == "training_ended"
    assert streamed(training, f"/training-jobs/{job_id}/events/stream", {}) == live
    resumed = streamed(training, f"/training-jobs/{job_id}/events", {**accept, "last-event-id": live[0]["id"]})
    assert resumed == live[1:]
    assert streamed(training, f"/training-jobs/{job_id}/events/stream", {"last-event-id": live[-1]["id"]}) == []
    path = f"/v1/preview/training-jobs/{job_id}/events"
    assert training.client.get(path, headers={**accept, "last-event-id": "x"}).status_code == 400
    assert training.client.get(f"/v1/preview/training-jobs/{NOBODY}/events", headers=accept).status_code == 404


@pytest.mark.parametrize("job_id", ["none", NOBODY, "1" * 3000])
def test_an_unknown_job_is_404(job_id: str, training: TrainingWire) -> None:
    for method, path in (
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/events/stream"),
        ("GET", "/trajectories"),
        ("POST", "/cancel"),
    ):
        assert training.refused(404, method, f"/training-jobs/{job_id}{path}")["detail"] == "TrainingJob not found"


def test_an_unknown_model_is_404(training: TrainingWire) -> None:
    body = {"model_id": NOBODY, "trajectory_groups": []}
    assert training.refused(404, "POST", "/training-jobs", body)["detail"] == "Model not found"


def test_what_is_wrong_is_named_by_its_place(training: TrainingWire) -> None:
    model = training.model()
    groups = two_rollouts()
    groups[0]["trajectories"][1]["messages_and_choices"][1]["logprobs"]["content"][0]["logprob"] = "low"
    groups.append({"trajectories": [{"reward": float("nan")}]})
    body = {"model_id": model["id"], "trajectory_groups": groups}
    content = json.dumps(body).encode()
    assert b"NaN" in content
    answer = training.client.post("/v1/preview/training-jobs", content=content)
    assert answer.status_code == 422
    start = ["body", "trajectory_groups"]
    assert [item["loc"] for item in answer.json()["detail"]] == [
        [*start, 0, "trajectories", 1, "messages_and_choices", 1, "logprobs", "content", 0, "logprob"],
        [*start, 1, "trajectories", 0, "reward"],
    ]
    assert training.get("/training-jobs", model_id=model["id"])["data"] == []


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/etc/passwd", "the address of a step"),
        ("wandb-artifact:///{entity}/lab/{name}", "the address of a step"),
        ("wandb-artifact:///{entity}/lab/{name}:step7", "no step 7"),
        ("wandb-artifact:///{entity}/lab/nobody:step0", "not found in"),
    ],
)
def test_a_policy_to_compare_with_must_be_there(address: str, words: str, training: TrainingWire) -> None:
    model = training.model()
    config = {"kl_ref_adapter_path": address.format(**model)}
    body = {"model_id": model["id"], "trajectory_groups": [], "experimental_config": config}
    refused = training.refused(400, "POST", "/training-jobs", body)
    assert refused["error"]["param"] == "kl_ref_adapter_path" and words in refused["detail"]


def test_comparing_with_the_step_of_another_model(training: TrainingWire) -> None:
    model, other = training.model(), training.model()
    address = f"wandb-artifact:///{other['entity']}/lab/{other['name']}:step0"
    job = training.train(model, experimental_config={"kl_penalty_coef": 0.1, "kl_ref_adapter_path": address})
    assert job["config"]["kl_reference"] == f"training/{other['id']}/checkpoints/0000"


def test_fields_that_heddle_does_not_know(training: TrainingWire) -> None:
    model = training.model()
    job_id = training.job(model, experimental_config={"from_the_future": 1}, another_key=2)
    events = training.until_ended(job_id)
    assert events[0]["data"]["ignored/from_the_future"] == 1.0
    assert events[-1]["type"] == "training_ended"


def test_listing(training: TrainingWire) -> None:
    model, other = training.model(), training.model()
    jobs = [training.job(model, []), training.job(other, []), training.job(model, [])]
    for job_id in jobs:
        training.until_ended(job_id)
    assert [job["id"] for job in training.get("/training-jobs", model_id=model["id"])["data"]] == [jobs[0], jobs[2]]
    newest = training.get("/training-jobs", limit=3, order="desc")["data"]
    assert [job["id"] for job in newest] == jobs[::-1]
    done = training.get("/training-jobs", model_id=model["id"], state="succeeded", order="desc", limit=1)
    assert ([job["id"] for job in done["data"]], done["has_more"]) == ([jobs[2]], True)
    assert training.get("/training-jobs", model_id=model["id"], state="failed")["data"] == []
    training.refused(404, "GET", "/training-jobs", model_id=NOBODY)
    refused = training.refused(422, "GET", "/training-jobs", state="done")
    assert refused["detail"][0]["loc"] == ["query", "state"]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server where one job of a model may wait, with small bodies."""
    folder = tmp_path_factory.mktemp("narrow") / "data"
    with HeddleProcess(folder, training_queue=1, max_training_body=20_000) as process:
        yield process


def test_too_many_wait(narrow: HeddleProcess) -> None:
    with TrainingWire(narrow.url) as training:
        model, other = training.model(), training.model()
        # The process that trains needs a while to start, so the first job runs and the next ones wait.
        answers, body = [], {"model_id": model["id"], "trajectory_groups": two_rollouts()}
        while not answers or (answers[-1].status_code == 200 and len(answers) < 50):
            answers.append(training.ask("POST", "/training-jobs", body))
        assert answers[-1].status_code == 429, answers[-1].text
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert "wait" in answers[-1].json()["detail"]
        succeeded(training.ask("POST", "/training-jobs", {**body, "model_id": other["id"]}))
        accepted = [answer.json()["id"] for answer in answers[:-1]]
        assert cancelled(training, accepted[-1])
        succeeded(training.ask("POST", "/training-jobs", body))


def cancelled(training: TrainingWire, job_id: str) -> bool:
    """Cancel a job; True when it ended so, False when it was quicker."""
    answer = training.ask("POST", f"/training-jobs/{job_id}/cancel")
    if answer.status_code == 409:
        return False
    succeeded(answer)
    last = training.until_ended(job_id)[-1]
    assert (last["type"], last["data"]) == ("training_failed", {"error_message": "cancelled"})
    job = training.get(f"/training-jobs/{job_id}")
    assert (job["state"], job["error"]) == ("cancelled", "cancelled")
    return True


def test_cancelling_a_job_that_waits(training: TrainingWire) -> None:
    model = training.model()
    first, second, third = (training.job(model) for _ in range(3))
    assert cancelled(training, third)
    assert training.until_ended(first)[-1]["type"] == training.until_ended(second)[-1]["type"] == "training_ended"
    assert training.steps(model) == [0, 1, 2]
    assert training.events(third) == [training.events(third)[-1]]
    for job_id in (first, third):
        refused = training.refused(409, "POST", f"/training-jobs/{job_id}/cancel")
        assert "has already ended" in refused["detail"]


def test_a_body_beyond_the_limit(narrow: HeddleProcess) -> None:
    with TrainingWire(narrow.url) as training:
        model = training.model()
        body = {"model_id": model["id"], "trajectory_groups": two_rollouts() * 40}
        assert len(json.dumps(body)) > 20_000
        refused = training.refused(413, "POST", "/training-jobs", body)
        assert "max_training_body" in refused["detail"]
        log = {"split": "val", "trajectory_groups": two_rollouts() * 40}
        training.refused(413, "POST", f"/models/{model['id']}/log", log)


def test_a_job_is_accepted_only_when_its_body_is_durable(tmp_path: Path) -> None:
    """The server dies right after the answer: the job is there, and is done after the restart."""
    with HeddleProcess(tmp_path / "data") as process, TrainingWire(process.url) as training:
        model = training.model()
        job_id = training.job(model)
        process.kill()
        process.start()
        assert training.until_ended(job_id)[-1]["type"] == "training_ended"
        assert training.get(f"/training-jobs/{job_id}/trajectories")["trajectory_groups"] == two_rollouts()
        assert training.steps(model) == [0, 1]


def test_bodies_that_are_no_json(training: TrainingWire) -> None:
    model = training.model()
    for path in ("/training-jobs", "/sft-training-jobs", "/models", f"/models/{model['id']}/log"):
        for content in (b"", b"{", b"\xff\xfe", b'{"a": 1} x'):
            answer = training.client.post(f"/v1/preview{path}", content=content)
            assert answer.status_code == 422, (path, content, answer.text)
            assert answer.json()["detail"][0]["loc"][0] == "body"


def test_without_a_key(server: HeddleProcess) -> None:
    with TrainingWire(server.url, bearer=None) as nobody:
        for method, path in (
            ("POST", "/models"),
            ("GET", "/models"),
            ("DELETE", f"/models/{NOBODY}"),
            ("GET", f"/models/{NOBODY}/checkpoints"),
            ("POST", f"/models/{NOBODY}/log"),
            ("POST", "/training-jobs"),
            ("GET", f"/training-jobs/{NOBODY}/events"),
            ("POST", "/sft-training-jobs"),
            ("POST", "/dpo-training-jobs"),
            ("GET", "/base-models"),
        ):
            assert "Bearer" in nobody.refused(401, method, path)["detail"]
        assert succeeded(nobody.client.get("/v1/health")) == {"status": "ok"}


@pytest.mark.thorough
def test_a_stopping_server_ends_its_streams(tmp_path: Path) -> None:
    """An open stream of a job that goes on does not keep the server from stopping in order."""
    with HeddleProcess(tmp_path / "data", shutdown_grace=30) as process, TrainingWire(process.url) as training:
        model = training.model()
        jobs = [training.job(model) for _ in range(6)]
        path = f"/v1/preview/training-jobs/{jobs[-1]}/events/stream"
        with training.client.stream("GET", path) as answer:
            assert answer.status_code == 200
            assert process.terminate() == 0
            assert "training_ended" not in "".join(answer.iter_text())
        assert "Traceback" not in process.log()
        process.start()
        assert [training.until_ended(job_id)[-1]["type"] for job_id in jobs] == ["training_ended"] * 6
        assert training.steps(model) == list(range(7))
