"""Training on calls of the trace service: the whole way, from a served answer to a better policy."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.inference.served_model import TINY
from heddle.wire.training import call_id_of
from tests.clients.art import tasks
from tests.conftest import Wire
from tests.support.cli import make_key
from tests.support.rl import Trainer
from tests.support.server import HeddleProcess

Json = dict[str, Any]
CHATS = {"op_names": ["heddle.chat.completions"]}
JUDGED = {"feedback_type": "wandb.runnable.judge", "path": "output.score"}


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server that shows every completion that names a project as a call."""
    with HeddleProcess(tmp_path_factory.mktemp("traced") / "data", trace_inference="on") as process:
        yield process


@pytest.fixture
def trace(traced: HeddleProcess, project: str) -> Iterator[Wire]:
    """The trace routes of that server."""
    wire = Wire(traced.url, project)
    yield wire
    wire.client.close()


@pytest.fixture
def trainer(traced: HeddleProcess, project: str) -> Iterator[Trainer]:
    """A trainable model of that server, whose chats are traced in the project."""
    with Trainer(traced.url, project) as made:
        made.client.headers["OpenAI-Project"] = project
        yield made


def score(trace: Wire) -> list[float]:
    """Judge every traced answer as a scorer would; the scores."""
    scores = []
    for call in trace.calls(filter=CHATS):
        text = call["output"]["choices"][0]["message"]["content"]
        scores.append(tasks.PREFERENCES.get(text.strip(), 0.0))
        trace.post(
            "/feedback/create",
            weave_ref=f"weave:///{trace.project}/call/{call['id']}",
            feedback_type="wandb.runnable.judge",
            payload={"output": {"score": scores[-1]}},
            runnable_ref=f"weave:///{trace.project}/object/judge:v0",
        )
    return scores


def ask(trainer: Trainer, times: int) -> None:
    """The same two questions, several times each; no request asks for log-probabilities or token ids."""
    chance = random.Random(0)
    for problem in (tasks.choice(chance), tasks.choice(chance)):
        for seed in range(times):
            trainer.chat([{"role": "user", "content": problem.question}], seed=seed)


def refused(trainer: Trainer, status: int, **fields: Any) -> Json:
    """The body of a refusal."""
    answer = trainer.client.post("/v1/preview/training-jobs", json={"model_id": trainer.model["id"], **fields})
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def test_traced_chats_with_a_scorers_feedback_train_the_model(trace: Wire, trainer: Trainer) -> None:
    ask(trainer, 6)
    scores = score(trace)
    assert len(scores) == 12 and len(set(scores[:6])) > 1, "the answers of a question differ"
    source = {"project_id": trace.project, "filter": CHATS, "reward": JUDGED}
    body = {"model_id": trainer.model["id"], "source": source, "experimental_config": {"learning_rate": 1e-3}}
    job_id = trainer.post("/v1/preview/training-jobs", **body)["id"]
    events = trainer.until_ended(job_id)
    assert [event["type"] for event in events] == ["training_started", "gradient_step", "training_ended"]
    data = events[1]["data"]
    assert data["num_groups_submitted"] == 2 and data["num_trajectories"] == 12
    assert data["offpolicy/ratio_mean"] == pytest.approx(1.0, abs=1e-4), "the tokens and logprobs are the sampled ones"
    assert events[0]["data"]["reward"] == pytest.approx(sum(scores) / 12)
    assert (
        trainer.client.post(
            "/v1/chat/completions", json={"model": trainer.name, "messages": [{"role": "user", "content": "hi"}]}
        )
        .json()["system_fingerprint"]
        .endswith("@1")
    )

    shown = trace.call(call_id_of(job_id))
    assert (shown["op_name"], shown["exception"]) == ("heddle.training_job", None)
    assert shown["inputs"]["model"] == trainer.name and shown["inputs"]["source"]["counts"]["trajectories"] == 12
    assert shown["inputs"]["settings"]["learning_rate"] == 1e-3
    assert (shown["output"]["state"], shown["output"]["step"]) == ("succeeded", 1)


def test_a_source_without_anything_to_train_on_is_refused(trace: Wire, trainer: Trainer) -> None:
    source = {"project_id": trace.project, "filter": CHATS, "reward": JUDGED}
    assert "no call of" in refused(trainer, 400, source=source)["error"]["message"]
    ask(trainer, 1)
    assert "2 without a reward" in refused(trainer, 400, source=source)["error"]["message"]
    assert trainer.get("/v1/preview/training-jobs", model_id=trainer.model["id"])["data"] == []


def test_a_source_is_checked_with_its_places(trace: Wire, trainer: Trainer) -> None:
    source = {"project_id": trace.project, "filter": {"op_name": "x"}, "reward": {"path": "nowhere"}, "limit": 0}
    places = [item["loc"] for item in refused(trainer, 422, source=source)["detail"]]
    assert ["body", "source", "filter", "op_name"] in places and ["body", "source", "limit"] in places
    assert refused(trainer, 422)["detail"][0]["loc"] == ["body", "trajectory_groups"]
    good = {"project_id": trace.project, "reward": JUDGED}
    assert refused(trainer, 422, source=good, trajectory_groups=[])["detail"]
    unknown = {"$expr": {"$eq": [{"$getField": "nothing"}, {"$literal": 1}]}}
    detail = refused(trainer, 422, source={**good, "query": unknown})["detail"]
    assert detail[0]["loc"] == ["body", "source"] and "nothing" in detail[0]["msg"]


def test_a_job_that_fails_is_a_call_with_its_reason(trace: Wire, trainer: Trainer) -> None:
    choice = trainer.chat([{"role": "user", "content": "hi"}])
    choice["logprobs"]["content"][0]["token"] = "token_id:99999"
    items = [{"role": "user", "content": "hi"}, choice]
    members = [{"messages_and_choices": items, "reward": reward} for reward in (0.0, 1.0)]
    choice.pop("token_ids", None)
    job_id = trainer.start([{"trajectories": members}])
    last = trainer.until_ended(job_id)[-1]
    assert last["type"] == "training_failed"
    shown = trace.call(call_id_of(job_id))
    assert shown["exception"] == last["data"]["error_message"] and "99999" in shown["exception"]
    assert shown["output"]["state"] == "failed" and shown["summary"]["weave"]["status"] == "error"


def test_a_key_that_does_not_reach_a_project_cannot_train_on_it(tmp_path: Path, project: str) -> None:
    """The source is read with the rights of the key that asks."""
    data, (entity, name) = tmp_path / "data", project.split("/")
    key = make_key(data, "eve", "--scope", "read", "--scope", "write", "--project", project)
    with HeddleProcess(data, auth="on") as process:
        client = httpx.Client(base_url=process.url, headers={"authorization": f"Bearer {key}"}, timeout=60)
        body = {"entity": entity, "project": name, "name": "policy", "base_model": TINY}
        made = client.post("/v1/preview/models", json=body)
        assert made.status_code == 200, made.text
        for chosen, status, words in ((project, 400, "no call of"), ("elsewhere/secrets", 403, "cannot access")):
            job = {"model_id": made.json()["id"], "source": {"project_id": chosen, "reward": JUDGED}}
            answer = client.post("/v1/preview/training-jobs", json=job)
            assert answer.status_code == status and words in answer.json()["error"]["message"], answer.text
