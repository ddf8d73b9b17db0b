"""Which checkpoint the KL penalty of a job compares with."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from heddle.store.control.training import JobRow
from heddle.store.control.training_models import CheckpointRow, ModelRow, TrainModels
from heddle.training.config import RlConfig
from heddle.training.queue.supervisor import Impossible, TaskBuilder
from heddle.wire.training import BaseModel, PolicyHost

MODEL = ModelRow("model", "team", "project", "name", "base", None, {"rank": 8}, 0, "me")


class Checkpoints:
    """The tables, with steps 0, 2, 3 and 4."""

    async def checkpoints(self, model_id: str) -> list[CheckpointRow]:
        return [
            CheckpointRow(str(step), model_id, step, None, None, f"training/model/s{step}", "", 0, {}, 0)
            for step in (0, 2, 3, 4)
        ]


class Bases:
    """Inference, with the one base model."""

    async def base_models(self) -> list[BaseModel]:
        return [BaseModel("base", Path("base"), "", 10, 100, {})]


def reference(folder: Path, address: str | None = None, **settings: Any) -> str | None:
    """The reference folder of a job that starts from step 4, as its name."""
    builder = TaskBuilder(
        cast(TrainModels, Checkpoints()), cast(PolicyHost, Bases()), folder, lambda key: folder / key, 1
    )
    config = {"settings": RlConfig(**settings).as_json(), "device": "cpu", "dtype": "float32", "threads": 1}
    config |= {"sequence": 100, "kl_reference": address}
    job = JobRow(
        id="job",
        model_id="model",
        kind="rl",
        config=config,
        payload="payload",
        created_at=0,
        created_by="me",
        step=5,
        parent_step=4,
    )
    task = asyncio.run(builder.build(MODEL, job))
    return None if task.kl_reference is None else Path(task.kl_reference).name


def test_the_base_model_unless_something_is_named(tmp_path: Path) -> None:
    assert reference(tmp_path, kl_penalty_coef=0.1) is None


def test_a_step_of_the_model(tmp_path: Path) -> None:
    assert reference(tmp_path, kl_penalty_coef=0.1, kl_penalty_reference_step=2) == "s2"
    assert reference(tmp_path, kl_penalty_coef=0.0, kl_penalty_reference_step=2) is None


@pytest.mark.parametrize("settings", [{"kl_loss_coef": 0.1}, {"loss": "reverse_kl"}])
def test_a_divergence_in_the_loss_and_a_teacher_are_references(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert reference(tmp_path, kl_penalty_reference_step=2, **settings) == "s2"


@pytest.mark.parametrize(("lag", "step"), [(1, "s3"), (2, "s2"), (4, "s0"), (9, "s0")])
def test_a_step_before_the_one_that_the_job_starts_from(tmp_path: Path, lag: int, step: str) -> None:
    assert reference(tmp_path, kl_penalty_coef=0.1, kl_penalty_step_lag=lag) == step


def test_a_step_that_is_gone_fails_the_job(tmp_path: Path) -> None:
    with pytest.raises(Impossible, match="step 1 not found"):
        reference(tmp_path, kl_penalty_coef=0.1, kl_penalty_reference_step=1)


def test_another_models_checkpoint_goes_before_both(tmp_path: Path) -> None:
    (tmp_path / "training" / "elsewhere").mkdir(parents=True)
    assert reference(tmp_path, "training/elsewhere", kl_penalty_coef=0.1, kl_penalty_reference_step=2) == "elsewhere"
    with pytest.raises(Impossible, match="deleted"):
        reference(tmp_path, "training/removed", kl_penalty_coef=0.1)
