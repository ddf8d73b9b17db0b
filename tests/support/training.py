"""A plain HTTP caller of the training routes, and bodies for them whose answers need no sampling."""

import time
import uuid
from typing import Any

import httpx

from heddle.inference.served_model import TINY
from tests.support.chat import API_KEY
from tests.support.trajectories import group, said, trajectory, user

Json = dict[str, Any]
PREVIEW = "/v1/preview"
ENDED = ("training_ended", "training_failed")
NOBODY = "00000000-0000-4000-8000-000000000000"
"""A UUID that nothing has."""


def two_rollouts(*, equal: bool = False) -> list[Json]:
    """One group with a good and a bad answer; `equal` rewards leave nothing to train."""
    prompt = user("Say yes, no or maybe.")
    good, bad = trajectory(prompt, said("yes"), reward=1.0), trajectory(prompt, said("no"), reward=float(equal))
    return [group(good, bad)]


class TrainingWire:
    """The training routes of one server; `bearer` is the API key, None sends none."""

    def __init__(self, url: str, bearer: str | None = API_KEY, entity: str | None = None) -> None:
        headers = {"authorization": f"Bearer {bearer}"} if bearer is not None else {}
        self.entity = entity or f"team-{uuid.uuid4().hex[:8]}"
        self.client = httpx.Client(base_url=url, headers=headers, timeout=60)

    def __enter__(self) -> "TrainingWire":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> httpx.Response:
        """The raw answer."""
        return self.client.request(method, PREVIEW + path, json=body, params=query)

    def get(self, path: str, **query: Any) -> Any:
        """The JSON of a GET that must succeed."""
        return succeeded(self.ask("GET", path, **query))

    def post(self, path: str, **body: Any) -> Any:
        """The JSON of a POST that must succeed."""
        return succeeded(self.ask("POST", path, body))

    def delete(self, path: str, body: Any = None) -> Any:
        """The JSON of a DELETE that must succeed."""
        return succeeded(self.ask("DELETE", path, body))

    def refused(self, status: int, method: str, path: str, body: Any = None, **query: Any) -> Json:
        """The body of a refusal of that status; its outer shape is checked here."""
        return refusal(self.ask(method, path, body, **query), status)

    def wanted(self, **fields: Any) -> Json:
        """The body that makes a model under a new name."""
        name = f"policy-{uuid.uuid4().hex[:8]}"
        return {"entity": self.entity, "project": "lab", "name": name, "base_model": TINY, **fields}

    def model(self, **fields: Any) -> Json:
        """A new model."""
        return dict(self.post("/models", **self.wanted(**fields)))

    def job(self, model: Json, groups: list[Json] | None = None, **fields: Any) -> str:
        """The id of a new job on a model."""
        body = {"model_id": model["id"], "trajectory_groups": two_rollouts() if groups is None else groups, **fields}
        return str(self.post("/training-jobs", **body)["id"])

    def events(self, job_id: str) -> list[Json]:
        """The events of a job, page by page."""
        events: list[Json] = []
        while True:
            cursor = {"after": events[-1]["id"]} if events else {}
            page = self.get(f"/training-jobs/{job_id}/events", limit=100, **cursor)
            events += page["data"]
            if not page["has_more"]:
                return events

    def until_ended(self, job_id: str, timeout: float = 120) -> list[Json]:
        """The events of a job once it has ended."""
        deadline = time.monotonic() + timeout
        while not (events := self.events(job_id)) or events[-1]["type"] not in ENDED:
            assert time.monotonic() < deadline, events
            time.sleep(0.05)
        return events

    def train(self, model: Json, groups: list[Json] | None = None, **fields: Any) -> Json:
        """Run a job that must succeed; returns it."""
        job_id = self.job(model, groups, **fields)
        events = self.until_ended(job_id)
        assert events[-1]["type"] == "training_ended", events
        return dict(self.get(f"/training-jobs/{job_id}"))

    def steps(self, model: Json) -> list[int]:
        """The steps that are listed."""
        return [item["step"] for item in self.get(f"/models/{model['id']}/checkpoints", limit=100)["data"]]

    def chat(self, model: Json, step: int | None = None) -> httpx.Response:
        """A short greedy chat with a model's latest policy, or with a step."""
        address = f"wandb-artifact:///{model['entity']}/{model['project']}/{model['name']}"
        messages = [user("Say yes, no or maybe.")]
        body = {"model": address if step is None else f"{address}:step{step}", "messages": messages, "max_tokens": 3}
        return self.client.post("/v1/chat/completions", json={**body, "temperature": 0})


def succeeded(answer: httpx.Response) -> Any:
    """The JSON of an answer that must be a success."""
    assert answer.status_code == 200, f"{answer.request.url}: {answer.status_code} {answer.text[:2000]}"
    return answer.json()


def refusal(answer: httpx.Response, status: int) -> Json:
    """The body of a refusal: the error object, and beside it `detail` as a list (422) or as the same text."""
    assert answer.status_code == status, f"{answer.request.url}: {answer.status_code} {answer.text[:2000]}"
    body = answer.json()
    assert set(body) == {"detail", "error"}, body
    assert set(body["error"]) == {"message", "type", "param", "code"} and body["error"]["code"] == status, body
    if isinstance(body["detail"], list):
        assert status == 422 and all(set(item) == {"loc", "msg", "type"} for item in body["detail"]), body
    else:
        assert body["detail"] == body["error"]["message"] != "", body
    return dict(body)
