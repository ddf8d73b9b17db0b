"""Every field of experimental_config, from the wire to what a job does with it."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from heddle.inference.served_model import TINY_FOLDER
from heddle.training.config import RlConfig
from heddle.training.losses import LOSSES
from heddle.training.messages import Stepped
from heddle.training.schemas.requests import ExperimentalConfig, resolve_config
from heddle.training.sequences import TrainingError, sequences
from heddle.training.trainer.models import lay_out
from heddle.training.trainer.packing import pack
from heddle.training.trainer.run import PolicyCache
from tests.support.models import make_adapter
from tests.unit.training.trainer.jobs import RENDERER, make_task, perform, question

CACHE = PolicyCache()
Json = dict[str, Any]


@dataclass
class Done:
    """What a job made."""

    adapter: bytes
    steps: list[dict[str, float]]
    folder: Path


Train = Callable[..., Done]


@cache
def groups() -> list[Json]:
    """Three groups of four, answers of 3 to 6 tokens, sampled by a policy a little beside the random adapter."""
    random = Random(3)
    made = []
    for _ in range(3):
        messages = question(random)
        answers = [[random.randrange(100, 400) for _ in range(random.randint(3, 6))] for _ in range(4)]
        rewards = [random.random() for _ in answers]
        made.append(
            {"trajectories": [rollout(messages, *pair) for pair in zip(answers, rewards, strict=True)]},
        )
    return made


def rollout(messages: list[Json], answer: list[int], reward: float) -> Json:
    """One trajectory; the logprobs are unknown."""
    content = [{"token": f"token_id:{token}", "logprob": None} for token in answer]
    message = {"role": "assistant", "content": "yes"}
    choice = {"finish_reason": "stop", "index": 0, "message": message, "logprobs": {"content": content}}
    return {"messages_and_choices": [*messages, choice], "reward": reward}


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """The groups with logprobs: the random adapter's own, and noise."""
    folder = make_adapter(tmp_path_factory.mktemp("sampled") / "0000", TINY_FOLDER)
    policy = CACHE.policy(make_task(folder.parent, {"trajectory_groups": []}))
    policy.restore(folder, "rl")
    random = Random(4)
    content = json.loads(json.dumps(groups()))
    for sequence in sequences(content, RENDERER, RlConfig(), 2048).sequences:
        layout = lay_out(pack([sequence], RlConfig(), 2048, "", 0)[0], torch.device("cpu"))
        with torch.no_grad():
            found = policy.score(layout, 1024)[0].tolist()
        trajectory = content[sequence.group]["trajectories"][sequence.trajectory]
        entries = trajectory["messages_and_choices"][-1]["logprobs"]["content"]
        for entry, logprob in zip(entries, found, strict=True):
            entry["logprob"] = min(0.0, logprob + random.gauss(0.0, 0.5))
    return {"trajectory_groups": content}


@pytest.fixture
def train(tmp_path: Path, body: Json) -> Train:
    """Does a job with some fields set and gives what it made; each in a folder of its own."""
    count = iter(range(100))

    def run(
        fields: Json | None = None,
        *,
        content: Json | None = None,
        prepare: Callable[[Path], None] | None = None,
        **task: Any,
    ) -> Done:
        folder = tmp_path / str(next(count))
        config = resolve_config(ExperimentalConfig.model_validate({"learning_rate": 1e-3, **(fields or {})})).as_json()
        made = make_task(folder, content or body, config=config)
        if prepare is not None:
            prepare(folder)
        messages = perform(replace(made, **task), cache=CACHE)
        steps = [message.data for message in messages if isinstance(message, Stepped)]
        target = Path(made.target)
        return Done((target / "adapter_model.safetensors").read_bytes(), steps, target)

    return run


CHANGES: dict[str, Json] = {
    "advantage_balance": {"advantage_balance": 0.5},
    "epsilon": {"epsilon": 0.1},
    "epsilon_high": {"epsilon_high": 0.1},
    "kimi_k2_tau": {"kimi_k2_tau": 0.5},
    "mask_prob_ratio": {"mask_prob_ratio": True, "epsilon_high": 0.1},
    "max_negative_advantage_importance_sampling_weight": {"max_negative_advantage_importance_sampling_weight": 0.9},
    "truncated_importance_sampling": {"truncated_importance_sampling": 0.9},
    "kl_penalty_coef": {"kl_penalty_coef": 0.5},
    "scale_rewards": {"scale_rewards": False},
    "ppo": {"ppo": True},
    "loss_fn_config": {"loss_fn": "dro", "loss_fn_config": {"beta": 1.0}},
    "kl_loss_coef": {"kl_loss_coef": 0.5},
    "kl_estimator": {"kl_loss_coef": 0.5, "kl_estimator": "k2"},
    "off_policy_mask_threshold": {"off_policy_mask_threshold": -10.0},
}
"""Fields that change the objective, each with what it needs beside it; how much is what the recorded vectors test."""


@pytest.mark.parametrize("field", CHANGES)
def test_the_update_is_another_one(field: str, train: Train) -> None:
    without = {name: value for name, value in CHANGES[field].items() if name != field}
    assert train(CHANGES[field]).adapter != train(without).adapter


def test_the_same_settings_give_the_same_update(train: Train) -> None:
    assert train().adapter == train().adapter
    nulls = dict.fromkeys(ExperimentalConfig.model_fields)
    assert train(nulls | {"learning_rate": 1e-3}).adapter == train().adapter


def test_levels_of_the_ratio(train: Train) -> None:
    levels = ("token", "sequence", "average", "geometric_average")
    made = {level: train({"importance_sampling_level": level}).adapter for level in levels}
    assert len(set(made.values())) == 4
    assert made["token"] == train().adapter


def test_loss_fn_goes_before_ppo(train: Train) -> None:
    assert train({"loss_fn": "ppo"}).adapter == train({"ppo": True}).adapter != train().adapter
    assert train({"loss_fn": "cispo", "ppo": True}).adapter == train().adapter


def test_each_loss_gives_another_update(train: Train) -> None:
    names = [name for name in LOSSES if name not in ("cross_entropy", "dapo")]
    options = {"stable_reinforce": {"kl_coeff": 0.1}}
    made = {
        name: train({"loss_fn": name, "loss_fn_config": options.get(name)}).steps[0]["loss/train"] for name in names
    }
    assert len(set(made.values())) == len(names)
    # One gradient step is the whole job, so that the job's tokens are the step's.
    same = train({"loss_fn": "dapo", "epsilon_high": 0.2})
    assert same.adapter == train({"loss_fn": "bnpo"}).adapter
    assert same.steps[0]["loss/train"] == made["bnpo"]


def test_corrections_of_the_rollouts(train: Train) -> None:
    bounds = {"importance_correction_min": 0.9, "importance_correction_max": 1.05}
    modes = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    made = [train(bounds | {"importance_correction": mode}).adapter for mode in modes]
    made += [train({"importance_correction": modes[0], name: value}).adapter for name, value in bounds.items()]
    assert len({*made, train().adapter}) == 7
    tis = train({"importance_correction": "token_truncate", "importance_correction_max": 0.9})
    assert tis.adapter == train({"truncated_importance_sampling": 0.9}).adapter


def test_rollouts_beyond_the_bound_of_staleness_fail_the_job(train: Train, body: Json) -> None:
    content = json.loads(json.dumps(body))
    content["trajectory_groups"][1]["trajectories"][2]["initial_policy_version"] = 3
    step = train({"max_steps_off_policy": 2}, content=content, step=6).steps[0]
    assert step["offpolicy/lag_max"] == step["offpolicy/lag_mean"] == 2
    with pytest.raises(TrainingError, match="trajectory 2: sampled from step 3, but trained from step 5; max_steps"):
        train({"max_steps_off_policy": 1}, content=content, step=6)


def test_normalize_advantages_is_scale_rewards_by_another_name(train: Train) -> None:
    assert train({"normalize_advantages": False}).adapter == train({"scale_rewards": False}).adapter
    assert train({"normalize_advantages": True}).adapter == train().adapter


def test_learning_rate(train: Train) -> None:
    slow, fast = train({"learning_rate": 1e-4}), train({"learning_rate": 1e-3})
    assert [done.steps[0]["loss/learning_rate"] for done in (slow, fast)] == [1e-4, 1e-3]
    assert moved(fast) > 5 * moved(slow) > 0


def moved(done: Done) -> float:
    """How far the adapter is from the one that the job began with."""
    before = load_file(done.folder.parent / "0000" / "adapter_model.safetensors")
    after = load_file(done.folder / "adapter_model.safetensors")
    return math.sqrt(sum(float((after[name] - before[name]).square().sum()) for name in before))


def test_the_default_learning_rate_is_the_wires() -> None:
    assert resolve_config(ExperimentalConfig.model_validate({"learning_rate": None})).learning_rate == 5e-6


def test_learning_rate_grows_with_the_sequences_of_a_row(train: Train) -> None:
    step = train({"num_trajectories_learning_rate_multiplier_power": 0.5}).steps[0]
    assert step["loss/learning_rate"] == pytest.approx(1e-3 * math.sqrt(step["num_datums"]))


def test_learning_rate_follows_the_spread_of_rewards(train: Train) -> None:
    def history(folder: Path) -> None:
        (folder / "0000" / "training_state.json").write_text(json.dumps({"reward_std_dev": [[1, 1.0], [2, 0.8]]}))

    plain = train(prepare=history, step=3)
    scaled = train({"scale_learning_rate_by_reward_std_dev": True}, prepare=history, step=3)
    assert plain.steps[0]["loss/learning_rate"] == 1e-3
    assert 0 < scaled.steps[0]["loss/learning_rate"] < 1e-3


def test_precalculated_logprobs_begin_on_policy(train: Train) -> None:
    plain, again = train().steps[0], train({"precalculate_logprobs": True}).steps[0]
    assert abs(plain["offpolicy/ratio_mean"] - 1) > 1e-3
    assert again["offpolicy/ratio_mean"] == pytest.approx(1, abs=1e-6)


def test_a_row_holds_at_most_its_length(train: Train, body: Json) -> None:
    made = sequences(body["trajectory_groups"], RENDERER, RlConfig(), 2048).sequences
    longest = max(len(sequence.ids) for sequence in made)
    assert len(train().steps) == 1
    assert len(train({"packed_sequence_length": longest}).steps) > 3
    with pytest.raises(TrainingError, match="packed_sequence_length"):
        train({"packed_sequence_length": 4096}, max_length=2048)


def test_parts_of_the_logits_change_memory_only(train: Train, tmp_path: Path) -> None:
    model = CACHE.policy(make_task(tmp_path, {"trajectory_groups": []})).model
    head = model.module.get_submodule("lm_head")
    sizes: list[int] = []
    hook = head.register_forward_hook(lambda _module, arguments, _result: sizes.append(len(arguments[0])))
    try:
        whole = load_file(train().folder / "adapter_model.safetensors")
        at_once = max(sizes)
        sizes.clear()
        parts = load_file(train({"logprob_calculation_chunk_size": 7}).folder / "adapter_model.safetensors")
    finally:
        hook.remove()
    assert max(sizes) == 7 < at_once
    for name, tensor in whole.items():
        # A tenth of a step: where a gradient is near 0, Adam makes much of how a processor rounds.
        torch.testing.assert_close(parts[name], tensor, rtol=1e-4, atol=1e-4)


def test_plotted_tensors_are_the_rows(train: Train) -> None:
    names = {"tokens", "logprobs", "segments", "parents", "positions", "mask", "advantages", "weights"}
    folder = train({"plot_tensors": True}).folder / "tensors"
    (file,) = folder.iterdir()
    tensors = load_file(file)
    assert set(tensors) == names
    assert len({tensor.shape for tensor in tensors.values()}) == 1
    assert not (train().folder / "tensors").exists()


def test_training_without_logprobs(train: Train, body: Json) -> None:
    content = json.loads(json.dumps(body))
    for group in content["trajectory_groups"]:
        group["trajectories"][0]["messages_and_choices"][-1]["logprobs"] = None
    without = train(content=content).steps[0]
    allowed = train({"allow_training_without_logprobs": True}, content=content).steps[0]
    assert allowed["num_datums"] == without["num_datums"] + 3
    assert allowed["num_trainable_tokens"] > without["num_trainable_tokens"]


def test_a_penalty_measures_the_distance_to_its_reference(train: Train, tmp_path: Path) -> None:
    other = make_adapter(tmp_path / "other", TINY_FOLDER, seed=9)
    base = train({"kl_penalty_coef": 0.5})
    far = train({"kl_penalty_coef": 0.5}, kl_reference=str(other))
    near = train({"kl_penalty_coef": 0.5}, kl_reference=str(base.folder.parent / "0000"))
    assert "loss/kl_policy_ref" not in train().steps[0]
    assert near.steps[0]["loss/kl_policy_ref"] == pytest.approx(0, abs=1e-6)
    assert abs(base.steps[0]["loss/kl_policy_ref"]) > 1e-3 < abs(far.steps[0]["loss/kl_policy_ref"])
    assert len({done.adapter for done in (base, far, near)}) == 3


def test_whose_logprobs_a_penalty_compares(train: Train) -> None:
    sample = train({"kl_penalty_coef": 0.5, "kl_penalty_source": "sample"})
    learner = train({"kl_penalty_coef": 0.5, "kl_penalty_source": "current_learner"})
    assert sample.adapter != learner.adapter == train({"kl_penalty_coef": 0.5}).adapter
