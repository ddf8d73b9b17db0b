"""A whole job against the plain way: transformers, PEFT, one sequence at a time, torch's AdamW, formulas written out.

Nothing is packed, no prompt is shared, and nothing of the trainer is used but the order of its rows.
"""

import hashlib
import statistics
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from heddle.training.config import RlConfig  # noqa: E402
from heddle.training.messages import Stepped  # noqa: E402
from tests.support.forward import reference  # noqa: E402
from tests.support.models import make_adapter  # noqa: E402
from tests.unit.training.trainer.jobs import (  # noqa: E402
    RENDERER,
    TINY_FOLDER,
    Sampler,
    groups_of,
    make_task,
    perform,
)

RATE = 1e-3
ROW = 48
"""Tokens of a row: two groups or so."""


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    torch.set_num_threads(1)
    return make_adapter(tmp_path_factory.mktemp("parent") / "0000", TINY_FOLDER)


@pytest.fixture(scope="module")
def groups(parent: Path) -> list[dict[str, Any]]:
    """Rollouts whose logprobs are a little off, and some with an unlikely beginning."""
    made = groups_of(Sampler(parent), groups=5, size=3)
    for number, group in enumerate(made):
        for place, member in enumerate(group["trajectories"]):
            content = member["messages_and_choices"][-1]["logprobs"]["content"]
            if not place:
                content[:0] = [{"token": content[0]["token"], "logprob": -1.0 - step} for step in range(3)]
            for entry in content:
                entry["logprob"] = min(0.0, entry["logprob"] + 0.2 * ((number + place) % 3 - 1))
    return made


def plain_rows(groups: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Sequences with advantage and weight, in rows, in the job's order."""
    rows: list[list[dict[str, Any]]] = []
    for group in groups:
        rewards = [member["reward"] for member in group["trajectories"]]
        mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
        members = []
        for member in group["trajectories"]:
            *messages, choice = member["messages_and_choices"]
            content = choice["logprobs"]["content"]
            members.append(
                {
                    "prompt": RENDERER.render(messages, None, generation_prompt=True),
                    "ids": [int(entry["token"].removeprefix("token_id:")) for entry in content],
                    "old": torch.tensor([entry["logprob"] for entry in content], dtype=torch.float64),
                    "advantage": (member["reward"] - mean) / (deviation + 1e-6),
                    "weight": 1 / (len(content) + 1e-6),
                }
            )
        for place, member in enumerate(members):
            shared = min(len(other["prompt"]) for other in members) - 1
            shared = next((n for n in range(shared) if len({m["prompt"][n] for m in members}) > 1), shared)
            whole = len(member["prompt"]) + len(member["ids"])
            size = whole - (shared if place and rows and rows[-1][-1]["group"] is group else 0)
            if not rows or sum(other["size"] for other in rows[-1]) + size > ROW:
                rows.append([])
                size = whole
            rows[-1].append(member | {"group": group, "size": size})
    tokens = [(member, len(member["ids"])) for row in rows for member in row]
    count = sum(length for _, length in tokens)
    weight = sum(member["weight"] * length for member, length in tokens) / count
    spread = sum(abs(member["advantage"]) * member["weight"] / weight * length for member, length in tokens) / count
    for member, _ in tokens:
        member["weight"], member["advantage"] = member["weight"] / weight, member["advantage"] / spread
    return [rows[n] for n in sorted(range(len(rows)), key=lambda n: hashlib.sha256(f"job/{n}".encode()).digest())]


def logprobs(model: Any, member: dict[str, Any]) -> Any:
    """Of the sampled tokens, float64."""
    ids, start = torch.tensor(member["prompt"] + member["ids"]), len(member["prompt"])
    scores = model(ids[None]).logits[0].float().log_softmax(-1)
    return scores[start - 1 : -1].gather(1, ids[start:, None])[:, 0].double()


def plain_loss(kind: str, member: dict[str, Any], new: Any, references: Any, mean: Any) -> Any:
    """The sum over a sequence."""
    difference, advantage = new - member["old"], member["advantage"]
    if kind == "ppo":
        ratio = difference.mean().exp()
        losses = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).expand_as(new)
    else:
        if kind == "kl":
            advantage = advantage + 0.3 * (mean - (new - references).detach())
        losses = -difference.exp().detach().clamp(0, 5) * advantage * new
        if kind == "truncated":
            losses = losses * difference.exp().detach().clamp(max=1.1)
    return (losses * member["weight"]).sum()


def plain_job(kind: str, rows: list[list[dict[str, Any]]], parent: Path) -> tuple[dict[str, Any], list[Any]]:
    """The adapter after the job, and loss and norm of each step."""
    model, base = reference(TINY_FOLDER, adapter=parent), reference(TINY_FOLDER)
    named = {name: value for name, value in model.named_parameters() if "lora_" in name}
    optimizer = torch.optim.AdamW(
        [value.requires_grad_(True) for value in named.values()], lr=RATE, betas=(0.9, 0.99), weight_decay=0.1
    )
    steps = []
    for row in rows:
        news = [logprobs(model, member) for member in row]
        with torch.no_grad():
            references = [logprobs(base, member) for member in row]
        mean = (torch.cat(news) - torch.cat(references)).detach().mean()
        losses = [plain_loss(kind, m, n, r, mean) for m, n, r in zip(row, news, references, strict=True)]
        loss = torch.stack(losses).sum() / sum(len(new) for new in news)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(list(named.values()), 0.1)
        optimizer.step()
        steps.append((loss.item(), float(norm)))
    return {name.replace(".default.", "."): value.detach() for name, value in named.items()}, steps


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("default", {}),
        ("ppo", {"loss": "ppo", "epsilon": 0.2, "epsilon_high": 0.2, "importance_sampling_level": "sequence"}),
        ("kl", {"kl_penalty_coef": 0.3}),
        ("truncated", {"truncated_importance_sampling": 1.1}),
    ],
)
def test_a_job_is_what_the_formulas_say(
    kind: str, settings: dict[str, Any], groups: list[dict[str, Any]], parent: Path, tmp_path: Path
) -> None:
    config = RlConfig(learning_rate=RATE, packed_sequence_length=ROW, **settings)
    task = make_task(tmp_path, {"trajectory_groups": groups}, config=config.as_json(), parent=str(parent))
    found = [message.data for message in perform(task) if isinstance(message, Stepped)]
    rows = plain_rows(groups)
    assert len(rows) >= 3
    expected, steps = plain_job(kind, rows, parent)
    assert [step["loss/train"] for step in found] == pytest.approx([loss for loss, _ in steps], abs=1e-5)
    assert [step["loss/grad_norm"] for step in found] == pytest.approx([norm for _, norm in steps], rel=1e-3, abs=1e-6)
    weights, before = (
        load_file(Path(task.target) / "adapter_model.safetensors"),
        load_file(parent / "adapter_model.safetensors"),
    )
    assert set(weights) == set(expected)
    gaps = torch.cat([(weights[name] - expected[name]).abs().flatten() for name in weights])
    moved = torch.cat([(before[name] - expected[name]).abs().flatten() for name in weights])
    # AdamW divides by the gradient's own size: where that is rounding, so is the direction of the first steps.
    assert float((gaps <= 1e-5).float().mean()) >= 0.999
    assert float(gaps.mean()) <= 1e-4 * float(moved.mean())
