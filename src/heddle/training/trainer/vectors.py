"""Our numbers for a file of recorded cases (`heddle check vectors`): losses with gradients, and advantages.

The file has the format of loss-vectors.json; what it expects is never read, and may be missing.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from heddle.errors import InvalidRequest
from heddle.training.config import RlConfig
from heddle.training.losses import LOSSES
from heddle.training.losses.base import SMALL, LossName, trajectory_weight
from heddle.training.sequences import TokenSequence, group_advantages, share_prompt
from heddle.training.trainer.loss import Tokens, correlation, objective, probability_sums, shift
from heddle.wire.jsontypes import Json

Case = Json
"""A recorded case, or our numbers for one: JSON of the file."""
_INPUTS = (
    "new_logprobs",
    "logprobs",
    "advantages",
    "weights",
    "assistant_mask",
    "group_ids",
    "ref_logprobs",
    "original_logprobs",
    "entropies",
)
_OFF_AT_ZERO = ("max_negative_advantage_importance_sampling_weight", "kimi_k2_tau", "truncated_importance_sampling")


def compute_vectors(path: Path) -> Case:
    """`loss` and `advantages` of the file's cases, as JSON values; null where a value does not exist.

    InvalidRequest for a file that cannot be read, and for a case that lacks what it is computed from.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise InvalidRequest(f"{path} does not contain a JSON object")
    return {
        "loss": _cases(content, "loss", lambda case: {"expected": loss_values(case)}),
        "advantages": _cases(content, "advantages", lambda case: {"results": advantage_values(case)}),
    }


def _cases(content: Case, kind: str, compute: Callable[[Case], Case]) -> list[Case]:
    found = []
    for place, case in enumerate(content.get(kind) or ()):
        name = case.get("name") if isinstance(case, dict) else None
        try:
            found.append({"name": name, **compute(case)})
        except KeyError as error:
            raise InvalidRequest(f"{kind} case {name or place}: {error} is missing") from error
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise InvalidRequest(f"{kind} case {name or place}: {error}") from error
    return found


def loss_values(case: Case) -> Case:
    """The loss of one case in float64, its metrics, and its gradient with respect to the new logprobs."""
    inputs = case["inputs"]
    settings = raw_settings(case.get("config") or {})
    new = _tensor(inputs["new_logprobs"]).requires_grad_(True)
    _check_shapes(inputs, new.shape)
    original, reference = inputs.get("original_logprobs"), inputs.get("ref_logprobs")
    tokens = Tokens(
        old=shift(_tensor(inputs["logprobs"]), math.nan),
        advantages=shift(_tensor(inputs["advantages"]), 0.0),
        weights=shift(_tensor(inputs["weights"]), 0.0),
        mask=shift(_tensor(inputs["assistant_mask"]), 0.0).bool(),
        segments=_segments(inputs["group_ids"]),
        reference=None if reference is None else _tensor(reference),
        original=None if original is None else shift(_tensor(original), 0.0),
    )
    result = objective(new, tokens, settings)
    divisor = int(tokens.mask.sum()) + SMALL if case.get("reduction", "mean") == "mean" else 1.0
    loss = result.loss_sum / divisor
    loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    entropy = None
    if inputs.get("entropies") is not None:
        entropies = shift(_tensor(inputs["entropies"]), 0.0)
        entropy = (entropies * tokens.weights * tokens.mask).sum() / divisor
    return {
        "policy_loss": _number(loss),
        "policy_loss_sum": _number(result.loss_sum),
        "entropy": _number(entropy),
        "kl_policy_ref": _number(result.divergence),
        "probs_corr": _number(correlation(probability_sums(new, tokens))),
        "grad_new_logprobs": [[_number(value) for value in row] for row in new.grad.tolist()],
    }


def _segments(group_ids: Sequence[Sequence[int]]) -> Tensor:
    """Shifted, and different in each row, since a segment never reaches into another one."""
    names = [[f"{place}/{group}" for group in [*row[1:], 0]] for place, row in enumerate(group_ids)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(name for row in names for name in row))}
    return torch.tensor([[numbers[name] for name in row] for row in names])


def raw_settings(config: Case) -> RlConfig:
    """The settings that a recorded config means.

    Unlike on the wire, an `epsilon_high` of null is epsilon; only a missing one is the default of the loss.
    """
    loss: LossName = "ppo" if config.get("ppo") else "cispo"
    bounds = LOSSES[loss].bounds
    assert bounds is not None
    low, high = bounds
    epsilon = config.get("epsilon")
    epsilon = low if epsilon is None else epsilon
    high = config.get("epsilon_high", high)
    given = {name: value for name, value in config.items() if value or (value is not None and name not in _OFF_AT_ZERO)}
    given |= {"loss": loss, "epsilon": epsilon, "epsilon_high": epsilon if high is None else high}
    return RlConfig(**{name: value for name, value in given.items() if name != "ppo"})


def advantage_values(case: Case) -> list[Case]:
    """Advantage, weight and shared prompt for each result, in the order of the trajectories that have an advantage.

    Weight and prompt come from the result's own `token_ids` and `assistant_mask`, and are None without them.
    """
    scaled = case.get("scale_rewards", True)
    members = [
        (place, advantage)
        for place, rewards in enumerate(case["rewards"])
        for advantage in (group_advantages(rewards, scaled) if rewards else ())
        if advantage
    ]
    given = [item or {} for item in case.get("results") or ()] or [{} for _ in members]
    made = [_sequence(item) for item in given]
    values = list(_shared(members, made))
    for group in range(len(case["rewards"])):
        together = [sequence for sequence, value in zip(made, values, strict=True) if sequence and value[0] == group]
        share_prompt(together)
    return [
        {"advantage": advantage, "weight": weight, "prompt_length": sequence.prompt_length if sequence else None}
        for sequence, (_, advantage, weight) in zip(made, values, strict=True)
    ]


def _shared(
    members: Sequence[tuple[int, float]], made: Sequence[TokenSequence | None]
) -> Iterator[tuple[int | None, float | None, float | None]]:
    """Group, advantage and weight of each result; a trajectory with several histories has several results."""
    each, rest = divmod(len(made), len(members)) if members else (0, len(made))
    if rest or not each:
        # which result belongs to which trajectory cannot be told
        yield from ((None, None, None) for _ in made)
        return
    for place, (group, advantage) in enumerate(members):
        own = made[place * each : (place + 1) * each]
        known = all(sequence is not None for sequence in own)
        tokens = sum(sum(sequence.mask) for sequence in own if sequence)
        yield from ((group, advantage, trajectory_weight(tokens) if known else None) for _ in own)


def _sequence(item: Case) -> TokenSequence | None:
    ids, mask = item.get("token_ids"), item.get("assistant_mask")
    if ids is None or mask is None:
        return None
    if len(ids) != len(mask):
        raise ValueError(f"{len(ids)} token_ids and a mask of {len(mask)}")
    return TokenSequence(ids, [bool(value) for value in mask], [], 0, 0)


def _check_shapes(inputs: Case, shape: torch.Size) -> None:
    for name in _INPUTS:
        rows = inputs.get(name)
        if rows is not None and (len(rows) != shape[0] or any(len(row) != shape[1] for row in rows)):
            raise ValueError(f"{name} differs in shape from new_logprobs, {list(shape)}")


def _tensor(rows: Sequence[Sequence[float | None]]) -> Tensor:
    """[batch, length] float64; None is NaN."""
    return torch.tensor([[math.nan if value is None else value for value in row] for row in rows], dtype=torch.float64)


def _number(value: Tensor | float | None) -> float | None:
    """A number that JSON has, else None."""
    if value is None:
        return None
    number = value.item() if isinstance(value, Tensor) else value
    return number if math.isfinite(number) else None
