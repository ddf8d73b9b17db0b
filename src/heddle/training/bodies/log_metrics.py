"""What logged trajectories come to: the figures that clients of this wire compute (contract training.md, section 2)."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from heddle.training.bodies.trajectories import TrajectoryGroup


def log_metrics(split: str, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Figures named `<split>/<metric>`.

    `reward` and every trajectory metric are means over trajectories, `group_<metric>` over the groups that have some,
    `exception_rate` is the share of rollouts that failed, `reward_std_dev` the mean over groups of two or more of the
    population deviation.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        for name, value in group.metrics.items() if group.trajectories else ():
            values[f"group_{name}"].append(float(value))
        for trajectory in group.trajectories:
            for name, value in trajectory.metrics.items():
                values[name].append(float(value))
    failed = sum(len(group.exceptions) for group in groups)
    rewards = [[trajectory.reward for trajectory in group.trajectories] for group in groups]
    every = [reward for members in rewards for reward in members]
    if every:
        values["reward"] = every
    if failed or every:
        values["exception_rate"] = [failed / (failed + len(every))]
    values["reward_std_dev"] = [_mean(_deviation(members) for members in rewards if len(members) > 1)]
    means = {f"{split}/{name}": _mean(items) for name, items in values.items()}
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}


def _mean(values: Iterable[float]) -> float:
    """0 for none; infinite where the sum is beyond the range of floats."""
    items = list(values)
    try:
        return math.fsum(items) / len(items) if items else 0.0
    except OverflowError:
        return math.inf


def _deviation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(_mean((value - mean) * (value - mean) for value in values))
