"""Sums over time buckets, from the usage table or from the heads of calls; bodies are never read."""

import sqlite3
from collections.abc import Iterator, Sequence

from heddle.store.sqlite.call_table import UNFILTERED, SqliteSelection, select
from heddle.store.sqlite.connection import Session
from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.readers import Readers
from heddle.wire.calls import CallsQuery, MetricRow, UniformRun
from heddle.wire.query import Scalar

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
Parameters = dict[str, Scalar]
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
        number = self._names.number(session.raw, query.project) or 0
        for run in runs:
            source, time, parameters = _source(by_model, selection, number, run)
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

    def _values(
        self, raw: sqlite3.Connection, sql: str, parameters: Parameters
    ) -> Iterator[tuple[int, str, float]]:
        for index, model, value in raw.execute(sql, parameters):
            yield index, self._names.text(raw, model) or "", float(value)


def _source(
    by_model: bool, selection: SqliteSelection, number: int, run: UniformRun
) -> tuple[str, str, dict[str, Scalar]]:
    """FROM and WHERE over usage rows or call heads in a range of time, the column of the instant, the parameters."""
    conditions = " AND ".join(selection.where)
    if not by_model:
        inside = f"c.started_at >= {run.lower} AND c.started_at < {run.upper}"
        source = f"FROM {selection.source()} WHERE {inside} AND {conditions}"
        return source, "c.started_at", selection.parameters
    source = f"FROM usage u WHERE u.project = {number} AND u.started_at >= {run.lower} AND u.started_at < {run.upper}"
    if len(selection.where) == UNFILTERED:
        return source, "u.started_at", {}
    source += f" AND u.rid IN (SELECT c.rid FROM {selection.source()} WHERE {conditions})"
    return source, "u.started_at", selection.parameters
