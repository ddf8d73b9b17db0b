"""Sums over all calls of threads, those below the turns included."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from heddle.store.clickhouse.call_table import HAS_USAGE, IS_SPAN, USAGE, usage_of
from heddle.store.clickhouse.client import Clickhouse, rows_of
from heddle.store.clickhouse.schema import CALLS, listed
from heddle.store.clickhouse.usage_repeats import outer_spans, summed_up
from heddle.wire.calls import ERROR, Usage
from heddle.wire.inference import CostOf, cost_of_tokens, sum_of_costs
from heddle.wire.threads import ThreadFigures

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

_LIVE = f"""FROM {CALLS} AS c FINAL
    WHERE c.project = {{project:String}} AND c.deleted_at = 0 AND c.thread_id IN {{threads}}"""
_USED = f"""SELECT c.thread_id, c.id, c.started_at, c.trace_id, {IS_SPAN},
    {USAGE} {_LIVE} AND {HAS_USAGE}"""
_ERRORS = f"""SELECT c.thread_id, count() {_LIVE} AND c.turn_id = c.id AND c.status = {ERROR} GROUP BY c.thread_id"""

Used = tuple[int, Usage]
"""When a call started, and what it used of one model."""


class ThreadSums:
    """Reads figures of threads."""

    def __init__(self, clickhouse: Clickhouse) -> None:
        self._clickhouse = clickhouse

    async def figures(self, project: str, thread_ids: Sequence[str], price: CostOf) -> list[ThreadFigures]:
        """The figures of the named threads, in that order."""
        if not thread_ids:
            return []

        def work(client: "Client") -> list[ThreadFigures]:
            used = _used(client, project, thread_ids)
            failed = rows_of(client, _ERRORS.replace("{threads}", listed(thread_ids)), {"project": project})
            errors: dict[str, int] = dict(failed)
            return [_figures(name, used.get(name, []), price, errors.get(name, 0)) for name in thread_ids]

        return await self._clickhouse.read(work)


def _used(client: "Client", project: str, thread_ids: Sequence[str]) -> dict[str, list[Used]]:
    """What totals count of each thread."""
    rows = rows_of(client, _USED.replace("{threads}", listed(thread_ids)), {"project": project})
    repeated = summed_up(client, project, [(row[1], row[2]) for row in rows])
    outer = outer_spans(client, project, {row[3] for row in rows if row[4]})
    found: dict[str, list[Used]] = {}
    for thread_id, call_id, started_at, _, is_span, *usage in rows:
        if call_id not in repeated and not (is_span and call_id in outer):
            found.setdefault(thread_id, []).extend((started_at, entry) for entry in usage_of(usage))
    return found


def _figures(thread_id: str, used: Sequence[Used], price: CostOf, errors: int) -> ThreadFigures:
    tokens = sum(use.prompt + use.completion if use.total is None else use.total for _, use in used)
    dollars = sum_of_costs(cost_of_tokens(price, use, at) for at, use in used)
    return ThreadFigures(thread_id, tokens, dollars, errors)
