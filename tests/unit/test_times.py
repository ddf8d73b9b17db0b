"""Instants as texts."""

from hypothesis import example, given
from hypothesis import strategies as st

from heddle.wire import times

MINUTE = 60 * times.SECOND


@given(st.integers(times.FIRST, times.LAST))
@example(times.FIRST)
@example(times.LAST)
@example(-1)
@example(0)
@example(MINUTE - 1)
@example(MINUTE)
def test_iso_text_is_that_of_a_datetime_and_is_read_back(micros: int) -> None:
    text = times.to_iso(micros)
    assert text == times.to_datetime(micros).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"
    assert times.parse(text) == micros
