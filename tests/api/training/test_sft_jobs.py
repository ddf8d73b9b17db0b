"""Supervised jobs: rows from a file, a dataset or an allowed address; what is refused, and why."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.training.schemas.trajectories import FIELD
from tests.support.server import HeddleProcess
from tests.support.training import NOBODY, TrainingWire

Json = dict[str, Any]


def row(question: str, answer: str) -> Json:
    """One conversation."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


ROWS = [row(f"What is {number}?", "maybe") for number in range(6)]
LINES = "".join(json.dumps(item) + "\n" for item in ROWS)


def upload(training: TrainingWire, project_id: str, content: str) -> str:
    """The digest of an uploaded file."""
    files = {"file": ("train.jsonl", content.encode())}
    answer = training.client.post("/file/create", data={"project_id": project_id}, files=files)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["digest"])


def body(model: Json, url: str, **config: Any) -> Json:
    """A request."""
    return {"model_id": model["id"], "training_data_url": url, "config": config}


def test_a_file(training: TrainingWire) -> None:
    model = training.model()
    digest = upload(training, f"{model['entity']}/lab", LINES)
    created = training.post("/sft-training-jobs", **body(model, digest, batch_size=2, learning_rate=[1e-2, 1e-3, 1e-4]))
    assert set(created) == {"id"}
    events = training.until_ended(created["id"])
    assert [event["type"] for event in events] == ["training_started", *["gradient_step"] * 3, "training_ended"], events
    job = training.get(f"/training-jobs/{created['id']}")
    assert (job["kind"], job["state"], job["step"]) == ("sft", "succeeded", 1)
    assert job["config"]["source"] == {"training_data_url": digest, "rows": 6}
    assert job["config"]["settings"]["learning_rate"] == [1e-2, 1e-3, 1e-4]
    stored = training.get(f"/training-jobs/{created['id']}/trajectories")["rows"]
    assert [item["messages"] for item in stored] == [item["messages"] for item in ROWS]
    assert training.chat(model).headers["x-heddle-policy"].endswith("@1")


def test_a_dataset(training: TrainingWire) -> None:
    model = training.model()
    project_id = f"{model['entity']}/lab"
    table = training.client.post("/table/create", json={"table": {"project_id": project_id, "rows": ROWS}}).json()
    rows = f"weave:///{project_id}/table/{table['digest']}"
    value = {"_type": "Dataset", "_class_name": "Dataset", "_bases": ["Object", "BaseModel"], "rows": rows}
    made = training.client.post(
        "/obj/create", json={"obj": {"project_id": project_id, "object_id": "chats", "val": value}}
    ).json()
    url = f"weave:///{project_id}/object/chats:{made['digest']}"
    job_id = training.post("/sft-training-jobs", **body(model, url))["id"]
    assert training.until_ended(job_id)[-1]["type"] == "training_ended"
    assert training.get(f"/training-jobs/{job_id}")["config"]["source"]["rows"] == 6


@pytest.fixture(scope="module")
def open_to_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HeddleProcess, Path]]:
    """A server that may read one folder."""
    folder = tmp_path_factory.mktemp("sources")
    allowed = folder / "allowed"
    allowed.mkdir()
    (allowed / "train.jsonl").write_text(LINES)
    (folder / "secret.jsonl").write_text(LINES)
    with HeddleProcess(folder / "data", training_sources=f"file://{allowed}/") as process:
        yield process, folder


def test_an_allowed_address(open_to_files: tuple[HeddleProcess, Path]) -> None:
    process, folder = open_to_files
    with TrainingWire(process.url) as training:
        model = training.model()
        job_id = training.post("/sft-training-jobs", **body(model, f"file://{folder}/allowed/train.jsonl"))["id"]
        assert training.until_ended(job_id)[-1]["type"] == "training_ended"
        for url in (
            f"file://{folder}/secret.jsonl",
            f"file://{folder}/allowed/../secret.jsonl",
            "https://example.com/a",
        ):
            refused = training.refused(422, "POST", "/sft-training-jobs", body(model, url))
            assert refused["detail"][0]["loc"] == ["body", FIELD]


@pytest.mark.parametrize(
    "url", ["https://example.com/a.jsonl", "file:///etc/passwd", "/etc/passwd", "nothing", "s3://a"]
)
def test_addresses_that_are_not_allowed(url: str, training: TrainingWire) -> None:
    refused = training.refused(422, "POST", "/sft-training-jobs", body(training.model(), url))
    assert refused["detail"][0]["loc"] == ["body", FIELD]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no row"),
        ("\n\n", "no row"),
        ("{broken\n", "1"),
        (json.dumps(ROWS[0]) + "\n[1, 2]\n", "2"),
        (json.dumps({"text": "no messages"}), "row 0: messages: Field required"),
        (json.dumps({"messages": []}), "row 0: messages"),
        (json.dumps(ROWS[0]) + "\n" + json.dumps({"messages": [{"content": "a"}]}), "row 1: messages.0"),
        (json.dumps({"messages": [{"role": "user", "content": "a"}]}), "no row has an assistant message"),
        (json.dumps({**ROWS[0], "tools": "x"}), "row 0: tools"),
    ],
)
def test_files_that_cannot_be_learned_from(content: str, words: str, training: TrainingWire) -> None:
    model = training.model()
    digest = upload(training, f"{model['entity']}/lab", content)
    refused = training.refused(400, "POST", "/sft-training-jobs", body(model, digest))
    assert refused["error"]["param"] == FIELD and words in refused["detail"], refused


def test_what_is_not_there(training: TrainingWire) -> None:
    model, digest = training.model(), upload(training, f"{training.entity}/elsewhere", LINES)
    training.refused(404, "POST", "/sft-training-jobs", body(model, digest))
    training.refused(404, "POST", "/sft-training-jobs", body(model, f"weave:///{training.entity}/lab/object/none:v0"))
    assert (
        training.refused(404, "POST", "/sft-training-jobs", body({"id": NOBODY}, digest))["detail"] == "Model not found"
    )


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({"model_id": "x"}, ["body", "model_id"]),
        ({"training_data_url": None}, ["body", FIELD]),
        ({"training_data_url": ""}, ["body", FIELD]),
        ({"config": {"batch_size": 0}}, ["body", "config", "batch_size"]),
        ({"config": {"batch_size": "some"}}, ["body", "config", "batch_size"]),
        ({"config": {"learning_rate": [0.1, -1]}}, ["body", "config", "learning_rate"]),
        ({"config": {"learning_rate": True}}, ["body", "config", "learning_rate"]),
        ({"config": {"metric_logging": 1}}, ["body", "config", "metric_logging"]),
        ({"config": []}, ["body", "config"]),
    ],
)
def test_wrong_fields(fields: Json, loc: list[str], training: TrainingWire) -> None:
    wanted = {"model_id": NOBODY, "training_data_url": "x", **fields}
    refused = training.refused(422, "POST", "/sft-training-jobs", wanted)
    assert all(item["loc"][: len(loc)] == loc for item in refused["detail"]), refused


def test_too_few_learning_rates_fail_the_job(training: TrainingWire) -> None:
    model = training.model()
    digest = upload(training, f"{model['entity']}/lab", LINES)
    job_id = training.post("/sft-training-jobs", **body(model, digest, batch_size=3, learning_rate=[1e-3]))["id"]
    last = training.until_ended(job_id)[-1]
    assert last["type"] == "training_failed" and "learning_rate" in last["data"]["error_message"]
    assert training.steps(model) == [0]
