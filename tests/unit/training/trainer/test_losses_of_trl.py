"""The same numbers as TRL's own trainers on random cases, in float64 (`make clients` installs TRL)."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from heddle.training.config import RlConfig  # noqa: E402
from heddle.training.losses import LOSSES  # noqa: E402
from heddle.training.losses.base import LossName  # noqa: E402
from heddle.training.trainer.loss import objective  # noqa: E402
from heddle.training.trainer.rows import per_pair  # noqa: E402
from tests.unit.training.trainer.test_losses import JOB_TOKENS, LENGTH, Batch, make_batch  # noqa: E402

ROOT = Path(__file__).parents[4]
PACKAGES = ROOT / ".clients" / "trl-1.16.0"
pytestmark = pytest.mark.skipif(not (PACKAGES / ".installed").exists(), reason="TRL is not installed: make clients")
Json = dict[str, Any]
SEEDS = range(3)
FLOAT32 = {"temperature_neg": torch.tensor(1.05).item()}
"""TRL's temperatures are float32, whatever the rest is."""

LOSSES_OF_TRL: dict[str, tuple[Json, Json]] = {
    "grpo": ({"loss_fn": "grpo"}, {"loss_type": "grpo"}),
    "grpo, bounds": (
        {"loss_fn": "grpo", "epsilon": 0.1, "epsilon_high": 0.4},
        {"loss_type": "grpo", "epsilon_low": 0.1, "epsilon_high": 0.4},
    ),
    "grpo, divergence": (
        {"loss_fn": "grpo", "kl_loss_coef": 0.04},
        {"loss_type": "grpo", "beta": 0.04},
    ),
    "grpo of sequences": (
        {"loss_fn": "grpo", "importance_sampling_level": "sequence"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ),
    "dr_grpo": (
        {"loss_fn": "dr_grpo", "loss_fn_config": {"max_completion_length": LENGTH}},
        {"loss_type": "dr_grpo"},
    ),
    "dapo": ({"loss_fn": "dapo"}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "bnpo": ({"loss_fn": "bnpo"}, {"loss_type": "bnpo"}),
    "bnpo, off-policy mask": (
        {"loss_fn": "bnpo", "off_policy_mask_threshold": 0.01},
        {"loss_type": "bnpo", "off_policy_mask_threshold": 0.01},
    ),
    "gspo": (
        {"loss_fn": "gspo"},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    ),
    "sapo": ({"loss_fn": "sapo", "loss_fn_config": FLOAT32}, {"loss_type": "sapo"}),
    "sapo of sequences": (
        {"loss_fn": "sapo", "loss_fn_config": FLOAT32, "importance_sampling_level": "sequence"},
        {"loss_type": "sapo", "importance_sampling_level": "sequence"},
    ),
    "luspo": ({"loss_fn": "luspo"}, {"loss_type": "luspo", "importance_sampling_level": "sequence"}),
    "vespo": ({"loss_fn": "vespo"}, {"loss_type": "vespo"}),
}
CORRECTIONS: list[tuple[LossName, str, float | None, float]] = [
    ("bnpo", "token_truncate", None, 1.05),
    ("grpo", "token_mask", 0.9, 1.05),
    ("grpo", "sequence_truncate", None, 1.1),
    ("dapo", "sequence_mask", 0.7, 1.1),
    ("vespo", "token_truncate", 0.95, 1.05),
    ("vespo", "token_mask", 0.9, 1.1),
]


@dataclass
class Case:
    """What TRL is asked, and the same of ours."""

    question: Json
    loss: Any
    new: Any


def ask(cases: list[Json]) -> list[Json]:
    """TRL's numbers, of one process: importing TRL takes seconds."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(PACKAGES), str(ROOT)]), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.support.trl_losses"]
    done = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[Json] = json.loads(done.stdout)
    return found


def question(batch: Batch, settings: Json, **more: Any) -> Json:
    return {
        "trainer": "grpo",
        "new": batch.new.tolist(),
        "old": batch.old.tolist(),
        "reference": batch.reference.tolist(),
        "advantages": batch.advantages[:, 0].tolist(),
        "mask": batch.mask.long().tolist(),
        "length": LENGTH,
        "job_tokens": JOB_TOKENS,
        "settings": settings,
        **more,
    }


def loss_case(given: Json, settings: Json, seed: int) -> Case:
    batch, values = make_batch(seed), dict(given)
    new = batch.new.clone().requires_grad_(True)
    loss = batch.loss(new, RlConfig.of_loss(values.pop("loss_fn"), **values))
    return Case(question(batch, settings), loss, new)


def correction_case(name: LossName, mode: str, low: float | None, high: float, seed: int) -> Case:
    """TRL makes the weights while it samples; here they are written out as it does."""
    batch = make_batch(seed)
    generator = torch.Generator().manual_seed(seed)
    sampled = batch.old + 0.3 * torch.rand(batch.old.shape, generator=generator, dtype=torch.float64) - 0.15
    difference = (batch.old - sampled) * batch.mask
    ratio = (difference.sum(1, keepdim=True) if mode.startswith("sequence") else difference).exp()
    if mode.endswith("truncate"):
        ratio = ratio.clamp(low, high)
    else:
        ratio = torch.where((ratio < (low or 0.0)) | (ratio > high), 0.0, ratio)
    settings = RlConfig.of_loss(
        name, importance_correction=mode, importance_correction_min=low, importance_correction_max=high
    )
    new = batch.new.clone().requires_grad_(True)
    tokens = batch.tokens(settings)
    tokens.original = sampled
    loss = objective(new, tokens, settings).loss_sum / batch.divisor(settings)
    bounds = {"epsilon_high": 0.28} if name == "dapo" else {}
    return Case(question(batch, {"loss_type": name, **bounds}, correction=ratio.tolist()), loss, new)


def preference_case(seed: int) -> Case:
    batch = make_batch(seed)
    new = batch.new.clone().requires_grad_(True)
    chosen, rejected = ((new - batch.reference) * batch.mask).sum(1).chunk(2)
    return Case(question(batch, {}, trainer="dpo", beta=0.3), per_pair(chosen, rejected, 0.3).mean(), new)


def test_values_and_gradients_are_those_of_trl() -> None:
    cases = {f"{name}, {seed}": loss_case(*pair, seed) for name, pair in LOSSES_OF_TRL.items() for seed in SEEDS}
    cases |= {f"{row}": correction_case(*row, seed) for seed, row in enumerate(CORRECTIONS)}
    cases |= {f"dpo, {seed}": preference_case(seed) for seed in SEEDS}
    found = ask([case.question for case in cases.values()])
    for (name, case), expected in zip(cases.items(), found, strict=True):
        case.loss.backward()
        assert case.loss.item() == pytest.approx(expected["loss"], abs=1e-9, rel=0), name
        gradient = torch.tensor(expected["gradient"], dtype=torch.float64)
        torch.testing.assert_close(case.new.grad, gradient, atol=1e-9, rtol=0, msg=f"the gradient of {name}")


def test_trl_has_none_of_the_others() -> None:
    named = {given["loss_fn"] for given, _ in LOSSES_OF_TRL.values()}
    own = {"dro", "stable_reinforce", "importance_sampling", "reverse_kl", "cross_entropy"}
    of_art = {"cispo", "ppo"}  # test_loss.py has TRL's numbers for them
    assert named == set(LOSSES) - own - of_art
