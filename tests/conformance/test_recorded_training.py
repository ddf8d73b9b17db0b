"""What the unmodified ART client once sent, sent again: every answer has the recorded status and shape.

The answers of `../shared/corpus/recorded-training.jsonl` come from a prototype, so their values are no evidence. Ids
are our own, taken from the answers that made them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import HeddleProcess
from tests.support.training import TrainingWire

RECORDING = Path(__file__).resolve().parents[3] / "shared" / "corpus" / "recorded-training.jsonl"
Json = dict[str, Any]

pytestmark = pytest.mark.skipif(
    not RECORDING.exists(), reason="the shared folder with the recorded traffic is not beside this checkout"
)


@dataclass(frozen=True)
class Exchange:
    """One recorded request, the recorded answer, and ours."""

    record: Json
    answer: httpx.Response


def recorded() -> list[Json]:
    """The exchanges in their order; none where the recording is missing."""
    return [json.loads(line) for line in RECORDING.read_text().splitlines()] if RECORDING.exists() else []


class Replay:
    """Sends the recording again, with the ids that our answers gave."""

    def __init__(self, training: TrainingWire) -> None:
        self._training = training
        self._ids: dict[str, str] = {}

    def send(self, record: Json) -> Exchange:
        """One exchange; for events, once the job has ended as it had when it was recorded."""
        path, content = self._own(record["path"]), self._own(json.dumps(record["request_body"]))
        if path.endswith("/events") and record["status"] == 200:
            self._training.until_ended(path.split("/")[-2])
        headers = {"authorization": ""} if record["status"] == 401 else {}
        if record["request_body"] is not None:
            headers["content-type"] = "application/json"
        answer = self._training.client.request(
            record["method"],
            path,
            params=record["query"],
            content=content if record["request_body"] is not None else None,
            headers=headers,
        )
        self._learn(record["response_body"], answer)
        return Exchange(record, answer)

    def _own(self, text: str) -> str:
        for theirs, ours in self._ids.items():
            text = text.replace(theirs, ours)
        return text

    def _learn(self, body: Any, answer: httpx.Response) -> None:
        if isinstance(body, dict) and "id" in body and answer.status_code == 200:
            self._ids[body["id"]] = answer.json()["id"]


@pytest.fixture(scope="module")
def exchanges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Exchange]]:
    """The whole recording against a server of its own."""
    with HeddleProcess(tmp_path_factory.mktemp("recorded") / "data") as process, TrainingWire(process.url) as training:
        replay = Replay(training)
        yield [replay.send(record) for record in recorded()]
        assert "Traceback" not in process.log()


def missing(recorded_value: Any, ours: Any, place: str = "") -> list[str]:
    """What the recorded answer has and ours has not, or has with another JSON type; more is allowed."""
    if isinstance(recorded_value, dict):
        if not isinstance(ours, dict):
            return [f"{place}: {ours!r} is no object"]
        lacking = [f"{place}.{name} is missing" for name in recorded_value if name not in ours]
        return lacking + [
            text
            for name, value in recorded_value.items()
            if name in ours
            for text in missing(value, ours[name], f"{place}.{name}")
        ]
    if isinstance(recorded_value, list):
        if not isinstance(ours, list):
            return [f"{place}: {ours!r} is no list"]
        return [text for a, b in zip(recorded_value, ours, strict=False) for text in missing(a, b, f"{place}[]")]
    if isinstance(recorded_value, (int, float)) and isinstance(ours, (int, float)):
        return []
    return [] if type(recorded_value) is type(ours) else [f"{place}: {ours!r} is not like {recorded_value!r}"]


OTHER_NAMES = {"ratio_mean", "ratio_max", "clip_fraction", "probs_corr", "tokens"}
"""Metrics that the prototype named for itself; only `loss/...` names mean something to the client."""


@pytest.mark.parametrize("number", range(len(recorded())))
def test_status_and_shape(number: int, exchanges: list[Exchange]) -> None:
    record, answer = exchanges[number].record, exchanges[number].answer
    assert answer.status_code == record["status"], answer.text[:1000]
    body = record["response_body"]
    if "/checkpoints" in record["path"] or record["path"].endswith("/events"):
        assert_page(record, answer.json())
        return
    if record["path"].endswith("/chat/completions") and record["status"] == 200:
        assert_sampled(answer.json())
        return
    if record["status"] == 422:
        assert places(answer.json()) == places(body)
        return
    assert missing(body, answer.json()) == []


def places(body: Json) -> set[tuple[Any, ...]]:
    """Where a validation failure says that the body is wrong."""
    return {tuple(item["loc"]) for item in body["detail"]}


def assert_page(record: Json, ours: Any) -> None:
    """The same items in the same order, apart from ids and metrics."""
    theirs = record["response_body"]
    if "data" not in theirs:
        assert missing(theirs, ours) == []
        return
    assert set(ours) == set(theirs)
    kind = "type" if record["path"].endswith("/events") else "step"
    assert [item[kind] for item in ours["data"]] == [item[kind] for item in theirs["data"]]
    assert ours["has_more"] == theirs["has_more"]
    for mine, their in zip(ours["data"], theirs["data"], strict=True):
        assert set(their) <= set(mine)
        if kind == "step":
            assert missing(their["metrics"], mine["metrics"]) == []
        else:
            known = {name: value for name, value in their["data"].items() if name.split("/")[-1] not in OTHER_NAMES}
            assert missing(known, mine["data"]) == []
            assert all(isinstance(float(value), float) for value in mine["data"].values())


def assert_sampled(ours: Any) -> None:
    """A choice that can be trained: token ids, and a log-probability for each."""
    (choice,) = ours["choices"]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert entries and all(entry["logprob"] <= 0 for entry in entries)


def test_the_logged_reward_is_on_the_checkpoint(exchanges: list[Exchange]) -> None:
    """The one figure that clients read back."""
    pages = [item for item in exchanges if item.record["path"].endswith("/checkpoints") and item.record["seq"] == 25]
    (page,) = pages
    assert page.answer.json()["data"][0]["metrics"]["val/reward"] == pytest.approx(0.41)


def test_every_job_of_the_recording_ended(exchanges: list[Exchange]) -> None:
    ends = [
        item.answer.json()["data"][-1]["type"]
        for item in exchanges
        if item.record["path"].endswith("/events") and item.record["status"] == 200
    ]
    assert ends == ["training_ended"] * 4
