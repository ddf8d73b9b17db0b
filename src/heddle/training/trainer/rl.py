"""Reinforcement learning from trajectory groups: one packed row is one optimizer step (training.md, section 2)."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.numpy import save_file
from torch import Tensor

from heddle.models.interfaces import ModelError
from heddle.training.config import RlConfig
from heddle.training.losses import LOSSES
from heddle.training.losses.base import SMALL, find_divisor
from heddle.training.messages import Started, Task
from heddle.training.sequences import (
    GroupData,
    Renderer,
    TrainingError,
    learning_rate_multiplier,
    policy_version,
    reward_spread,
    sequences,
)
from heddle.training.trainer.loss import Objective, correlation, objective, probability_sums
from heddle.training.trainer.models import Layout, find_sampled, lay_out
from heddle.training.trainer.packing import PER_TOKEN, Row, pack
from heddle.training.trainer.policy import Policy, Which
from heddle.training.trainer.ranks import Ranks, part_of
from heddle.wire.jsontypes import Json

OF_JOB = ("num_groups_submitted", "num_groups_trainable", "num_trajectories", "num_datums")
"""Counts of the whole job that every gradient step repeats, as it does rewards: clients read gradient steps only."""
TENSORS = "tensors"


class RlJob:
    """A job's rows, ready to be trained one after the other."""

    def __init__(self, task: Task, body: Json, renderer: Renderer, ranks: Ranks) -> None:
        groups: list[GroupData] = body["trajectory_groups"]
        self.task = task
        self.ranks = ranks
        self.settings = RlConfig.of_json(task.config)
        policy_step = task.step - 1 if task.parent_step is None else task.parent_step
        prepared = sequences(groups, renderer, self.settings, task.max_length)
        check_staleness(groups, policy_step, self.settings.max_steps_off_policy)
        self.rows = pack(prepared.sequences, self.settings, task.max_length, task.job_id, policy_step)
        self.spread = reward_spread(groups)
        rewards = reward_metrics(groups, self.spread)
        self.counts = rewards | {name: prepared.counts[name] for name in OF_JOB}
        ignored = {f"ignored/{name}": 1.0 for name in self.settings.ignored}
        self.started = Started(len(self.rows), rewards | prepared.counts | ignored)
        self.rate = self.settings.learning_rate
        tokens = [sum(sequence.mask) for sequence in prepared.sequences]
        self.job_tokens = sum(tokens) / max(len(self.rows), 1)
        self.length = self.settings.loss_fn_config.get("max_completion_length") or float(max(tokens, default=1))
        self.reference: Which | None = None
        self.recomputed: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.rows)

    def begin(self, policy: Policy) -> None:
        """What is worked out once, with the weights that the job starts from."""
        if self.spread is not None:
            policy.state.reward_std_dev.append((self.task.step, self.spread))
        if self.settings.scale_learning_rate_by_reward_std_dev:
            self.rate *= learning_rate_multiplier(policy.state.reward_std_dev)
        if self.settings.compares:
            folder = self.task.kl_reference
            self.reference = "base" if folder is None else policy.read(Path(folder))
        if self.settings.precalculate_logprobs:
            for row in self.rows:
                layout = self.layout(row, policy)
                own = self.ask_engine(layout, policy, self.task.parent)
                if own is None:
                    with torch.no_grad():
                        own = policy.score(layout, self.chunk)[0].double()
                self.recomputed.append(own)

    def ask_engine(self, layout: Layout, policy: Policy, folder: str | None) -> Tensor | None:
        """What the engine gives tokens under an adapter's folder or the base model; None where it cannot be asked."""
        engine = policy.engine()
        try:
            return None if engine is None else engine.score(layout, None if folder is None else Path(folder)).double()
        except ModelError:
            return None

    @property
    def chunk(self) -> int:
        """Tokens whose logits are in memory at once."""
        return self.settings.logprob_calculation_chunk_size

    def layout(self, row: Row, policy: Policy) -> Layout:
        """This rank's part of a row."""
        return lay_out(part_of(row, self.ranks.rank, self.ranks.count), policy.model.device)

    def step(self, index: int, policy: Policy) -> dict[str, float]:
        """Train one row; returns the metrics of the step. TrainingError when the numbers run away."""
        began = time.perf_counter()
        row, settings = self.rows[index], self.settings
        layout = self.layout(row, policy)
        sampled = layout.known.old
        if self.recomputed:
            layout.known.original, layout.known.old = layout.known.old, self.recomputed[index]
        logprobs, entropies = policy.score(layout, self.chunk)
        new = logprobs.double()
        is_engines = index == 0 and (
            bool(self.recomputed) or self._seems_sampled(new.detach(), sampled, layout, policy)
        )
        own = reference = None
        if is_engines:
            own = self.recomputed[0] if self.recomputed else self.ask_engine(layout, policy, self.task.parent)
        if own is not None:
            # Values so near subtract without rounding: the sum has the engine's bits and the trainer's gradient.
            new = new + (own - new).detach()
        if self.reference is not None:
            # Compared with the engine's values, these are the engine's too.
            reference = self.ask_engine(layout, policy, self.task.kl_reference) if is_engines else None
            if reference is None:
                reference = policy.score(layout, self.chunk, self.reference)[0].double()
            layout.known.reference = reference
        agreement = {} if index or any(row.lags) else self._compare(new.detach(), sampled, policy)
        tokens = float(self.ranks.total(torch.tensor(float(layout.trained))))
        result = objective(new, layout.known, settings, self.ranks.total)
        aggregation = LOSSES[settings.loss].aggregation
        divisor = find_divisor(aggregation, tokens, row.sequences, self.job_tokens, self.length)
        (result.loss_sum / divisor).backward()  # type: ignore[no-untyped-call]
        self.ranks.add_gradients(policy.adapter.parameters())
        rate = self.rate * scale_factor(row.sequences, settings.num_trajectories_learning_rate_multiplier_power)
        norm = policy.step(rate)
        metrics = self._measure(new, entropies, layout, result, tokens, divisor)
        metrics |= {"loss/learning_rate": rate, "loss/grad_norm": norm} | self.counts | agreement
        if row.lags:
            metrics["offpolicy/lag_mean"] = math.fsum(row.lags) / len(row.lags)
            metrics["offpolicy/lag_max"] = max(row.lags)
        check_finite(metrics, index)
        length = float(self.ranks.total(torch.tensor(float(layout.length))))
        return metrics | {"tokens_per_second": length / (time.perf_counter() - began)}

    def _seems_sampled(self, new: Tensor, sampled: Tensor, layout: Layout, policy: Policy) -> bool:
        """True when the policy itself seems to have sampled a sequence of the row, on whatever rank."""
        known = ~sampled.isnan()
        dtype = next(policy.model.module.parameters()).dtype
        found = find_sampled(new[known], sampled[known], layout.known.segments[known], dtype).any()
        return bool(self.ranks.largest(found.double()))

    def _compare(self, own: Tensor, sampled: Tensor, policy: Policy) -> dict[str, float]:
        """How far the logprobs of the first row are from those that were sampled with the same weights."""
        known = ~torch.isnan(sampled)
        differences = (own - sampled)[known].abs()
        counts = self.ranks.total(torch.stack([known.sum(), (differences == 0).sum()]).double()).tolist()
        largest = self.ranks.largest(torch.cat([differences, own.new_zeros(1)]).max())
        return {
            "agreement/tokens": counts[0],
            "agreement/equal_tokens": counts[1],
            "agreement/largest_difference": float(largest),
            "agreement/bits": 8.0 * next(policy.model.module.parameters()).itemsize,
            "agreement/threads": float(torch.get_num_threads()),
        }

    def _measure(
        self, new: Tensor, entropies: Tensor, layout: Layout, result: Objective, tokens: float, divisor: float
    ) -> dict[str, float]:
        """What the row says about the policy, over all ranks."""
        known = layout.known
        parts = [
            result.loss_sum.detach(),
            (entropies.double() * known.weights).sum(),
            result.ratios.sum(),
            result.clipped.sum().double(),
            known.weights.sum(),
        ]
        sums = self.ranks.total(torch.cat([torch.stack(parts), probability_sums(new, known)]))
        nothing = result.ratios.new_zeros(1)
        largest = self.ranks.largest(torch.cat([result.ratios, nothing]).max())
        loss, entropy, ratios, clipped, weight = sums[:5].tolist()
        if LOSSES[self.settings.loss].aggregation == "trajectory":
            weight = divisor
        metrics = {
            "loss/train": loss / divisor,
            "loss/entropy": entropy / max(weight, SMALL),
            "offpolicy/ratio_mean": ratios / max(tokens, 1.0),
            "offpolicy/ratio_max": float(largest),
            "offpolicy/clip_fraction": clipped / (tokens + SMALL),
            "num_trainable_tokens": tokens,
        }
        if result.divergence is not None:
            metrics["loss/kl_policy_ref"] = float(result.divergence)
        agreement = correlation(sums[5:])
        return metrics if math.isnan(agreement) else metrics | {"loss/probs_corr": agreement}

    def keep(self, folder: Path) -> None:
        """Write what a checkpoint keeps of the job beside the weights: the rows, when `plot_tensors` asks for them."""
        if not self.settings.plot_tensors:
            return
        (folder / TENSORS).mkdir()
        for index, row in enumerate(self.rows):
            arrays = {name: getattr(row, name) for name in PER_TOKEN}
            save_file(arrays, folder / TENSORS / f"row-{index:04d}.safetensors")


def check_staleness(groups: Sequence[GroupData], policy_step: int, bound: int | None) -> None:
    """TrainingError for a rollout that a policy more than `bound` steps before the trained one sampled."""
    if bound is None:
        return
    for place, group in enumerate(groups):
        for index, member in enumerate(group["trajectories"]):
            version = policy_version(member)
            if version is not None and policy_step - version > bound:
                raise TrainingError(
                    f"group {place}, trajectory {index}: sampled from step {version}, but trained from step "
                    f"{policy_step}; max_steps_off_policy is {bound}"
                )


def reward_metrics(groups: Sequence[GroupData], spread: float | None) -> dict[str, float]:
    """Mean reward, mean deviation within groups, and the share of rollouts that failed; without what is undefined."""
    rewards = [float(member.get("reward", 0.0)) for group in groups for member in group["trajectories"]]
    failed = sum(len(group.get("exceptions") or ()) for group in groups)
    figures = {} if spread is None else {"reward_std_dev": spread}
    if rewards:
        figures["reward"] = math.fsum(rewards) / len(rewards)
    if rewards or failed:
        figures["exception_rate"] = failed / (failed + len(rewards))
    return figures


def scale_factor(count: int, power: float) -> float:
    """`count` to the power; infinity where that is more than a float holds."""
    try:
        return math.pow(count, power)
    except OverflowError:
        return math.inf


def check_finite(metrics: dict[str, float], index: int) -> None:
    """TrainingError when a number is none."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise TrainingError(f"training diverged at gradient step {index + 1}: {name} is {value}")
