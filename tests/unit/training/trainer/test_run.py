"""A whole job: what it reports, that every setting acts, and that an interruption changes nothing."""

import copy
import dataclasses
import hashlib
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from heddle.training.config import RlConfig  # noqa: E402
from heddle.training.messages import Finished, Message, Saved, Started, Stepped, Task  # noqa: E402
from heddle.training.sequences import TrainingError  # noqa: E402
from heddle.training.trainer import run  # noqa: E402
from heddle.training.trainer.run import PolicyCache  # noqa: E402
from tests.support.models import make_adapter  # noqa: E402
from tests.unit.training.trainer.jobs import RENDERER, TINY_FOLDER, Sampler, groups_of, make_task, perform  # noqa: E402

WEIGHTS = "adapter_model.safetensors"
RATE = 1e-3


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(tmp_path_factory.mktemp("adapter"), TINY_FOLDER)


@pytest.fixture(scope="module")
def groups(adapter: Path) -> list[dict[str, Any]]:
    """Rollouts of the policy that is trained."""
    return groups_of(Sampler(adapter), groups=6, size=4)


@pytest.fixture(scope="module")
def cache() -> PolicyCache:
    return PolicyCache()


def task_of(folder: Path, groups: list[dict[str, Any]], settings: dict[str, Any] | None = None, **changes: Any) -> Task:
    config = RlConfig(**({"learning_rate": RATE} | (settings or {}))).as_json()
    return make_task(folder, {"trajectory_groups": groups}, config=config, **changes)


def steps_of(messages: list[Message]) -> list[dict[str, float]]:
    found = [message for message in messages if isinstance(message, Stepped)]
    assert [step.index for step in found] == list(range(len(found)))
    return [step.data for step in found]


def digest(folder: str | Path) -> str:
    return hashlib.sha256((Path(folder) / WEIGHTS).read_bytes()).hexdigest()


MANY_ROWS = {"packed_sequence_length": 64}
"""At least three of these groups."""


def test_one_row_on_policy(tmp_path: Path, groups: list[dict[str, Any]], cache: PolicyCache) -> None:
    task = task_of(tmp_path, groups)
    messages = perform(task, cache=cache)
    assert [type(message) for message in messages] == [Started, Stepped, Finished]
    started, step, end = messages
    assert isinstance(started, Started)
    assert isinstance(end, Finished)
    assert started.num_sequences == 1
    assert started.data["num_trajectories"] == 24
    data = steps_of([step])[0]
    assert data["offpolicy/ratio_mean"] == data["offpolicy/ratio_max"] == 1, "not one bit differs"
    assert data["agreement/largest_difference"] == 0
    assert data["agreement/tokens"] == data["agreement/equal_tokens"] == data["num_trainable_tokens"] > 20
    assert (data["agreement/bits"], data["agreement/threads"]) == (32, 1)
    assert data["loss/probs_corr"] > 0.999
    assert data["loss/learning_rate"] == RATE
    assert data["offpolicy/clip_fraction"] == 0
    assert data["loss/entropy"] > 0.01
    assert data["tokens_per_second"] > 0
    rewards = [member["reward"] for group in groups for member in group["trajectories"]]
    assert data["reward"] == started.data["reward"] == pytest.approx(sum(rewards) / len(rewards))
    assert (data["exception_rate"], data["num_groups_submitted"]) == (0.0, 6.0)
    assert all(isinstance(value, float) and math.isfinite(value) for value in data.values())
    assert end.digest == digest(task.target) != digest(task.parent)
    assert end.metrics == data
    assert end.bytes == sum(file.stat().st_size for file in Path(task.target).iterdir())
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_job_is_a_pure_function(
    threads: int, tmp_path: Path, groups: list[dict[str, Any]], cache: PolicyCache
) -> None:
    tasks = [task_of(tmp_path / name, groups, MANY_ROWS, threads=threads) for name in ("one", "two")]
    perform(tasks[0], cache=cache)
    perform(tasks[1], cache=PolicyCache())
    assert digest(tasks[0].target) == digest(tasks[1].target)
    other = task_of(tmp_path / "three", groups, MANY_ROWS, threads=threads, job_id="another")
    perform(other, cache=cache)
    assert digest(other.target) != digest(tasks[0].target)


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.mark.parametrize("precalculate", [False, True])
def test_killed_after_any_step_it_ends_with_the_same_bytes(
    tmp_path: Path, groups: list[dict[str, Any]], cache: PolicyCache, precalculate: bool
) -> None:
    settings = MANY_ROWS | {"precalculate_logprobs": precalculate, "truncated_importance_sampling": 2.0}
    whole = task_of(tmp_path / "whole", groups, settings)
    wanted = perform(whole, cache=cache)
    count = len(steps_of(wanted))
    assert count >= 3
    assert next(message.steps for message in wanted if isinstance(message, Saved)) == 1
    for place in range(count):
        task = task_of(tmp_path / f"killed-{place}", groups, settings)
        seen: list[Message] = []

        def report(message: Message, seen: list[Message] = seen, place: int = place) -> None:
            seen.append(message)
            if isinstance(message, Stepped) and message.index == place:
                raise Killed

        with pytest.raises(Killed):
            run.run_task(task, RENDERER, report, lambda: False, cache)
        again = perform(task, cache=PolicyCache())
        assert digest(task.target) == digest(whole.target)
        assert (Path(task.target) / "optimizer.safetensors").read_bytes() == (
            Path(whole.target) / "optimizer.safetensors"
        ).read_bytes()
        first, second = steps_of(seen), steps_of(again)
        assert again[0] == wanted[0]
        assert len(second) == count
        # What was done before the last snapshot is told again word for word.
        saved = max((message.steps for message in seen if isinstance(message, Saved)), default=0)
        assert second[:saved] == first[:saved]


def test_a_finished_job_reports_all_of_it_again(
    tmp_path: Path, groups: list[dict[str, Any]], cache: PolicyCache
) -> None:
    task = task_of(tmp_path, groups, MANY_ROWS)
    first = [message for message in perform(task, cache=cache) if not isinstance(message, Saved)]
    assert perform(task, cache=cache) == first


def test_a_half_written_checkpoint_is_no_checkpoint(
    tmp_path: Path, groups: list[dict[str, Any]], cache: PolicyCache
) -> None:
    task = task_of(tmp_path, groups)
    leftover = tmp_path / ".0001.tmp"
    leftover.mkdir()
    (leftover / WEIGHTS).write_bytes(b"half")
    assert isinstance(perform(task, cache=cache)[-1], Finished)
    assert not leftover.exists()


def test_cancelled_between_two_steps_it_returns(
    tmp_path: Path, groups: list[dict[str, Any]], cache: PolicyCache
) -> None:
    task = task_of(tmp_path, groups, MANY_ROWS)
    answers = iter([False, True])
    messages = perform(task, cancelled=lambda: next(answers), cache=cache)
    assert len(steps_of(messages)) == 1
    assert not isinstance(messages[-1], Finished)
    assert not Path(task.target).exists()


def test_nothing_to_train_makes_the_same_weights(tmp_path: Path, groups: list[dict[str, Any]]) -> None:
    equal = [{"trajectories": [member | {"reward": 1.0} for member in group["trajectories"]]} for group in groups]
    task = task_of(tmp_path, [*equal, {"trajectories": []}])
    started, end = perform(task)
    assert isinstance(started, Started)
    assert isinstance(end, Finished)
    assert started.num_sequences == 0
    assert started.data["data/equal_reward_groups"] == 6
    assert started.data["data/empty_groups"] == 1
    assert (Path(task.target) / WEIGHTS).samefile(Path(task.parent) / WEIGHTS)
    assert end.metrics == {}
    assert perform(task) == [started, end]


def test_bad_tokens_fail_the_job_by_place(tmp_path: Path, groups: list[dict[str, Any]]) -> None:
    message = {"role": "assistant", "content": "x"}
    content = [{"token": "token_id:99999", "logprob": -1.0}]
    choice = {"finish_reason": "stop", "index": 0, "message": message, "logprobs": {"content": content}}
    bad = {"trajectories": [{"messages_and_choices": [choice], "reward": float(place)} for place in range(2)]}
    with pytest.raises(TrainingError, match="group 6, trajectory 0, item 0: "):
        perform(task_of(tmp_path, [*groups, bad]))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"learning_rate": 1e20}, "learning rate of a gradient step is 1e"),
        ({"learning_rate": 1e300}, "learning rate of a gradient step is 1e"),
        ({"num_trajectories_learning_rate_multiplier_power": 1e4}, "learning rate of a gradient step is inf"),
        ({"kl_penalty_coef": 1.0, "kimi_k2_tau": 1e308}, r"diverged at gradient step \d"),
    ],
)
def test_what_runs_away_fails_the_job(
    tmp_path: Path, groups: list[dict[str, Any]], settings: dict[str, Any], reason: str
) -> None:
    others = copy.deepcopy(groups)
    for group in others:
        for member in group["trajectories"]:
            for token in member["messages_and_choices"][-1]["logprobs"]["content"]:
                token["logprob"] -= 0.5  # of another policy: on policy nothing can run away
    task = task_of(tmp_path, others, settings)
    with pytest.raises(TrainingError, match=reason):
        perform(task)
    assert not Path(task.target).exists()


def test_a_token_that_could_not_be_sampled_is_clipped(tmp_path: Path, groups: list[dict[str, Any]]) -> None:
    changed = copy.deepcopy(groups)
    changed[0]["trajectories"][0]["messages_and_choices"][-1]["logprobs"]["content"][0]["logprob"] = -9999.0
    steps = [message for message in perform(task_of(tmp_path, changed)) if isinstance(message, Stepped)]
    assert steps[0].data["offpolicy/clip_fraction"] > 0
    assert math.isfinite(steps[0].data["offpolicy/ratio_mean"])


SETTINGS: dict[str, dict[str, Any]] = {
    "balance": {"advantage_balance": 0.5},
    "ppo": {"loss": "ppo", "epsilon": 0.01, "epsilon_high": 0.01},
    "epsilon": {"epsilon": 0.01, "epsilon_high": 0.01},
    "level": {"importance_sampling_level": "sequence"},
    "cap": {"max_negative_advantage_importance_sampling_weight": 0.9},
    "masked ratios": {"mask_prob_ratio": True, "epsilon": 1.0, "epsilon_high": 0.01},
    "tau": {"kimi_k2_tau": 2.0},
    "kl to the base": {"kl_penalty_coef": 5.0},
    "truncated": {"truncated_importance_sampling": 0.9},
    "truncated after recomputing": {"truncated_importance_sampling": 0.9, "precalculate_logprobs": True},
    "rate": {"learning_rate": 2 * RATE},
    "rate by trajectories": {"num_trajectories_learning_rate_multiplier_power": 0.5},
    "rate by spread": {"scale_learning_rate_by_reward_std_dev": True},
    "not scaled": {"scale_rewards": False},
    "not normalised": {"normalize_advantages": False},
    "short rows": {"packed_sequence_length": 64},
}


@pytest.fixture(scope="module")
def later(adapter: Path, groups: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The third checkpoint on these rollouts: off policy, with an optimizer state and a history of spreads."""
    folder = tmp_path_factory.mktemp("later")
    for step, scale in ((1, 1.0), (2, 0.5), (3, 0.7)):
        scaled = [
            {"trajectories": [member | {"reward": member["reward"] * scale} for member in group["trajectories"]]}
            for group in groups
        ]
        parent = adapter if step == 1 else folder / f"{step - 1:04d}"
        places = {"target": str(folder / f"{step:04d}"), "work": str(folder), "parent": str(parent)}
        perform(task_of(folder, scaled, {"learning_rate": 5e-3}, step=step, **places))
    return folder / "0003"


KEPT = PolicyCache()


def outcome(folder: Path, groups: list[dict[str, Any]], later: Path, settings: dict[str, Any], **more: Any) -> Any:
    task = task_of(folder, groups, settings, parent=str(later), step=4, **more)
    messages = perform(task, cache=KEPT)
    return digest(task.target), steps_of(messages)


@pytest.fixture(scope="module")
def plain_outcome(groups: list[dict[str, Any]], later: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("plain")
    return *outcome(folder, groups, later, {}), folder / "0001"


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_acts(
    name: str, tmp_path: Path, groups: list[dict[str, Any]], later: Path, plain_outcome: Any
) -> None:
    plain, (usual, *_), _ = plain_outcome
    changed, (data, *_) = outcome(tmp_path / "changed", groups, later, SETTINGS[name])
    assert changed != plain
    rate = data["loss/learning_rate"] / usual["loss/learning_rate"]
    # The line through the spreads 1, 0.5, 0.7 and 1 of steps 1 to 4 rises from 0.75 at step 0 to 0.83.
    expected = {"rate": 2.0, "rate by trajectories": 24**0.5, "rate by spread": 0.83 / 0.75}
    assert rate == pytest.approx(expected.get(name, 1.0))
    if name == "epsilon":
        assert data["offpolicy/clip_fraction"] > 0.3
    if name == "kl to the base":
        assert abs(data["loss/kl_policy_ref"]) > 0.01
    if name == "truncated after recomputing":
        assert data["offpolicy/ratio_mean"] == pytest.approx(1, abs=1e-6)
    assert usual["offpolicy/ratio_max"] > 1.01


def test_the_kl_reference_may_be_a_checkpoint(
    tmp_path: Path, groups: list[dict[str, Any]], later: Path, adapter: Path
) -> None:
    found = {}
    for name, reference in (("base", None), ("itself", later), ("older", adapter)):
        settings = {"kl_penalty_coef": 0.5}
        more = {"kl_reference": None if reference is None else str(reference)}
        found[name] = outcome(tmp_path / name, groups, later, settings, **more)[1][0]["loss/kl_policy_ref"]
    assert found["itself"] == pytest.approx(0, abs=1e-9)
    assert min(abs(found["base"]), abs(found["older"]), abs(found["base"] - found["older"])) > 1e-4


def test_the_kl_source_may_be_the_rollout(
    tmp_path: Path, groups: list[dict[str, Any]], later: Path, adapter: Path
) -> None:
    """The rollouts were sampled by the first adapter, so they do not differ from it."""
    settings = {"kl_penalty_coef": 0.5, "kl_penalty_source": "sample"}
    data = outcome(tmp_path, groups, later, settings, kl_reference=str(adapter))[1][0]
    assert data["loss/kl_policy_ref"] == pytest.approx(0, abs=1e-4)


def test_chunks_of_logits_change_no_number(tmp_path: Path, groups: list[dict[str, Any]], later: Path) -> None:
    one = outcome(tmp_path / "one", groups, later, {})[1][0]
    many = outcome(tmp_path / "many", groups, later, {"logprob_calculation_chunk_size": 7})[1][0]
    for data in (one, many):
        del data["tokens_per_second"]
    assert many == pytest.approx(one, rel=1e-5)


def test_plotted_tensors_are_files_of_the_checkpoint(
    tmp_path: Path, groups: list[dict[str, Any]], cache: PolicyCache
) -> None:
    task = task_of(tmp_path, groups, MANY_ROWS | {"plot_tensors": True})
    count = len(steps_of(perform(task, cache=cache)))
    files = sorted((Path(task.target) / "tensors").iterdir())
    assert len(files) == count
    tensors = load_file(files[0])
    names = {"tokens", "positions", "segments", "parents", "mask", "logprobs", "advantages", "weights"}
    assert set(tensors) == names
    assert len({len(tensor) for tensor in tensors.values()}) == 1


def test_lags_are_counted_from_the_parent(tmp_path: Path, groups: list[dict[str, Any]], cache: PolicyCache) -> None:
    members = groups[0]["trajectories"]
    versioned = [{"trajectories": [member | {"initial_policy_version": 3} for member in members]}, *groups[1:]]
    task = dataclasses.replace(task_of(tmp_path, versioned), step=9, parent_step=5)
    assert steps_of(perform(task, cache=cache))[0]["offpolicy/lag_mean"] == 2.0


def weights_of(folder: str | Path) -> dict[str, Any]:
    return load_file(Path(folder) / WEIGHTS)


CHANGES = {
    "shifted": lambda group: [member | {"reward": member["reward"] + 3.0} for member in group],
    "scaled": lambda group: [member | {"reward": member["reward"] * 7.0} for member in group],
    "permuted": lambda group: group[::-1],
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_update_does_not_depend_on(
    name: str, tmp_path: Path, groups: list[dict[str, Any]], later: Path, plain_outcome: Any
) -> None:
    """Where rewards begin, how large they are, and which rollout comes first (training.md, section 5)."""
    changed = [{"trajectories": CHANGES[name](group["trajectories"])} for group in groups]
    _, (data, *_) = outcome(tmp_path, changed, later, {})
    (usual, *_) = plain_outcome[1]
    for key in ("loss/train", "loss/grad_norm", "loss/entropy", "offpolicy/ratio_mean"):
        assert data[key] == pytest.approx(usual[key], rel=1e-4, abs=1e-7)
    wanted = weights_of(plain_outcome[2])
    for tensor, found in weights_of(tmp_path / "0001").items():
        torch.testing.assert_close(found, wanted[tensor], atol=1e-5, rtol=0)
