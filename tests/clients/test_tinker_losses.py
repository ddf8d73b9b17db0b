"""Each loss through the unmodified Tinker client: its value and the weights behind one step, computed beside it."""

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")
pytest.importorskip("transformers")

from peft import PeftModel, get_peft_model_state_dict  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch import Tensor  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

from heddle.inference.served_model import TINY_FOLDER  # noqa: E402
from tests.clients.test_tinker import TinkerClient, client, trained  # noqa: E402, F401

pytestmark = [pytest.mark.client, pytest.mark.thorough]
NAMES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro", "gspo", "stable_reinforce", "pairs", "handle")
Given = dict[str, Tensor]


def surrogate(ratio: Tensor, a: Tensor, config: dict[str, float]) -> Tensor:
    """The lower of the two terms of PPO, for each token."""
    clipped = torch.clip(ratio, config["clip_low_threshold"], config["clip_high_threshold"])
    return torch.minimum(ratio * a, clipped * a)


def loss_of(name: str, logp: Tensor, given: Given, config: dict[str, float]) -> Tensor:
    """The loss of one sequence, from its published formula."""
    if name == "cross_entropy":
        return -(logp * given["weights"]).sum()
    if name == "handle":
        return (given["weights"] * logp.square()).sum()
    old, a = given["logprobs"], given["advantages"]
    ratio = torch.exp(logp - old)
    if name == "importance_sampling":
        return -(ratio * a).sum()
    if name == "ppo":
        return -surrogate(ratio, a, config).sum()
    if name == "cispo":
        weight = torch.clip(ratio, config["clip_low_threshold"], config["clip_high_threshold"]).detach()
        return -(weight * a * logp).sum()
    if name == "dro":
        return -(logp * a - config["beta"] / 2 * (logp - old).square()).sum()
    if name == "gspo":
        marked = given["sequence_ratio_mask"].bool()
        whole = torch.exp((logp - old)[marked].mean().detach())
        return -surrogate(whole * torch.exp(logp - logp.detach()), a, config).sum()
    assert name == "stable_reinforce"
    limit = math.log(config["ratio_limit"])
    bounds = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    kept = a.abs() <= config["advantage_limit"]
    held = surrogate(torch.exp((logp - old).clip(-limit, limit)), a, bounds)
    divergence = torch.exp(old - logp) - (old - logp) - 1
    return (-held * kept + config["kl_coeff"] * divergence).sum()


def train_beside(start: Path, texts: list[list[int]], name: str, told: Any) -> tuple[float, dict[str, Tensor]]:
    """The loss and the adapter after one step, by transformers, PEFT and torch."""
    base = AutoModelForCausalLM.from_pretrained(TINY_FOLDER, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, start, is_trainable=True)
    scores = []
    for ids in texts:
        logits = model(torch.tensor([ids[:-1]])).logits[0]
        scores.append(logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0])
    if name == "pairs":
        loss = -torch.nn.functional.logsigmoid(0.25 * (scores[0][3:].sum() - scores[1][3:].sum()))
    else:
        inputs = [{key: torch.tensor(values) for key, values in given.items()} for given in told["inputs"]]
        terms = zip(scores, inputs, strict=True)
        loss = torch.stack([loss_of(name, logp, given, told["config"]) for logp, given in terms]).sum()
    loss.backward()
    parameters = [tensor for tensor in model.parameters() if tensor.requires_grad]
    torch.optim.AdamW(parameters, lr=1e-2, betas=(0.9, 0.95), eps=0.5, weight_decay=0.0).step()
    return loss.item(), get_peft_model_state_dict(model, save_embedding_layers=False)


def test_losses_and_weights_are_the_formulas(client: TinkerClient) -> None:  # noqa: F811
    """All that the client names, and two of the client's own: one called, one traced."""
    seen = client.run("losses.py", timeout=400)
    assert tuple(seen["results"]) == NAMES
    start = load_file(Path(seen["start"]) / "adapter_model.safetensors")
    for name, told in seen["results"].items():
        loss, weights = train_beside(Path(seen["start"]), seen["texts"], name, told)
        assert told["loss"] == pytest.approx(loss, rel=1e-4), name
        found = load_file(Path(told["folder"]) / "adapter_model.safetensors")
        assert found.keys() == weights.keys() == start.keys()
        moved = max(float((found[key] - start[key]).abs().max()) for key in start)
        apart = max(float((found[key] - weights[key].detach()).abs().max()) for key in start)
        assert moved > 1e-3 and apart < moved / 500, (name, moved, apart)
