"""Instants as texts."""

from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heddle.errors import InvalidRequest
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


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-00:01"])
def test_an_offset_leads_out_of_the_calendar_and_is_refused(text: str) -> None:
    """No text can be made of such an instant."""
    with pytest.raises(InvalidRequest, match="must be within the years 1 to 9999"):
        times.to_micros(datetime.fromisoformat(text))
    assert times.parse(text) is None


def test_the_ends_of_the_calendar_are_instants() -> None:
    assert times.to_micros(datetime.min) == times.FIRST and times.to_micros(datetime.max) == times.LAST
    assert times.to_micros(datetime.max.replace(tzinfo=UTC)) == times.LAST
