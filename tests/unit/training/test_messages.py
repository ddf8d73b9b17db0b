"""The lines between the server and a training process."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.training.messages import (
    Answer,
    Beat,
    Crashed,
    Failed,
    Finished,
    Saved,
    Started,
    Stepped,
    Stopped,
    decode,
    drop_non_finite,
    encode,
)

figures = st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False))
whole = st.integers(0, 10**9)
answers = st.one_of(
    st.builds(Started, whole, figures),
    st.builds(Stepped, whole, figures),
    st.builds(Saved, whole),
    st.builds(Finished, st.text(), whole, figures),
    st.builds(Failed, st.text()),
    st.builds(Crashed, st.text()),
    st.builds(Stopped),
    st.builds(Beat),
)


@given(answers)
def test_an_answer_is_one_line(answer: Answer) -> None:
    line = encode(answer)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert decode(line) == answer


def test_figures_that_are_no_numbers_are_left_out() -> None:
    line = encode(drop_non_finite(Stepped(3, {"a": float("nan"), "b": float("inf"), "c": 1.5})))
    assert json.loads(line) == {"type": "stepped", "index": 3, "data": {"c": 1.5}}


@pytest.mark.parametrize("line", [b"{}", b"[]", b'{"type": "stepped", "index": 1}', b'{"type": "other"}', b"no json"])
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        decode(line)
