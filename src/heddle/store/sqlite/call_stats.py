"""Sums over time buckets, from the usage table or from the heads of calls; bodies are never read."""

import sqlite3
from collections.abc import Iterator, Sequence

from heddle.store.sqlite.call_select import select
from heddle.store.sqlite.connection import Session
from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.readers import Readers
from heddle.wire.calls import CallsQuery, MetricRow, UniformRun

USAGE_METRICS = {
    "input_tokens": "u.prompt",
    "output_tokens": "u.completion",
    "total_tokens": "u.total",
    "cache_read_input_tokens": "u.cache_read",
    "cache_creation_input_tokens": "u.cache_creation",
}
CALL_METRICS = {
    "latency_ms": "(c.ended_at - c.started_at) / 1000.0",
    "call_count": "1",
    "error_count": "(c.status = 1)",
}
_AGGREGATES = (
    "count(*), ifnull(sum({0}), 0), min({0}), max({0}), ifnull(sum({0} = 1), 0), ifnull(sum({0} = 0), 0), count({0})"
)
_AGGREGATE_COUNT = 7
_MODELS = 2**32
Quantiles = dict[tuple[int, str, str], list[float]]


class CallStats:
    """Bucketed sums of calls; buckets come as runs of equal width, so that one query serves one run."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._names = NameReader()

    async def usage(
        self, query: CallsQuery, runs: Sequence[UniformRun], metrics: Sequence[str], quantiles: Sequence[str]
    ) -> tuple[list[MetricRow], Quantiles]:
        """Per bucket and model, the metrics of `USAGE_METRICS`; values in order for the metrics in `quantiles`."""
        return await self._readers.read(lambda session: self._read(session, query, runs, metrics, quantiles, True))

    async def calls(
        self, query: CallsQuery, runs: Sequence[UniformRun], metrics: Sequence[str], quantiles: Sequence[str]
    ) -> tuple[list[MetricRow], Quantiles]:
        """Per bucket, the metrics of `CALL_METRICS`; the model of each row is empty."""
        return await self._readers.read(lambda session: self._read(session, query, runs, metrics, quantiles, False))

    def _read(
        self,
        session: Session,
        query: CallsQuery,
        runs: Sequence[UniformRun],
        metrics: Sequence[str],
        quantiles: Sequence[str],
        by_model: bool,
    ) -> tuple[list[MetricRow], Quantiles]:
        rows: list[MetricRow] = []
        values: Quantiles = {}
        selection = select(session.raw, self._names, query)
        if selection is None:
            return rows, values
        number = self._names.number(session.raw, query.project)
        filtered = len(selection.where) > 3
        for run in runs:
            source, time = _source(by_model, filtered, selection.where, selection.source())
            parameters: list[object] = [
                number,
                run.lower,
                run.upper,
                *(selection.parameters if filtered or not by_model else []),
            ]
            bucket = f"({time} - {run.start}) / {run.width} + {run.first}"
            columns = USAGE_METRICS if by_model else CALL_METRICS
            # One number as the key of both: SQLite sorts the rows once, and by the shortest possible record.
            key = f"({bucket}) * {_MODELS} + {'u.model' if by_model else '0'}"
            figures = ", ".join(_AGGREGATES.format(columns[metric]) for metric in metrics)
            for both, *numbers in session.raw.execute(f"SELECT {key}, {figures} {source} GROUP BY 1", parameters):
                index, model = divmod(both, _MODELS)
                name = self._names.text(session.raw, model or None) or ""
                for place, metric in enumerate(metrics):
                    first = place * _AGGREGATE_COUNT
                    rows.append(MetricRow(index, name, metric, *numbers[first : first + _AGGREGATE_COUNT]))
            for metric in quantiles:
                column = columns[metric]
                key = f"{bucket}, {'u.model' if by_model else 'NULL'}"
                sql = f"SELECT {key}, {column} AS value {source} AND {column} IS NOT NULL ORDER BY 1, 2, 3"
                for index, name, value in self._values(session.raw, sql, parameters):
                    values.setdefault((index, name, metric), []).append(value)
        return rows, values

    def _values(self, raw: sqlite3.Connection, sql: str, parameters: list[object]) -> Iterator[tuple[int, str, float]]:
        for index, model, value in raw.execute(sql, parameters):
            yield index, self._names.text(raw, model) or "", float(value)


def _source(by_model: bool, filtered: bool, where: list[str], calls: str) -> tuple[str, str]:
    """FROM and WHERE over usage rows or call heads within a time range, and the column of the instant."""
    if not by_model:
        # The range comes first so that its parameters stand before those of the filter.
        conditions = " AND ".join(where)
        return (
            f"FROM {calls} WHERE c.project = ? AND c.started_at >= ? AND c.started_at < ? AND {conditions}",
            "c.started_at",
        )
    source = "FROM usage u WHERE u.project = ? AND u.started_at >= ? AND u.started_at < ?"
    if filtered:
        source += f" AND u.rid IN (SELECT c.rid FROM {calls} WHERE {' AND '.join(where)})"
    return source, "u.started_at"
