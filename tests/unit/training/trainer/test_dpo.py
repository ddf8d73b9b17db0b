"""Training on preferences: the loss, and a job that makes the chosen answers likelier."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from heddle.errors import InvalidRequest  # noqa: E402
from heddle.training.config import DpoConfig  # noqa: E402
from heddle.training.losses.dpo import per_pair  # noqa: E402
from heddle.training.messages import Started, Stepped  # noqa: E402
from heddle.training.schemas.trajectories import check_pairs  # noqa: E402
from heddle.training.sequences import TrainingError  # noqa: E402
from heddle.training.trainer.run import PolicyCache  # noqa: E402
from tests.unit.training.trainer.jobs import make_task, perform  # noqa: E402

CACHE = PolicyCache()
Json = dict[str, Any]


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def says(text: str) -> Json:
    return {"role": "assistant", "content": text}


ROWS = [
    {"prompt": [user(f"say yes or no, {number}")], "chosen": [says("yes")], "rejected": [says("no")]}
    for number in range(6)
]


def train(folder: Path, rows: list[Json], **settings: Any) -> list[Any]:
    config = replace(DpoConfig(learning_rate=1e-2, batch_size=3), **settings).as_json()
    return perform(make_task(folder, {"rows": check_pairs(rows)}, kind="dpo", config=config), cache=CACHE)


def steps_of(messages: list[Any]) -> list[dict[str, float]]:
    return [message.data for message in messages if isinstance(message, Stepped)]


def test_the_loss_is_the_formula_and_so_is_its_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    chosen, rejected = (8 * torch.randn(20, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = [
        -math.log(1 / (1 + math.exp(-0.3 * (c - r)))) for c, r in zip(chosen.tolist(), rejected.tolist(), strict=True)
    ]
    torch.testing.assert_close(per_pair(chosen, rejected, 0.3), torch.tensor(expected, dtype=torch.float64))
    inputs = (chosen.requires_grad_(True), rejected.requires_grad_(True))
    assert torch.autograd.gradcheck(lambda c, r: per_pair(c, r, 0.3), inputs)
    equal = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    per_pair(equal, torch.zeros(1, dtype=torch.float64), 0.3).sum().backward()
    assert equal.grad.item() == pytest.approx(-0.15)
    far = per_pair(torch.tensor([-1e6]), torch.tensor([1e6]), 1.0)
    assert far.item() == pytest.approx(2e6)


def test_chosen_answers_become_likelier(tmp_path: Path) -> None:
    messages = train(tmp_path, ROWS * 4)
    steps = steps_of(messages)
    assert len(steps) == 8
    assert steps[0]["loss/train"] == pytest.approx(math.log(2))
    assert (steps[0]["preference/accuracy"], steps[0]["preference/margin"]) == (0, 0)
    assert steps[-1]["preference/accuracy"] == 1 and steps[-1]["preference/margin"] > 0.5
    assert steps[-1]["loss/train"] < steps[0]["loss/train"]


def test_an_interrupted_job_makes_the_same_adapter(tmp_path: Path) -> None:
    calls = iter([False, False, True])
    config = DpoConfig(learning_rate=1e-2).as_json()
    body = {"rows": check_pairs(ROWS)}
    whole = make_task(tmp_path / "whole", body, kind="dpo", config=config)
    parted = make_task(tmp_path / "parted", body, kind="dpo", config=config)
    perform(whole, cache=CACHE)
    perform(parted, lambda: next(calls), cache=CACHE)
    assert not Path(parted.target).exists()
    perform(parted, cache=CACHE)
    name = "adapter_model.safetensors"
    assert (Path(parted.target) / name).read_bytes() == (Path(whole.target) / name).read_bytes()


def test_beta_and_the_rates_act(tmp_path: Path) -> None:
    plain = steps_of(train(tmp_path / "plain", ROWS))
    strong = steps_of(train(tmp_path / "strong", ROWS, beta=1.0))
    assert strong[0]["loss/grad_norm"] > 2 * plain[0]["loss/grad_norm"]
    rates = steps_of(train(tmp_path / "rates", ROWS, learning_rate=[1e-3, 1e-4]))
    assert [step["loss/learning_rate"] for step in rates] == [1e-3, 1e-4]
    with pytest.raises(TrainingError, match="learning_rate has 1 values for 2 gradient steps"):
        train(tmp_path / "one", ROWS, learning_rate=[1e-3])


def test_long_pairs_are_counted(tmp_path: Path) -> None:
    long = {"chosen": [user("say it"), says("yes " * 3000)], "rejected": [user("say it"), says("no")]}
    messages = train(tmp_path, [*ROWS, long])
    assert isinstance(messages[0], Started)
    assert (messages[0].data["num_trajectories"], messages[0].data["data/dropped_too_long"]) == (7, 1)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"chosen": [says("a")]}, "row 0: rejected: Field required"),
        ({"chosen": [], "rejected": [says("a")]}, "row 0: chosen: List should have at least 1 item"),
        ({"chosen": [user("a")], "rejected": [says("a")]}, "chosen must end with an assistant message"),
        (
            {"chosen": [user("a"), says("b")], "rejected": [user("b"), says("c")]},
            "may differ only in the last message",
        ),
    ],
)
def test_rows_that_are_no_pairs_are_named(row: Json, reason: str) -> None:
    with pytest.raises(InvalidRequest) as problem:
        check_pairs([row])
    assert reason in problem.value.reason
