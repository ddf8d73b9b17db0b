"""A condition on what a call cost: its usage, priced by a function of the caller."""

from collections.abc import Iterable

from heddle.store.clickhouse.bound import Bound, rows
from heddle.store.clickhouse.call_usage import IS_SPAN, USAGE, usage_of
from heddle.store.clickhouse.client import Clickhouse, Row
from heddle.store.clickhouse.usage_repeats import outer_spans
from heddle.wire.calls import CallsQuery, CostTest, Usage

COLUMNS = f"c.id, c.trace_id, c.started_at, {IS_SPAN}, {USAGE}"
HAS_USAGE = "notEmpty(c.usage_model)"
_HEAD = 4


async def condition(clickhouse: Clickhouse, sql: str, bound: Bound, query: CallsQuery, test: CostTest) -> str:
    """The SQL of a test on the dollars of a call; `sql` selects the calls with usage that everything else leaves."""
    found = await rows(clickhouse, sql, bound)
    spans = {row[1] for row in found if row[3]}
    outer = await clickhouse.read(lambda client: outer_spans(client, query.project, spans))
    passing_free = passes(test, 0.0)
    unlike = [row[0] for row in found if passes(test, _dollars(test, row, outer)) is not passing_free]
    if not unlike:
        return "1" if passing_free else "0"
    return f"c.id {'NOT IN' if passing_free else 'IN'} {bound.values(unlike)}"


def passes(test: CostTest, dollars: float) -> bool:
    """Whether a cost is what the test wants."""
    match test.op:
        case "gt":
            return dollars > test.dollars
        case "gte":
            return dollars >= test.dollars
        case "lt":
            return dollars < test.dollars
        case _:
            return dollars <= test.dollars


def _dollars(test: CostTest, row: Row, outer: set[str]) -> float:
    if row[3] and row[0] in outer:
        return 0.0
    costs: Iterable[float | None] = (_priced(test, row[2], entry) for entry in usage_of(row[_HEAD:]))
    return sum(cost for cost in costs if cost is not None)


def _priced(test: CostTest, started_at: int, entry: Usage) -> float | None:
    return test.price(
        entry.model,
        started_at,
        requests=entry.requests,
        prompt_tokens=entry.prompt,
        completion_tokens=entry.completion,
        cached_tokens=entry.cache_read,
        created_tokens=entry.cache_creation,
    )
