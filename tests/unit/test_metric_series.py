"""Series of metrics: what cumulative points add, distributions, room for series, and reading in buckets."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from heddle.errors import InvalidRequest
from heddle.settings import Settings
from heddle.store.control import metric_series
from heddle.store.control.metric_series import MetricSeries
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.store import SqliteControl, open_file
from heddle.wire.calls import UniformRun
from heddle.wire.metric_series import (
    MAX_COUNT,
    RESOLUTION,
    Bin,
    Figures,
    MetricKind,
    Sample,
    Series,
    add_bins,
    load_bins,
    percentile_of_bins,
    subtract_bins,
)

T = TypeVar("T")
MINUTE = 60 * 10**9
START = 1_800_000_000 * 10**9
HOUR_RUN = UniformRun(0, START // 1000, RESOLUTION, START // 1000, START // 1000 + 60 * RESOLUTION)


def series(kind: MetricKind = MetricKind.SUM, attributes: str = "{}", name: str = "tokens") -> Series:
    return Series("p", name, kind, "1", attributes)


def cumulative(minute: float, total: float, stream: str = "a", start: int = START) -> Sample:
    return Sample(series(), stream, start, START + int(minute * MINUTE), True, Figures(0, total))


def delta(minute: float, total: float, begin: int) -> Sample:
    return Sample(series(), "a", begin, START + int(minute * MINUTE), False, Figures(0, total))


def on_store(folder: Path, story: Callable[[MetricSeries], Awaitable[T]]) -> T:
    async def tell() -> T:
        settings = Settings(data=str(folder))
        path = folder / DATABASE
        control = SqliteControl(settings, path, open_file(settings, path))
        try:
            return await story(MetricSeries(control.executor))
        finally:
            await control.close()

    return asyncio.run(tell())


def totals(folder: Path, *batches: list[Sample]) -> dict[int, float]:
    """What the batches come to, by minute."""

    async def story(store: MetricSeries) -> dict[int, float]:
        for batch in batches:
            assert await store.write(batch, 100) == []
        return {point.bucket: point.figures.total for point in await store.points("p", [series().id], [HOUR_RUN])}

    return on_store(folder, story)


def test_a_cumulative_sum_adds_what_came_since(tmp_path: Path) -> None:
    assert totals(tmp_path, [cumulative(0, 5)], [cumulative(1, 5)], [cumulative(2, 12)]) == {0: 5, 2: 7}


def test_the_same_export_again_counts_nothing(tmp_path: Path) -> None:
    batch = [cumulative(0, 5), cumulative(1, 8)]
    assert totals(tmp_path, batch, batch, [cumulative(0.5, 6)]) == {0: 5, 1: 3}


def test_two_processes_with_the_same_attributes_are_added_up(tmp_path: Path) -> None:
    found = totals(
        tmp_path,
        [cumulative(0, 100, "a"), cumulative(0, 3, "b", START + 1)],
        [cumulative(1, 110, "a"), cumulative(1, 4, "b", START + 1)],
    )
    assert found == {0: 103, 1: 11}


def test_a_counter_that_falls_began_anew(tmp_path: Path) -> None:
    assert totals(tmp_path, [cumulative(0, 50)], [cumulative(1, 7)], [cumulative(2, 9)]) == {0: 50, 1: 7, 2: 2}


def test_a_cumulative_sum_of_unknown_start_counts_from_its_first_point(tmp_path: Path) -> None:
    found = totals(tmp_path, [cumulative(0, 500, start=0)], [cumulative(1, 507, start=0)])
    assert found == {1: 7}


def test_delta_points_are_added_once(tmp_path: Path) -> None:
    first, second = delta(0, 5, START - 9), delta(0.5, 6, START)
    assert totals(tmp_path, [first, second], [first], [second, delta(1, 2, START + 5)]) == {0: 11, 1: 2}


def test_distributions_are_put_together() -> None:
    first, second = (Bin(None, 1.0, 2), Bin(1.0, 2.0, 3)), (Bin(1.0, 2.0, 4), Bin(2.0, None, 1))
    assert add_bins(first, second) == (Bin(None, 1.0, 2), Bin(1.0, 2.0, 7), Bin(2.0, None, 1))
    assert add_bins((), second) == second
    assert subtract_bins(second, (Bin(1.0, 2.0, 1),)) == (Bin(1.0, 2.0, 3), Bin(2.0, None, 1))


def test_bins_that_became_wider_lose_what_was_in_the_narrow_ones() -> None:
    narrow = (Bin(1.0, 2.0, 3), Bin(2.0, 4.0, 2))
    assert subtract_bins((Bin(1.0, 4.0, 9),), narrow) == (Bin(1.0, 4.0, 4),)


@pytest.mark.parametrize(
    ("percentile", "expected"),
    [(0, 0.5), (50, 2.0), (75, 3.0), (100, 10.0)],
)
def test_percentiles_lie_within_their_bin(percentile: float, expected: float) -> None:
    figures = Figures(8, 0, 0.5, 10.0, (Bin(None, 1.0, 2), Bin(1.0, 2.0, 2), Bin(2.0, 4.0, 4)))
    if percentile == 100:
        figures = Figures(9, 0, 0.5, 10.0, (*figures.bins, Bin(4.0, None, 1)))
    assert percentile_of_bins(figures, percentile) == pytest.approx(expected)
    assert percentile_of_bins(Figures(), percentile) is None


@pytest.mark.parametrize(
    ("figures", "ends"),
    [
        (Figures(2, 0, None, None, (Bin(None, -1.0, 1), Bin(-1.0, 1.0, 1))), (-1.0, 1.0)),
        (Figures(2, 0, None, None, (Bin(None, 3.0, 2),)), (0.0, 3.0)),
        (Figures(2, 0, None, None, (Bin(3.0, None, 2),)), (3.0, 3.0)),
        (Figures(2, 0, None, None, (Bin(None, None, 2),)), (0.0, 0.0)),
        (Figures(2, 0, 2.5, None, (Bin(1.0, 3.0, 2),)), (2.5, 3.0)),
        (Figures(2, 0, None, 2.5, (Bin(1.0, 3.0, 2),)), (1.0, 2.5)),
        (Figures(2**63 - 1, 0, None, None, (Bin(1.0, 3.0, 2**63 - 1),)), (1.0, 3.0)),
    ],
)
def test_the_ends_of_a_distribution_are_those_that_are_known(figures: Figures, ends: tuple[float, float]) -> None:
    assert (percentile_of_bins(figures, 0), percentile_of_bins(figures, 100)) == ends


def test_the_middle_of_a_bin_lies_in_it() -> None:
    bins = [(1.0, 4.0), (-4.0, -1.0), (-1.0, 3.0), (None, 3.0), (3.0, None), (None, None)]
    assert [Bin(low, high, 1).middle for low, high in bins] == [2.0, -2.0, 1.0, 3.0, 3.0, 0.0]
    wide = (Bin(-8.0, -0.5, 5), Bin(-0.5, 8.0, 5))
    assert subtract_bins(wide, (Bin(-4.0, -1.0, 2), Bin(1.0, 4.0, 9), Bin(0.0, 0.0, 0))) == (Bin(-8.0, -0.5, 3),)
    assert subtract_bins((), (Bin(1.0, 2.0, 3),)) == ()


@pytest.mark.parametrize("found", [None, 5, [5], [[1, 2]], [[1, 2, 3.5]], [["1", 2, 3]], [[1, 2, True]]])
def test_what_is_no_bin_is_left_out(found: object) -> None:
    assert load_bins(found) == ()
    assert load_bins([[None, 2, 3], *(found if isinstance(found, list) else [])]) == (Bin(None, 2, 3),)


def test_series_beyond_the_limit_are_handed_back(tmp_path: Path) -> None:
    many = [Sample(series(attributes=f'{{"n":{n}}}'), "a", START, START, True, Figures(0, 1.0)) for n in range(5)]

    async def story(store: MetricSeries) -> tuple[int, int, int]:
        left = await store.write(many, 3)
        again = await store.write(many[:3], 3)
        return len(left), len(again), len(await store.all("p"))

    assert on_store(tmp_path, story) == (2, 0, 3)


def test_histograms_gauges_and_the_names_of_a_project(tmp_path: Path) -> None:
    long, level = series(MetricKind.HISTOGRAM, name="seconds"), series(MetricKind.GAUGE, name="level")
    first = Figures(2, 3.0, 1.0, 2.0, (Bin(0.0, 5.0, 2),))
    second = Figures(5, 9.0, 1.0, 4.0, (Bin(0.0, 5.0, 4), Bin(5.0, None, 1)))
    batch = [
        Sample(long, "a", START, START, True, first),
        Sample(long, "a", START, START + MINUTE, True, second),
        Sample(level, "a", 0, START, False, Figures(1, 7.0, 7.0, 7.0)),
        Sample(level, "a", 0, START + 1, False, Figures(1, 9.0, 9.0, 9.0)),
    ]

    async def story(store: MetricSeries) -> None:
        await store.write(batch, 10)
        points = await store.points("p", [long.id], [HOUR_RUN], with_bins=True)
        assert [point.figures for point in points] == [
            first,
            Figures(3, 6.0, None, None, (Bin(0.0, 5.0, 2), Bin(5.0, None, 1))),
        ]
        (point,) = await store.points("p", [level.id], [HOUR_RUN])
        assert point.figures == Figures(2, 16.0, 7.0, 9.0)
        assert [(row.name, row.kind) for row in await store.all("p")] == [("level", "gauge"), ("seconds", "histogram")]
        assert [row.name for row in await store.all("p", "level")] == ["level"]
        assert await store.purge_older("p", START // 1000 + RESOLUTION) == 2
        assert [row.name for row in await store.all("p")] == ["seconds"]

    on_store(tmp_path, story)


def test_an_answer_of_too_many_points_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_series, "MAX_ROWS", 2)

    async def story(store: MetricSeries) -> None:
        await store.write([cumulative(minute, minute + 1) for minute in range(3)], 10)
        with pytest.raises(InvalidRequest, match="more than 2 points"):
            await store.points("p", [series().id], [HOUR_RUN])

    on_store(tmp_path, story)


def test_the_greatest_numbers_are_added_up(tmp_path: Path) -> None:
    """Sums stay finite, counts within 64 bits, whatever is reported."""
    most = Figures(MAX_COUNT, 1.7e308, -1.7e308, 1.7e308, (Bin(0.0, None, MAX_COUNT),))
    long = series(MetricKind.HISTOGRAM)
    batch = [Sample(long, str(n), START, START + n * 10**9, False, most) for n in range(50)]

    async def story(store: MetricSeries) -> None:
        await store.write(batch, 10)
        (point,) = await store.points("p", [long.id], [HOUR_RUN])
        assert (point.figures.count, point.figures.total) == (MAX_COUNT, sys.float_info.max)
        (point,) = await store.points("p", [long.id], [HOUR_RUN], with_bins=True)
        assert percentile_of_bins(point.figures, 50) == pytest.approx(0.85e308)

    on_store(tmp_path, story)
