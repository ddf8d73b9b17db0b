"""Runs programs with the unmodified ART client (openpipe-art) in its own environment."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Client

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
VERSIONS = ("0.5.23", "0.5.18")
"""The newer one needs Python 3.12."""
RATIO = "offpolicy/ratio_mean"
PROGRAMS = Path(__file__).parent.parent / "clients" / "art"


class ArtClient(Client):
    """The ART client; the vendor's key is not in its environment, as the client's documentation wants it for us."""

    def environment(self) -> dict[str, str]:
        """What every run gets."""
        environment = super().environment()
        del environment["WANDB_API_KEY"]
        return environment | {"WANDB_SILENT": "true", "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}


def art_client(server: str, project: str, folder: Path, version: str = VERSIONS[-1]) -> ArtClient:
    """The client against a server; skips where `make clients` has not installed it."""
    python = ROOT / ".clients" / f"art-{version}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"openpipe-art {version} is not installed: run `make clients` (0.5.23 needs Python 3.12)")
    return ArtClient([str(python)], PROGRAMS, server, project, folder)


def trained_tokens(metrics: dict[str, float]) -> float:
    """The tokens of a gradient step, under the name that the version of the client gives them; 0 without a step."""
    names = ("data/step_trainer_tokens", "data/step_trainable_assistant_tokens")
    return next((metrics[name] for name in names if name in metrics), 0)


def check_loop(seen: dict[str, Any], project: str) -> None:
    """Steps, names, metrics, deletions; the reward of the last three steps is 0.2 above that of the first."""
    steps, count = seen["steps"], len(seen["steps"])
    assert (seen["first"], seen["last"]) == (0, count)
    assert [step["step"] for step in steps] == list(range(1, count + 1))
    name = seen["tidy"]["name"].removeprefix("wandb-artifact:///")
    assert [step["artifact"] for step in steps] == [f"{name}:step{number}" for number in range(1, count + 1)]
    assert name.startswith(f"{project}/")
    learned = [step for step in steps if step["metrics"].get("data/step_num_gradient_steps")]
    assert len(learned) > count // 4
    for step in learned:
        metrics = step["metrics"]
        assert metrics.get("reward", metrics.get("train/reward")) == pytest.approx(step["reward"])
        assert metrics[RATIO] == pytest.approx(1, abs=1e-4)
        assert metrics["loss/grad_norm"] > 0 and metrics["loss/learning_rate"] > 0
        assert trained_tokens(metrics) > 0
    rewards = [step["reward"] for step in steps]
    assert sum(rewards[-3:]) / 3 >= rewards[0] + 0.2, rewards
    check_tidy(seen["tidy"], count)


def check_tidy(tidy: dict[str, Any], count: int) -> None:
    """All steps are listed and answer until they are deleted; without the model there is no answer at all."""
    assert tidy["before"] == list(range(count + 1))
    assert tidy["after"] == [count // 2, count]
    assert tidy["early"] and tidy["kept"]
    for gone in ("gone", "without_model", "deleted_twice"):
        assert (tidy[gone]["class"], tidy[gone]["status"]) == ("NotFoundError", 404), tidy[gone]
