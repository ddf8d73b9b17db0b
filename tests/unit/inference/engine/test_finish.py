"""When a request ends."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.inference.engine.base import RepetitionRule
from heddle.inference.engine.local.sequence import Sequence, find_end, is_repeating
from tests.unit.inference.engine.helpers import request

EOS = (2,)


@given(
    st.lists(st.integers(0, 2), max_size=14),
    st.integers(0, 4),
    st.integers(1, 5),
    st.integers(2, 4),
    st.lists(st.integers(0, 2), max_size=6),
)
def test_a_repetition_is_a_tail_of_equal_patterns(
    output: list[int], least: int, most: int, count: int, prompt: list[int]
) -> None:
    rule = RepetitionRule(max_pattern_size=most, min_pattern_size=least, min_count=count)
    expected = any(
        len(output) >= size * count and output[-size * count :] == output[-size:] * count
        for size in range(max(least, 1), most + 1)
    )
    assert is_repeating([*prompt, *output], len(prompt), rule) is expected


RULE = RepetitionRule(max_pattern_size=2, min_pattern_size=1, min_count=3)


@pytest.mark.parametrize(
    ("output", "sampling", "expected"),
    [
        ([5], {}, None),
        ([2], {}, ("stop", None)),
        ([2], {"ignore_eos": True}, None),
        ([2], {"ignore_eos": True, "stop_token_ids": (2,)}, ("stop", 2)),
        ([2], {"stop_token_ids": (2,)}, ("stop", None)),
        ([9], {"stop_token_ids": (8, 9)}, ("stop", 9)),
        ([9], {"stop_token_ids": (9,), "min_tokens": 2}, None),
        ([5, 9], {"stop_token_ids": (9,), "min_tokens": 2}, ("stop", 9)),
        ([5, 6, 7], {"max_tokens": 3}, ("length", None)),
        ([5, 6, 2], {"max_tokens": 3}, ("stop", None)),
        ([5, 5, 5], {"repetition": RULE}, ("repetition", "repetition_detected")),
        ([5, 5, 5], {"repetition": RULE, "min_tokens": 4}, None),
        ([5, 5, 5], {"repetition": RULE, "max_tokens": 3}, ("length", None)),
        ([1, 5, 6, 5, 6, 5, 6], {"repetition": RULE}, ("repetition", "repetition_detected")),
        ([5, 6, 5, 6], {"repetition": RULE}, None),
    ],
)
def test_ends(output: list[int], sampling: dict[str, Any], expected: Any) -> None:
    sequence = Sequence.of(1, request([5, 5], **sampling), 1)
    sequence.tokens += output
    assert find_end(sequence, EOS) == expected
