"""A project over time: counts and latencies in equal buckets; bodies are never read."""

from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.schema import CALLS
from heddle.wire.calls import ERROR
from heddle.wire.overview import CallCounts, ProjectOverview, TimeSpan

_SAMPLE = 20_000
_FIRST = f"""SELECT started_at FROM {CALLS} FINAL WHERE project = {{project:String}} AND deleted_at = 0
    ORDER BY started_at LIMIT 1"""
_INSIDE = (
    "c.project = {project:String} AND c.started_at >= {start:Int64} AND c.started_at < {end:Int64} AND c.deleted_at = 0"
)
_ENDED_ROOTS = "c.parent_id IS NULL AND c.ended_at IS NOT NULL"
_COUNTS = f"""SELECT grouping(bucket) AS one, intDiv(c.started_at - {{start:Int64}}, {{width:Int64}}) AS bucket,
    count(), countIf(c.status = {ERROR}), countIf({_ENDED_ROOTS} AND cityHash64(c.id) % every = 0) AS known,
    quantilesExactInclusiveIf(0.5, 0.95)(
        (assumeNotNull(c.ended_at) - c.started_at) / 1e6, {_ENDED_ROOTS} AND cityHash64(c.id) % every = 0) AS seconds
    FROM {CALLS} AS c FINAL WHERE {_INSIDE} GROUP BY GROUPING SETS ((bucket), ()) ORDER BY one, bucket"""
_EVERY = f"""WITH (SELECT greatest(1, intDiv(countIf(c.parent_id IS NULL), {_SAMPLE})) FROM {CALLS} AS c FINAL
    WHERE {_INSIDE}) AS every """


class Overviews:
    """Counts of one project; latencies beyond 20,000 root calls are those of a sample."""

    def __init__(self, clickhouse: Clickhouse) -> None:
        self._clickhouse = clickhouse

    async def first_started_at(self, project: str) -> int | None:
        """When the first call of a project (internal id) started; None without any."""
        found = await self._clickhouse.rows(_FIRST, {"project": project})
        return found[0][0] if found else None

    async def read(self, project: str, span: TimeSpan) -> ProjectOverview:
        """The calls of a project (internal id) in a span."""
        parameters = {"project": project, "start": span.start, "end": span.end, "width": span.width}
        counts, whole = [], CallCounts(0, 0, 0, None, None)
        for is_whole, bucket, calls, errors, known, seconds in await self._clickhouse.rows(
            _EVERY + _COUNTS, parameters
        ):
            row = CallCounts(bucket, calls, errors, *(seconds if known else (None, None)))
            if is_whole:
                whole = row._replace(bucket=0)
            else:
                counts.append(row)
        return ProjectOverview(counts, whole)
