"""Rows: recorded numbers, and cases made by hand."""

import math
from collections.abc import Sequence
from typing import Any

import numpy
import pytest

from heddle.training.config import RlConfig
from heddle.training.sequences import TokenSequence, share_prompt
from heddle.training.trainer.packing import Row, pack, row_capacity
from tests.support.vectors import VECTORS, needs_vectors


def sequence(ids: Sequence[int], trained: int, group: int = 0, **extra: Any) -> TokenSequence:
    """The last `trained` tokens were sampled."""
    untrained = len(ids) - trained
    values = {"advantage": 1.0, "weight": 1 / (trained + 1e-6), **extra}
    mask = [False] * untrained + [True] * trained
    return TokenSequence(list(ids), mask, [math.nan] * untrained + [-0.5] * trained, group, 0, **values)


def visible(row: Row) -> list[list[int]]:
    """For each query the places it sees."""
    places = range(len(row.tokens))
    seen = (row.segments, row.parents)
    return [
        [key for key in places[: query + 1] if seen[0][key] in (seen[0][query], seen[1][query])] for query in places
    ]


def packed(members: Sequence[TokenSequence], seed: str = "job", step: int = 0, **settings: Any) -> list[Row]:
    return pack(members, RlConfig(**settings), 2048, seed, step)


def recorded(name: str) -> list[TokenSequence]:
    """The sequences of a recorded case of advantages, as `sequences` would make them."""
    (case,) = (case for case in VECTORS["advantages"] if case["name"] == name)
    owners = [place for place, rewards in enumerate(case["rewards"]) for _ in rewards if len(set(rewards)) > 1]
    made = []
    for group, result in zip(owners, case["results"], strict=True):
        logprobs = [math.nan if value is None else value for value in result["logprobs"]]
        mask = [bool(value) for value in result["assistant_mask"]]
        made.append(TokenSequence(result["token_ids"], mask, logprobs, group, 0))
        made[-1].advantage, made[-1].weight = result["advantage"], result["weight"]
    for group in set(owners):
        share_prompt([member for member in made if member.group == group])
    assert [member.prompt_length for member in made] == [result["prompt_length"] for result in case["results"]]
    return made


def members_of(case: dict[str, Any]) -> list[TokenSequence]:
    """What a recorded row was packed from: its case of advantages, or the first groups of one."""
    if case["name"].startswith("one_group"):
        members = [member for member in recorded("two_groups_scaled") if member.group == 0]
        for member, reward in zip(members, [1.0, 0.0, 0.0], strict=True):
            member.advantage = member.advantage if case["name"].endswith("_scaled") else reward - 1 / 3
        return members
    return recorded("two_groups_scaled" if case["name"].startswith("balance") else case["name"])


@needs_vectors
@pytest.mark.parametrize("case", VECTORS["packing"], ids=lambda case: case["name"])
def test_recorded_rows(case: dict[str, Any]) -> None:
    settings = RlConfig(advantage_balance=case["advantage_balance"], packed_sequence_length=case["seq_len"])
    (row,) = pack(members_of(case), settings, 2048, "job", 0)
    length = len(row.tokens)
    shown = {
        "tokens": row.tokens,
        "assistant_mask": row.mask,
        "advantages": row.advantages,
        "weights": row.weights,
        "input_pos": row.positions,
        "logprobs": row.logprobs,
    }
    for name, values in shown.items():
        wanted = [math.nan if value is None else value for value in case[name][0]]
        numpy.testing.assert_allclose(values, wanted[:length], rtol=0, atol=1e-6, err_msg=name)
    assert not any(case["assistant_mask"][0][length:]), "what the recorded row has more is padding"
    follows = [int(left == right) for left, right in zip(row.segments, row.segments[1:], strict=False)]
    assert follows == case["same_group"][0][: length - 1]


def test_one_group_by_hand() -> None:
    members = [sequence([1, 2, 3, 9], 1), sequence([1, 2, 3, 8, 7], 2), sequence([1, 2, 3, 6], 1)]
    share_prompt(members)
    (row,) = packed(members)
    assert row.tokens.tolist() == [1, 2, 3, 9, 3, 8, 7, 3, 6]
    assert row.positions.tolist() == [0, 1, 2, 3, 2, 3, 4, 2, 3]
    assert row.segments.tolist() == [0, 0, 1, 1, 2, 2, 2, 3, 3]
    assert row.parents.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0]
    assert row.mask.tolist() == [False, False, False, True, False, True, True, False, True]
    untrained = ~row.mask
    assert not row.advantages[untrained].any() and not row.weights[untrained].any()
    assert row.advantages[row.mask].all() and row.weights[row.mask].all()
    assert visible(row)[6] == [0, 1, 4, 5, 6] and visible(row)[8] == [0, 1, 7, 8]
    assert row.sequences == 3
    assert [str(value.dtype) for value in (row.tokens, row.mask, row.logprobs)] == ["int64", "bool", "float64"]


def test_every_sequence_sees_itself_and_nothing_else() -> None:
    """Read through its mask, a row gives each sequence back, whatever was shared."""
    groups = [
        [sequence([1, 2, 3, 9], 1, 0), sequence([1, 2, 4, 8, 7], 1, 0)],
        [sequence([5, 6], 1, 1)],
        [sequence([5, 6, 6], 2, 2), sequence([7, 6], 1, 2)],
    ]
    for members in groups:
        share_prompt(members)
    members = [member for group in groups for member in group]
    (row,) = packed(members)
    ends = [
        place
        for place in range(len(row.tokens))
        if place + 1 == len(row.tokens) or row.segments[place] != row.segments[place + 1]
    ]
    read = [[int(row.tokens[key]) for key in visible(row)[end]] for end in ends if row.mask[end]]
    assert read == [member.ids for member in members]
    positions = [[int(row.positions[key]) for key in visible(row)[end]] for end in ends if row.mask[end]]
    assert positions == [list(range(len(member.ids))) for member in members]


def test_rows_are_filled_in_order_and_a_prompt_is_paid_once() -> None:
    members = [sequence([1, 2, 3, 4, 5, 10 + n], 1) for n in range(5)]
    share_prompt(members)
    rows = sorted(packed(members, packed_sequence_length=10), key=lambda row: int(row.tokens[5]))
    assert [len(row.tokens) for row in rows] == [10, 8], "6 and 2 and 2; then 6 and 2: the prompt once more"
    assert [row.sequences for row in rows] == [3, 2]
    assert [row.tokens.tolist() for row in rows] == [
        [1, 2, 3, 4, 5, 10, 5, 11, 5, 12],
        [1, 2, 3, 4, 5, 13, 5, 14],
    ]


def test_the_order_of_rows_comes_from_the_seed() -> None:
    members = [sequence([n, n, n], 1, group=n) for n in range(30)]
    orders = {seed: [int(row.tokens[0]) for row in packed(members, seed, packed_sequence_length=3)] for seed in "ab"}
    assert orders["a"] == [int(row.tokens[0]) for row in packed(members, "a", packed_sequence_length=3)]
    assert sorted(orders["a"]) == sorted(orders["b"]) == list(range(30))
    assert orders["a"] != orders["b"] and orders["a"] != sorted(orders["a"])


def test_normalisation_is_over_all_rows() -> None:
    members = [sequence([1, 2, 3], 2, group=n, advantage=float(n + 1)) for n in range(4)]
    rows = packed(members, packed_sequence_length=3)
    weights = numpy.concatenate([row.weights[row.mask] for row in rows])
    advantages = numpy.concatenate([row.advantages[row.mask] for row in rows])
    assert weights.mean() == pytest.approx(1) and (abs(advantages) * weights).mean() == pytest.approx(1)
    assert sorted(set(advantages.round(6))) == [0.4, 0.8, 1.2, 1.6]


def test_lags_are_counted_from_the_step_that_is_trained() -> None:
    members = [sequence([1, 2], 1, group=n, version=version) for n, version in enumerate([3, None, 5])]
    (row,) = packed(members, step=5)
    assert row.lags == [2.0, 0.0]


@pytest.mark.parametrize(("longest", "capacity"), [(1, 2048), (2048, 2048), (2049, 4096), (4097, 5000), (5000, 5000)])
def test_capacity(longest: int, capacity: int) -> None:
    assert row_capacity(longest, RlConfig(), 5000) == capacity
    assert row_capacity(longest, RlConfig(packed_sequence_length=77), 5000) == 77


def test_nothing_gives_no_rows() -> None:
    assert packed([]) == []
