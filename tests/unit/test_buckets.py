"""Time buckets: size, alignment in a zone, no gaps, and the figures over their values."""

from datetime import datetime
from math import inf
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import InvalidField, InvalidRequest
from heddle.wire import times
from heddle.wire.aggregates import check_measure, uniform_runs
from heddle.wire.buckets import (
    MAX_BUCKETS,
    MAX_FIGURES,
    AggregationType,
    automatic_granularity,
    check_figures,
    filled,
    floor,
    make_buckets,
    percentile_name,
    percentile_of,
    raised,
    summarise,
)

HOURS = 3600
ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo"]
ZONES += ["Pacific/Apia", "Asia/Kathmandu", "America/St_Johns", "Africa/Casablanca"]


def at(text: str) -> int:
    """Microseconds of ISO text."""
    micros = times.parse(text)
    assert micros is not None
    return micros


def starts(start: str, end: str, granularity: int | None, zone: str) -> list[str]:
    """The bucket starts as ISO text without fractions."""
    return [times.to_iso(instant)[:19] for instant in make_buckets(at(start), at(end), granularity, zone).starts]


@pytest.mark.parametrize(
    ("seconds", "size"),
    [
        (1, 300),
        (2 * HOURS, 300),
        (2 * HOURS + 1, 3600),
        (12 * HOURS, 3600),
        (12 * HOURS + 1, 21600),
        (72 * HOURS, 21600),
        (72 * HOURS + 1, 43200),
        (14 * 24 * HOURS, 43200),
        (14 * 24 * HOURS + 1, 86400),
        (31 * 24 * HOURS, 86400),
    ],
)
def test_the_size_follows_the_length_of_the_range(seconds: int, size: int) -> None:
    """The steps of the contract."""
    assert automatic_granularity(seconds) == size


def test_a_size_that_makes_too_many_buckets_is_raised() -> None:
    """max(g, int(range / 10000) + 1), and only where it is needed."""
    assert raised(1, 10_000) == 1
    assert raised(1, 10_001) == 2
    assert raised(1, 86_400) == 9
    assert raised(300, 31 * 86_400) == 300
    assert len(make_buckets(0, 86_400 * times.SECOND, 1, "UTC").starts) == 9600
    unaligned = make_buckets(500_000, 10_000 * times.SECOND + 500_000, 1, "UTC")
    assert len(unaligned.starts) <= MAX_BUCKETS


def test_buckets_begin_at_the_boundary_that_contains_the_start() -> None:
    """Also where the start lies inside an interval, and the last one reaches over the end."""
    assert starts("2024-01-01T10:20:30Z", "2024-01-01T13:00:00Z", 3600, "UTC") == [
        "2024-01-01T10:00:00",
        "2024-01-01T11:00:00",
        "2024-01-01T12:00:00",
    ]
    assert starts("2024-01-01T10:20:30Z", "2024-01-01T13:00:01Z", 3600, "UTC")[-1] == "2024-01-01T13:00:00"


def test_days_begin_at_midnight_of_the_zone() -> None:
    """Berlin is one hour ahead in winter."""
    assert starts("2024-01-01T10:00:00Z", "2024-01-03T10:00:00Z", 86400, "Europe/Berlin") == [
        "2023-12-31T23:00:00",
        "2024-01-01T23:00:00",
        "2024-01-02T23:00:00",
    ]
    assert starts("2024-01-01T10:10:00Z", "2024-01-01T11:00:00Z", 3600, "Asia/Kolkata") == [
        "2024-01-01T09:30:00",
        "2024-01-01T10:30:00",
    ]


def test_days_stay_at_midnight_when_the_clocks_change() -> None:
    """New York 2024: one day of 25 hours in November, one of 23 in March; Sao Paulo 2018 skipped a midnight."""
    assert starts("2024-11-02T12:00:00Z", "2024-11-05T12:00:00Z", 86400, "America/New_York") == [
        "2024-11-02T04:00:00",
        "2024-11-03T04:00:00",
        "2024-11-04T05:00:00",
        "2024-11-05T05:00:00",
    ]
    assert starts("2024-03-09T12:00:00Z", "2024-03-11T12:00:00Z", 86400, "America/New_York") == [
        "2024-03-09T05:00:00",
        "2024-03-10T05:00:00",
        "2024-03-11T04:00:00",
    ]
    assert starts("2018-11-03T12:00:00Z", "2018-11-05T12:00:00Z", 86400, "America/Sao_Paulo") == [
        "2018-11-03T03:00:00",
        "2018-11-04T03:00:00",
        "2018-11-05T02:00:00",
    ]


def test_the_hour_that_comes_twice_is_two_buckets() -> None:
    """01:00 is read twice in New York on 2024-11-03."""
    assert starts("2024-11-03T04:30:00Z", "2024-11-03T08:00:00Z", 3600, "America/New_York") == [
        "2024-11-03T04:00:00",
        "2024-11-03T05:00:00",
        "2024-11-03T06:00:00",
        "2024-11-03T07:00:00",
    ]


instants = st.integers(at("1971-01-01"), at("2040-01-01"))


@given(
    instants,
    st.integers(0, 31 * 86_400),
    st.sampled_from([None, 60, 300, 3600, 7000, 21600, 43200, 86400, 100_000]),
    st.sampled_from(ZONES),
)
def test_every_range_is_covered_without_gaps(start: int, seconds: int, granularity: int | None, zone: str) -> None:
    """Rising starts, the first not after the range's start, at most 10,000, and every instant in the right bucket."""
    end = start + seconds * times.SECOND
    buckets = make_buckets(start, end, granularity, zone)
    assert list(buckets.starts) == sorted(set(buckets.starts))
    assert buckets.starts[0] <= start
    assert len(buckets.starts) <= MAX_BUCKETS
    step = buckets.granularity * times.SECOND
    widths = {following - first for first, following in zip(buckets.starts, buckets.starts[1:], strict=False)}
    assert all(0 < width <= step + 25 * HOURS * times.SECOND for width in widths)
    for instant in (start, (start + end) // 2, max(start, end - 1)):
        index = buckets.index(instant)
        assert buckets.starts[index] <= instant
        assert index + 1 == len(buckets.starts) or instant < buckets.starts[index + 1]
        assert buckets.starts[index] == floor(instant, buckets.granularity, ZoneInfo(zone))


@given(instants, st.sampled_from([60, 300, 3600]), st.sampled_from(["UTC", "Europe/Berlin", "America/New_York"]))
def test_a_floor_is_the_latest_multiple_on_the_clocks_of_the_zone(instant: int, granularity: int, zone: str) -> None:
    """For sizes up to an hour, where every change of these clocks is a whole number of intervals."""
    found = floor(instant, granularity, ZoneInfo(zone))
    assert found <= instant < found + granularity * times.SECOND
    local = times.to_datetime(found).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
    assert (local - datetime(1970, 1, 1)).total_seconds() % granularity == 0


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "America", "x" * 1000, "a\0b"])
def test_unknown_zones_are_refused(zone: str) -> None:
    """400, whatever the text."""
    with pytest.raises(InvalidRequest, match="timezone"):
        make_buckets(0, 1, None, zone)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo", "Pacific/Apia"])
@pytest.mark.parametrize("granularity", [86400, 7 * 86400, 400 * 86400])
def test_the_whole_calendar_has_buckets(zone: str, granularity: int) -> None:
    """From its first instant on, also where the boundary before that lies outside."""
    for start, end in (("0001-01-01", "0001-03-01"), ("9999-11-01", "9999-12-31T23:59:59.999999Z")):
        found = make_buckets(at(start), at(end), granularity, zone)
        assert times.FIRST <= found.starts[0] <= at(start) and found.starts[-1] < at(end)
        assert [found.index(instant) for instant in found.starts] == list(range(len(found.starts)))
        runs = uniform_runs(found, at(start), at(end))
        assert (runs[0].lower, runs[-1].upper) == (at(start), at(end))
    assert len(make_buckets(times.FIRST, times.LAST, granularity, zone).starts) > 100


def test_negative_sizes_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="granularity"):
        make_buckets(0, 1, -1, "UTC")


def test_percentiles_interpolate() -> None:
    """Linearly between the two nearest values."""
    assert percentile_of([1, 2, 3, 4], 50) == 2.5
    assert percentile_of([1, 2, 3, 4], 0) == 1
    assert percentile_of([1, 2, 3, 4], 100) == 4
    assert percentile_of([10, 20], 99.5) == pytest.approx(19.95)
    assert percentile_of([7], 30) == 7
    assert percentile_of([], 30) is None


def test_percentiles_have_names_without_a_needless_fraction() -> None:
    """And lie within 0..100."""
    assert [percentile_name(value) for value in (50, 50.0, 99.5, 0)] == ["p50", "p50", "p99.5", "p0"]
    for value in (-1, 100.5):
        with pytest.raises(InvalidRequest, match="Percentile"):
            percentile_name(value)


def test_figures_of_values_and_of_nothing() -> None:
    """What needs a value is null without one; buckets show sums, counts and averages of nothing as 0."""
    everything = list(AggregationType)
    assert summarise([1, 0, 5], everything, [50]) == {
        "sum": 6,
        "avg": 2,
        "min": 0,
        "max": 5,
        "count": 3,
        "count_true": 1,
        "count_false": 1,
        "p50": 1,
    }
    nothing = summarise([], everything, [50])
    assert nothing == dict.fromkeys(["sum", "avg", "min", "max", "count", "p50"]) | {"count_true": 0, "count_false": 0}
    assert filled(nothing) == {
        "sum": 0,
        "avg": 0,
        "min": None,
        "max": None,
        "count": 0,
        "count_true": 0,
        "count_false": 0,
        "p50": None,
    }


def test_sums_beyond_the_largest_number_are_infinite() -> None:
    assert summarise([1e308, 1e308], [AggregationType.SUM, AggregationType.AVG], []) == {"sum": inf, "avg": inf}


def test_percentiles_between_numbers_however_far_apart() -> None:
    assert percentile_of([-1.7e308, 1.7e308], 50) == 0
    assert percentile_of([-1.7e308, 1.7e308], 75) == pytest.approx(8.5e307)
    assert percentile_of([-1.7e308, 1.7e308], 100) == 1.7e308


def test_an_answer_of_too_many_figures_is_refused() -> None:
    assert check_figures(MAX_FIGURES, 1) > 0
    with pytest.raises(InvalidRequest, match=f"{MAX_FIGURES + 1} rows of 1 values each"):
        check_figures(MAX_FIGURES + 1, 1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90d", 7_776_000), (" 12h ", 43_200), ("30m", 1800), ("1.5s", 1.5), ("0s", 0), ("36600d", 3_162_240_000)],
)
def test_a_period_is_a_number_and_its_unit(text: str, seconds: float) -> None:
    assert times.read_period(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "d", "-1d", "1w", "36601d", "1e3s", "1 d", "９d", "9" * 400 + "d"])
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected a value such as 90d, 12h or 30m, at most 36600d"):
        times.read_period(text)


def test_buckets_of_equal_width_are_one_run() -> None:
    """Days of a zone whose clocks change, from noon to noon: the first bucket begins before the range."""
    start, end = at("2026-03-28T12:00:00"), at("2026-03-31T12:00:00")
    buckets = make_buckets(start, end, 86_400, "Europe/Berlin")
    runs = uniform_runs(buckets, start, end)
    day, hour = 86_400 * times.SECOND, HOURS * times.SECOND
    assert [(run.first, run.width) for run in runs] == [(0, day), (1, day - hour), (2, day)]
    assert [run.lower for run in runs] == [start, *buckets.starts[1:3]]
    assert [run.upper for run in runs] == [*buckets.starts[1:3], end]
    (whole,) = uniform_runs(make_buckets(start, start + 5, 300, "UTC"), start, start + 5)
    assert (whole.lower, whole.upper) == (start, start + 5)


@pytest.mark.parametrize(
    ("field", "aggregation", "found"),
    [
        ("calls", None, "sum"),
        ("latency_ms", None, "avg"),
        ("latency_ms", "p99.5", "p99.5"),
        ("latency_ms", "p100", "p100"),
        ("inputs.n", None, "avg"),
        ("inputs.n", "count_true", "count_true"),
        ("total_tokens", None, "sum"),
    ],
)
def test_a_figure_has_its_usual_aggregation(field: str, aggregation: str | None, found: str) -> None:
    assert check_measure(field, aggregation) == found


@pytest.mark.parametrize(
    ("field", "aggregation", "why"),
    [
        ("calls", "p50", "calls does not support the aggregation 'p50'; expected one of sum$"),
        ("latency_ms", "p101", "p0 to p100"),
        ("inputs.n", "median", "inputs.n does not support the aggregation 'median'; expected one of avg, sum, min"),
    ],
)
def test_an_aggregation_that_a_field_lacks_is_refused(field: str, aggregation: str | None, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        check_measure(field, aggregation)
    with pytest.raises(InvalidField, match="Field nothing is not allowed"):
        check_measure("nothing", aggregation)
