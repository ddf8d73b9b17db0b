"""Sums over time buckets, from what calls used or from their heads; bodies are read by filters only."""

from collections.abc import Iterator, Sequence

from heddle.store.base import Quantiles
from heddle.store.clickhouse import bound
from heddle.store.clickhouse.call_table import ClickhouseSelection, select
from heddle.store.clickhouse.client import Clickhouse, Row
from heddle.store.clickhouse.usage_repeats import EACH_MODEL, around, reported
from heddle.store.control.schema import Executor
from heddle.wire.calls import ERROR, CallsQuery, MetricRow, UniformRun

USAGE_METRICS = {
    "input_tokens": "prompt",
    "output_tokens": "completion",
    "total_tokens": "total",
    "cache_read_input_tokens": "cache_read",
    "cache_creation_input_tokens": "cache_creation",
}
CALL_METRICS = {
    "latency_ms": "(c.ended_at - c.started_at) / 1000.0",
    "call_count": "1",
    "error_count": f"(c.status = {ERROR})",
}
_AGGREGATES = (
    "ifNull(sum({0}), 0), minOrNull({0}), maxOrNull({0}), countIf(ifNull({0} = 1, 0)), countIf(ifNull({0} = 0, 0)), "
    "count({0})"
)
_AGGREGATE_COUNT = 6


class CallStats:
    """Bucketed sums of calls; buckets come as runs of equal width, so that one query serves one run."""

    def __init__(self, clickhouse: Clickhouse, control: Executor) -> None:
        self._clickhouse = clickhouse
        self._control = control

    async def usage(
        self, query: CallsQuery, runs: Sequence[UniformRun], metrics: Sequence[str], quantiles: Sequence[str]
    ) -> tuple[list[MetricRow], Quantiles]:
        """Per bucket and model, the metrics of `USAGE_METRICS`; values in order for the metrics in `quantiles`."""
        return await self._read(query, runs, metrics, quantiles, True)

    async def calls(
        self, query: CallsQuery, runs: Sequence[UniformRun], metrics: Sequence[str], quantiles: Sequence[str]
    ) -> tuple[list[MetricRow], Quantiles]:
        """Per bucket, the metrics of `CALL_METRICS`; the model of each row is empty."""
        return await self._read(query, runs, metrics, quantiles, False)

    async def _read(
        self,
        query: CallsQuery,
        runs: Sequence[UniformRun],
        metrics: Sequence[str],
        quantiles: Sequence[str],
        by_model: bool,
    ) -> tuple[list[MetricRow], Quantiles]:
        rows: list[MetricRow] = []
        values: Quantiles = {}
        selection = await select(self._clickhouse, self._control, query)
        for run in runs:
            sql = _sql(selection, query.project, run, metrics, quantiles, by_model)
            for row in await bound.rows(self._clickhouse, sql, selection.bound):
                rows.extend(_metric_rows(row, metrics))
                for name, ordered in zip(quantiles, row[len(row) - len(quantiles) :], strict=True):
                    if ordered:
                        values[row[0], row[1], name] = [float(value) for value in ordered]
        return rows, values


def _sql(
    selection: ClickhouseSelection,
    project: str,
    run: UniformRun,
    metrics: Sequence[str],
    quantiles: Sequence[str],
    by_model: bool,
) -> str:
    """The figures of the buckets of one run, then the values in order of the metrics in `quantiles`."""
    figures = USAGE_METRICS if by_model else CALL_METRICS
    model = "toString(model)" if by_model else "''"
    bucket = f"intDiv(c.started_at - {run.start}, {run.width}) + {run.first}"
    columns = [f"{bucket} AS bucket", f"{model} AS name", "count()"]
    columns += [_AGGREGATES.format(figures[metric]) for metric in metrics]
    columns += [f"arraySort(groupArray({figures[metric]}))" for metric in quantiles]
    inside = f"c.started_at >= {run.lower} AND c.started_at < {run.upper}"
    if by_model:
        inside += f" AND {reported(around(f'project = {selection.bound.value(project)}', run.lower, run.upper))}"
    joins = EACH_MODEL if by_model else ""
    return selection.sql(", ".join(columns), inside, order=False, group="bucket, name", joins=joins)


def _metric_rows(row: Row, metrics: Sequence[str]) -> Iterator[MetricRow]:
    index, model, calls, *numbers = row
    for place, metric in enumerate(metrics):
        first = place * _AGGREGATE_COUNT
        yield MetricRow(index, model, metric, calls, *numbers[first : first + _AGGREGATE_COUNT])
