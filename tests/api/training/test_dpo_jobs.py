"""Jobs on preferences over HTTP: the queue, what is kept, and what is refused."""

import json
from typing import Any

from tests.api.training.test_sft_jobs import body, upload
from tests.support.training import TrainingWire

PAIRS: list[dict[str, Any]] = [
    {
        "prompt": [{"role": "user", "content": f"respond with yes, no or maybe, {number}"}],
        "chosen": [{"role": "assistant", "content": "maybe"}],
        "rejected": [{"role": "assistant", "content": "no"}],
    }
    for number in range(4)
]


def test_pairs_of_a_file(training: TrainingWire) -> None:
    model = training.model()
    digest = upload(training, f"{model['entity']}/lab", "".join(json.dumps(pair) + "\n" for pair in PAIRS))
    created = training.post("/dpo-training-jobs", **body(model, digest, batch_size=2, learning_rate=1e-3, beta=0.2))
    events = training.until_ended(created["id"])
    assert [event["type"] for event in events] == ["training_started", *["gradient_step"] * 2, "training_ended"], events
    assert events[1]["data"]["preference/margin"] == 0
    job = training.get(f"/training-jobs/{created['id']}")
    assert (job["kind"], job["state"], job["step"]) == ("dpo", "succeeded", 1)
    assert job["config"]["settings"] == {"batch_size": 2, "learning_rate": 1e-3, "beta": 0.2, "ignored": []}
    stored = training.get(f"/training-jobs/{created['id']}/trajectories")["rows"]
    assert stored[0]["chosen"] == [*PAIRS[0]["prompt"], *PAIRS[0]["chosen"]]
    first, second = training.get(f"/models/{model['id']}/checkpoints", order="asc")["data"]
    assert first["recipe"]["kind"] is first["recipe"]["settings"] is None
    assert second["recipe"]["lora"] == first["recipe"]["lora"]
    assert (second["recipe"]["kind"], second["recipe"]["settings"]) == ("dpo", job["config"]["settings"])
    assert training.chat(model).headers["x-heddle-policy"].endswith("@1")


def test_what_is_wrong_is_named(training: TrainingWire) -> None:
    model = training.model()
    digest = upload(training, f"{model['entity']}/lab", json.dumps({"chosen": [], "rejected": []}) + "\n")
    refused = training.refused(400, "POST", "/dpo-training-jobs", body(model, digest))
    assert "row 0: chosen" in refused["detail"]
    refused = training.refused(422, "POST", "/dpo-training-jobs", body(model, digest, beta=0))
    assert refused["detail"][0]["loc"] == ["body", "config", "beta"]
