"""The usage that calls report, without that of spans which repeat what calls below them report.

The rule is that of `store/sqlite/usage_repeats.py`: a span of OpenTelemetry has no usage of its own where calls below
it report some. It is kept here when calls are read.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from heddle.store.clickhouse.bound import Bound, rows
from heddle.store.clickhouse.client import Clickhouse
from heddle.wire.calls import Usage

USAGE = "c.usage_model, c.usage_requests, c.usage_prompt, c.usage_completion, c.usage_total"
USAGE += ", c.usage_cache_read, c.usage_cache_creation"
"""The columns that `usage_of` takes."""
IS_SPAN = "isNotNull(c.otel_dump)"
_DEEPEST = 100
_TRACES = 500


class Reporter(NamedTuple):
    """A call of a trace: its parent, whether it is a span of OpenTelemetry, and whether it reports usage."""

    parent_id: str | None
    is_span: bool
    reports: bool


def usage_of(values: Sequence[Sequence[Any]]) -> list[Usage]:
    """The usage of a call by model, from the arrays of its row."""
    return [Usage(*entry) for entry in zip(*values, strict=True)]


async def repeating(clickhouse: Clickhouse, project: str, traces: Collection[str]) -> set[str]:
    """The ids of spans of some traces whose usage repeats that of calls below them."""
    found: set[str] = set()
    listed = sorted(set(traces))
    for start in range(0, len(listed), _TRACES):
        bound = Bound()
        sql = f"""SELECT c.trace_id, c.id, c.parent_id, {IS_SPAN}, notEmpty(c.usage_model) FROM calls AS c FINAL
            WHERE c.project = {bound.value(project)} AND c.deleted_at = 0
            AND c.trace_id IN {bound.values(listed[start : start + _TRACES])}"""
        by_trace: dict[str, dict[str, Reporter]] = {}
        for trace_id, call_id, parent_id, is_span, reports in await rows(clickhouse, sql, bound):
            by_trace.setdefault(trace_id, {})[call_id] = Reporter(parent_id, bool(is_span), bool(reports))
        for calls in by_trace.values():
            found |= outer(calls)
    return found


def outer(calls: Mapping[str, Reporter]) -> set[str]:
    """The spans of a trace that report usage above calls that do."""
    found: set[str] = set()
    for call_id, call in calls.items():
        if call.reports and call_id not in found:
            found.update(item for item in _above(calls, call_id) if calls[item].reports and calls[item].is_span)
    return found


def _above(calls: Mapping[str, Reporter], call_id: str) -> Iterable[str]:
    parent, level = calls[call_id].parent_id, 0
    while parent is not None and parent in calls and parent != call_id and level < _DEEPEST:
        yield parent
        parent, level = calls[parent].parent_id, level + 1
