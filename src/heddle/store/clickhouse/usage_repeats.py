"""Usage that is reported twice, found out when it is read (what it is: `store/sqlite/usage_repeats.py`).

Rows hold what each end reported. An OpenTelemetry span with usage below it in its trace is taken to report none, unless
it is a request to a model; one directly below such a request is taken to report none as well. Totals
also leave out calls whose direct children have usage, as SDKs sum that up. What is below calls is looked for from a day
before the first of them to 30 days after the last.
"""

from collections.abc import Collection, Mapping

from heddle.store.clickhouse.client import Client, rows_of
from heddle.store.clickhouse.schema import CALLS, listed
from heddle.wire import times

DEEPEST = 40
"""Levels that are looked through, each in a scan of its own; also the end of parents that go in a circle."""
_BEFORE, _AFTER = times.DAY, 30 * times.DAY
_FIRST, _LAST = -(2**63), 2**63 - 1

FIGURES = ("requests", "prompt", "completion", "total", "cache_read", "cache_creation")
"""What is counted of each model, in the order of `Usage`."""
_SPAN, _ABOVE = "cityHash64(project, trace_id, id)", "cityHash64(project, trace_id, assumeNotNull(parent_id))"
"""A number for a call, and that of its parent in the same trace: comparing them takes less than comparing texts."""
EACH_MODEL = "ARRAY JOIN c.usage_model AS model, " + ", ".join(f"c.usage_{name} AS {name}" for name in FIGURES)
"""Behind `FROM calls AS c FINAL`: one row per call and model."""


_IS_REQUEST = "arrayExists(requests -> requests > 0, {0}usage_requests)"


def around(projects: str, lower: int = _FIRST, upper: int = _LAST) -> str:
    """The condition on what may lie below the calls of projects (a condition) that start in `[lower, upper)`."""
    first, last = max(lower - _BEFORE, _FIRST), min(upper + _AFTER, _LAST)
    return f"{projects} AND deleted_at = 0 AND started_at >= {first} AND started_at < {last}"


def reported(within: str) -> str:
    """The condition that a call `c` has the usage that its row holds; `within` is where that of others lies."""
    outer = f"cityHash64(c.project, c.trace_id, c.id) GLOBAL NOT IN ({_outer(within)})"
    inner = f"cityHash64(c.project, c.trace_id, ifNull(c.parent_id, '')) GLOBAL IN ({_requests(within)})"
    inner = f"({inner} AND c.parent_id != c.id)"
    return f"(c.otel_dump IS NULL OR (({outer} OR {_IS_REQUEST.format('c.')}) AND NOT ifNull({inner}, 0)))"


def counted(within: str) -> str:
    """The condition that totals count the usage of a call `c`."""
    summed = f"SELECT cityHash64(project, assumeNotNull(parent_id)) {_parents(within)}"
    # What spans directly below a request report is that request again.
    by_sdk = f"{summed} AND otel_dump IS NULL"
    is_request = f"c.otel_dump IS NOT NULL AND {_IS_REQUEST.format('c.')}"
    above = "cityHash64(c.project, c.id) GLOBAL NOT IN"
    return f"{reported(within)} AND if({is_request}, {above} ({by_sdk}), {above} ({summed}))"


def outer_spans(client: Client, project: str, trace_ids: Collection[str]) -> set[str]:
    """The calls of traces whose usage OpenTelemetry spans above or below report; runs in the thread of the caller.

    Of parents in a circle one with usage is left out, so that it keeps its own.
    """
    if not trace_ids:
        return set()
    within = f"project = {{project:String}} AND deleted_at = 0 AND trace_id IN {listed(trace_ids)}"
    columns = "id, parent_id, notEmpty(usage_model)"
    is_request = f"(otel_dump IS NOT NULL AND {_IS_REQUEST.format('')})"
    outer = f"{_SPAN} GLOBAL IN ({_outer(within)}) AND NOT {is_request}"
    above = "cityHash64(project, trace_id, ifNull(parent_id, ''))"
    inner = f"{above} GLOBAL IN ({_requests(within)}) AND ifNull(parent_id != id, 0) AND otel_dump IS NOT NULL"
    sql = f"SELECT {columns} FROM {CALLS} FINAL WHERE {within} AND (({outer}) OR ({inner}))"
    found = {row[0]: (row[1], row[2]) for row in rows_of(client, sql, {"project": project})}
    return found.keys() - _one_of_each_circle(found)


def _one_of_each_circle(above: Mapping[str, tuple[str | None, int]]) -> set[str]:
    """One call with usage of each circle of parents; `above` says of calls their parent and whether they have usage."""
    chosen: set[str] = set()
    seen: set[str | None] = set()
    for call_id in above:
        path: list[str] = []
        at: str | None = call_id
        while at is not None and at in above and at not in seen:
            seen.add(at)
            path.append(at)
            at = above[at][0]
        circle = path[path.index(at) :] if at in path else []
        chosen.update(sorted(one for one in circle if above[one][1])[:1])
    return chosen


def _outer(within: str) -> str:
    """The numbers of what lies above OpenTelemetry spans with usage, all of a circle of parents among them."""
    below = f"FROM {CALLS} FINAL WHERE {within} AND parent_id IS NOT NULL AND parent_id <> id"
    return f"""WITH RECURSIVE up AS (
            SELECT DISTINCT {_ABOVE} AS above, 1 AS level {below} AND otel_dump IS NOT NULL AND notEmpty(usage_model)
            UNION ALL
            SELECT DISTINCT p.parent, up.level + 1 FROM up GLOBAL INNER JOIN (
                SELECT {_SPAN} AS span, {_ABOVE} AS parent {below}) AS p ON p.span = up.above
            WHERE up.level < {DEEPEST})
        SELECT DISTINCT above FROM up"""


def _requests(within: str) -> str:
    """The numbers of the OpenTelemetry spans that are requests to models."""
    return f"SELECT {_SPAN} FROM {CALLS} FINAL WHERE {within} AND otel_dump IS NOT NULL AND {_IS_REQUEST.format('')}"


def _parents(within: str) -> str:
    """FROM and WHERE of the calls that have usage below another one."""
    return f"""FROM {CALLS} FINAL
        WHERE {within} AND parent_id IS NOT NULL AND parent_id <> id AND notEmpty(usage_model)"""
