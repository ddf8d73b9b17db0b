"""Series of metrics and their points, a minute each; what was counted before is known of each stream."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from heddle.errors import InvalidRequest
from heddle.store.control.redaction import RedactedRepository
from heddle.store.control.repository import Key, Mapped, Prepared, Upsert, metadata, writes
from heddle.store.control.row_queries import Listed, Sum
from heddle.wire import times
from heddle.wire.batched import batched, group_pairs
from heddle.wire.calls import UniformRun
from heddle.wire.means import bounded
from heddle.wire.metric_series import RESOLUTION, Figures, MetricKind, Sample, Series, dump_bins, load_bins
from heddle.wire.redaction import Redactor


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """A series as it is stored: when its first and its newest point were (microseconds)."""

    project: Key[str]
    series: Key[str]
    name: str
    kind: str
    unit: str
    description: str
    attributes: dict[str, Any]
    first_at: int
    last_at: int


_rows = Mapped(SeriesRow, "metric_series", sa.Index("metric_series_by_name", "project", "name"))
metric_series = _rows.table
metric_points = sa.Table(
    "metric_points",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("series", sa.Text, primary_key=True),
    sa.Column("at", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("total", sa.Float, nullable=False),
    sa.Column("low", sa.Float),
    sa.Column("high", sa.Float),
    sa.Column("bins", sa.Text),
    sa.Index("metric_points_by_time", "project", "at"),
    sqlite_with_rowid=False,
)
metric_streams = sa.Table(
    "metric_streams",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("seen_at", sa.BigInteger, nullable=False),
    sa.Index("metric_streams_by_time", "seen_at"),
    sqlite_with_rowid=False,
)
"""How far a stream of points has been counted: the newest state of a cumulative one, the newest points of others."""
METRIC_TABLES = (metric_series, metric_points, metric_streams)

MAX_ROWS = 500_000
"""How many points one answer may put together."""
_SAMPLES = 2000
_SAMPLE_BYTES = 400
_REMEMBERED = 16
_STREAM_LIFE = 7 * times.DAY
_SERIES = tuple(column.name for column in metric_series.c)
_POINT = tuple(column.name for column in metric_points.c)
_s, _p, _t = metric_series.c, metric_points.c, metric_streams.c
_write_series = Upsert(metric_series, _SERIES, ("project", "series"))
_write_points = Upsert(metric_points, _POINT, ("project", "series", "at"))
_write_streams = Upsert(metric_streams, ("project", "stream", "state", "seen_at"), ("project", "stream"))
_read_series = Prepared(
    sa.select(_s.series, _s.first_at, _s.last_at).where(
        _s.project == sa.bindparam("of_project"), Listed(_s.series, "listed")
    )
)
_read_streams = Prepared(
    sa.select(_t.stream, _t.state).where(_t.project == sa.bindparam("of_project"), Listed(_t.stream, "listed"))
)
_read_points = Prepared(
    sa.select(_p.series, _p.at, _p.count, _p.total, _p.low, _p.high, _p.bins).where(
        _p.project == sa.bindparam("of_project"),
        Listed(_p.series, "listed"),
        _p.at >= sa.bindparam("since"),
        _p.at <= sa.bindparam("until"),
    )
)
_Place = tuple[str, int]
"""A series and a minute (microseconds)."""


class SeriesPoint(NamedTuple):
    """The figures of a series in one time bucket."""

    series: str
    bucket: int
    figures: Figures


class MetricSeries(RedactedRepository):
    """What can be done with series of metrics; projects are internal ids."""

    async def write(self, samples: Sequence[Sample], most_series: int) -> list[Sample]:
        """Count samples; returns those of new series beyond `most_series` of their project, which are not counted.

        A sample that was counted before is counted no second time. Returns after the commit.
        """
        samples = await self._redaction.each(samples, lambda sample: sample.series.project, _redacted)
        left: list[Sample] = []
        for part in batched(samples, _SAMPLES):
            by_project = group_pairs((sample.series.project, sample) for sample in part)

            def work(connection: sa.Connection, by_project: Mapping[str, list[Sample]] = by_project) -> list[Sample]:
                return [
                    one
                    for project, some in by_project.items()
                    for one in _write(connection, project, some, most_series)
                ]

            left += await self._executor.write(work, _SAMPLE_BYTES * len(part))
        return left

    async def all(self, project: str, name: str | None = None) -> list[SeriesRow]:
        """The series of a project, those of one name with it, by name and attributes."""
        query = _rows.select(_s.project == project).order_by(_s.name, _s.attributes, _s.series)
        return await self._all(_rows, query if name is None else query.where(_s.name == name))

    async def points(
        self, project: str, series: Sequence[str], runs: Sequence[UniformRun], *, with_bins: bool = False
    ) -> list[SeriesPoint]:
        """The figures of some series in the buckets of runs; a minute belongs to the bucket that it begins in.

        Raises InvalidRequest for more than `MAX_ROWS` of them.
        """

        def work(connection: sa.Connection) -> list[SeriesPoint]:
            found: list[SeriesPoint] = []
            for run in runs:
                query = _over_run(project, series, run, with_bins).limit(MAX_ROWS + 1 - len(found))
                found += [
                    SeriesPoint(
                        row[0],
                        run.first + row[1],
                        Figures(row[2], bounded(row[3] or 0.0), row[4], row[5], _bins(row[6] if with_bins else None)),
                    )
                    for row in connection.execute(query)
                ]
                if len(found) > MAX_ROWS:
                    raise InvalidRequest(
                        f"The range has more than {MAX_ROWS} points; use a shorter range or fewer series"
                    )
            return found

        return await self._executor.read(work) if series else []

    @writes
    def purge_older(self, connection: sa.Connection, project: str, before: int) -> int:
        """Remove the points before an instant, and the series that have none left; returns how many points."""
        gone = connection.execute(sa.delete(metric_points).where(_p.project == project, _p.at < before)).rowcount
        connection.execute(sa.delete(metric_series).where(_s.project == project, _s.last_at < before))
        return gone


def _redacted(sample: Sample, redactor: Redactor) -> Sample:
    series = sample.series
    redacted = dataclasses.replace(
        series,
        name=redactor.text(series.name),
        unit=redactor.text(series.unit),
        attributes=redactor.json(series.attributes, "attributes"),
        description=redactor.text(series.description),
    )
    return dataclasses.replace(sample, series=redacted)


def _over_run(project: str, series: Sequence[str], run: UniformRun, with_bins: bool) -> sa.Select[Any]:
    bucket = (_p.at - run.start) // run.width
    mine = (_p.project == project, Listed(_p.series, series), _p.at >= run.lower, _p.at < run.upper)
    if with_bins:
        return sa.select(_p.series, bucket, _p.count, _p.total, _p.low, _p.high, _p.bins).where(*mine)
    sums = (sa.cast(sa.func.sum(_p.count), sa.BigInteger), Sum(_p.total))
    return (
        sa.select(_p.series, bucket.label("bucket"), *sums, sa.func.min(_p.low), sa.func.max(_p.high))
        .where(*mine)
        .group_by(_p.series, sa.text("bucket"))
    )


def _bins(text: str | None) -> Any:
    return load_bins(orjson.loads(text)) if text else ()


def _write(connection: sa.Connection, project: str, samples: Sequence[Sample], most_series: int) -> list[Sample]:
    """Count the samples of one project in the caller's transaction; returns those that found no room."""
    wanted = {sample.series.id: sample.series for sample in samples}
    known = {row[0]: (row[1], row[2]) for row in _read_series(connection, of_project=project, listed=list(wanted))}
    fresh = [series for series in wanted if series not in known]
    if fresh:
        count = sa.select(sa.func.count()).select_from(metric_series).where(_s.project == project)
        room = max(0, most_series - connection.execute(count).scalar_one())
        for series in fresh[room:]:
            del wanted[series]
        connection.execute(sa.delete(metric_streams).where(_t.seen_at < times.now() - _STREAM_LIFE))
    kept = [sample for sample in samples if sample.series.id in wanted]
    counted = _count(connection, project, kept)
    _add_points(connection, project, counted)
    instants = {key: list(known.get(key, ())) for key in wanted}
    for sample in kept:
        instants[sample.series.id].append(sample.at // 1000)
    _write_series(connection, [_series_row(series, instants[key]) for key, series in wanted.items()])
    return [sample for sample in samples if sample.series.id not in wanted]


def _count(connection: sa.Connection, project: str, samples: Sequence[Sample]) -> dict[_Place, Figures]:
    """What the samples add to each minute; their streams are counted as far as they go from now on."""
    keys = [f"{sample.series.id}{sample.stream}" for sample in samples]
    states = {row[0]: orjson.loads(row[1]) for row in _read_streams(connection, of_project=project, listed=keys)}
    added: dict[_Place, Figures] = {}
    for key, sample in sorted(zip(keys, samples, strict=True), key=lambda pair: pair[1].at):
        figures = _uncounted(sample, key, states)
        if figures is not None and not (figures.is_nothing and sample.series.kind is not MetricKind.GAUGE):
            place = sample.series.id, sample.at // 1000 // RESOLUTION * RESOLUTION
            added[place] = added[place].with_more(figures) if place in added else figures
    now = times.now()
    _write_streams(connection, [(project, key, orjson.dumps(states[key]).decode(), now) for key in dict.fromkeys(keys)])
    return added


def _uncounted(sample: Sample, key: str, states: dict[str, list[Any]]) -> Figures | None:
    """What a sample adds to what its stream has told before; None for one that was counted."""
    state = states.get(key)
    if not sample.is_cumulative:
        told = [sample.start, sample.at]
        if state is not None and told in state:
            return None
        states[key] = [*(state or []), told][-_REMEMBERED:]
        return sample.figures
    if state is not None and sample.at <= state[0]:
        return None
    states[key] = [sample.at, sample.figures.dump()]
    if state is None:
        # Without a start it cannot be told how much of this came long ago.
        return sample.figures if sample.start else Figures()
    before = Figures.load(state[1])
    is_reset = sample.figures.count < before.count or (
        sample.series.kind is MetricKind.SUM and sample.figures.total < before.total
    )
    return sample.figures if is_reset else sample.figures.since(before)


def _add_points(connection: sa.Connection, project: str, added: Mapping[_Place, Figures]) -> None:
    if not added:
        return
    listed = list(dict.fromkeys(series for series, _ in added))
    minutes = [at for _, at in added]
    stored = _read_points(connection, of_project=project, listed=listed, since=min(minutes), until=max(minutes))
    found = {(row[0], row[1]): Figures(row[2], row[3], row[4], row[5], _bins(row[6])) for row in stored}
    rows = []
    for place, figures in added.items():
        whole = found[place].with_more(figures) if place in found else figures
        rows.append((project, *place, whole.count, whole.total, whole.low, whole.high, dump_bins(whole.bins)))
    _write_points(connection, rows)


def _series_row(series: Series, instants: Sequence[int]) -> tuple[Any, ...]:
    named = (series.name, series.kind.value, series.unit, series.description, series.attributes)
    return (series.project, series.id, *named, min(instants), max(instants))
