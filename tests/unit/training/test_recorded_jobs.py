"""Training bodies of the unmodified client, as recorded: what becomes of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from heddle.training.config import RlConfig
from heddle.training.trainer.packing import pack
from tests.support.trajectories import prepared

PATH = Path(__file__).parents[3].parent / "shared" / "corpus" / "recorded-training.jsonl"
LINES: list[dict[str, Any]] = (
    [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()] if PATH.is_file() else []
)
JOBS = [
    line["request_body"]
    for line in LINES
    if line["method"] == "POST" and line["path"].endswith("/preview/training-jobs") and line["status"] == 200
]

pytestmark = pytest.mark.skipif(not JOBS, reason="the corpus is not beside the repository")


def counts(body: dict[str, Any]) -> dict[str, float]:
    """What is counted and not zero."""
    return {name: value for name, value in prepared(*body["trajectory_groups"]).counts.items() if value}


def test_every_recorded_job_prepares() -> None:
    found = [counts(body) for body in JOBS]
    trainable = [job.get("num_groups_trainable", 0.0) for job in found]
    assert len(JOBS) == 4 and trainable[2:] == [0.0, 0.0] and min(trainable[:2]) > 0
    assert found[2]["data/equal_reward_groups"] == found[2]["num_groups_submitted"]
    assert found[3] == {"num_groups_submitted": 1.0, "data/empty_groups": 1.0}


@pytest.mark.parametrize("body", JOBS[:2])
def test_every_sampled_token_is_there_as_recorded(body: dict[str, Any]) -> None:
    made = prepared(*body["trajectory_groups"]).sequences
    trained: dict[tuple[int, int], list[tuple[str, float]]] = {}
    for sequence in made:
        trained.setdefault((sequence.group, sequence.trajectory), []).extend(
            (f"token_id:{token}", logprob)
            for token, logprob, flag in zip(sequence.ids, sequence.logprobs, sequence.mask, strict=True)
            if flag
        )
    for (group, index), tokens in trained.items():
        member = body["trajectory_groups"][group]["trajectories"][index]
        histories = [member, *member["additional_histories"]]
        items = [item for history in histories for item in history["messages_and_choices"] if "finish_reason" in item]
        entries = [entry for item in items for entry in item["logprobs"]["content"]]
        assert tokens == [(entry["token"], entry["logprob"]) for entry in entries]
    (row,) = pack(made, RlConfig(), 2048, "job", 0)
    assert row.sequences == len(made) and row.mask.sum() == sum(sum(sequence.mask) for sequence in made)
