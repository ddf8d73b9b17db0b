"""Which calls the list, its histogram and its export mean: filter, query, cost, range of time, place in the order."""

import re
from dataclasses import replace
from typing import Annotated
from typing import Literal as OneOf

from pydantic import Field as Checked

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.http import RequestModel
from heddle.store.base import Store
from heddle.wire import times
from heddle.wire.callfilter import CallConditions
from heddle.wire.calls import CallsQuery, CostTest, Filter, SortTerm
from heddle.wire.inference import PricesOf
from heddle.wire.query import And, Compare, Comparison, Field, Literal, Operation, Or, QueryBody

LATENCY = "summary.weave.latency_ms"
MAX_LIMIT = 500
_MAX_ENTRIES = 1000
_PLACE = re.compile(r"(-?[0-9]{1,18})_(.+)", re.DOTALL)
Instant = Annotated[float, Checked(ge=-1e11, le=1e11, allow_inf_nan=False)]


class CostCondition(RequestModel):
    """A test on the dollars of a call."""

    op: OneOf["gt", "gte", "lt", "lte"]
    dollars: float = Checked(allow_inf_nan=False)


class Chosen(RequestModel):
    """Which calls; `from` and `to` are seconds since 1970, the end is left out."""

    project_id: str
    filter: CallConditions | None = None
    query: QueryBody | None = None
    cost: CostCondition | None = None
    start: Instant | None = Checked(default=None, alias="from")
    end: Instant | None = Checked(default=None, alias="to")


class Listed(Chosen):
    """A page of them; `after` and `before` are keys of rows, `columns` the paths of dynamic columns."""

    sort: OneOf["started_at", "-started_at", "-latency"] = "-started_at"
    limit: int = Checked(default=50, ge=1, le=MAX_LIMIT)
    after: str | None = None
    before: str | None = None
    columns: list[str] = Checked(default_factory=list, max_length=40)


async def query_of(store: Store, prices: PricesOf, caller: Caller, body: Chosen, timed: bool = True) -> CallsQuery:
    """The selection in the store's terms; `timed` puts the range of time into it."""
    project = caller.open(body.project_id)
    days = await store.projects.retention(project)
    cost = None
    if body.cost is not None:
        cost = CostTest(body.cost.op, body.cost.dollars, await prices(project))
    return CallsQuery(
        project,
        _filter(body.filter),
        _all([body.query, *(_range(body) if timed else [])]),
        retention=None if days is None else days * times.DAY,
        cost=cost,
    )


def page_of(query: CallsQuery, body: Listed) -> CallsQuery:
    """One page of the selection, with one call more than asked for, to know whether there is another page."""
    field = LATENCY if body.sort == "-latency" else "started_at"
    descending = body.sort != "started_at"
    conditions = [query.query]
    if body.sort == "-latency":
        conditions.append(Compare("gt", Field("ended_at"), Literal(0)))
    place = body.before or body.after
    if body.before:
        descending = not descending
    if place:
        conditions += _beyond(field, descending, place)
    order = (SortTerm(field, descending), SortTerm("id", descending))
    return replace(query, query=_all(conditions), sort=order, limit=body.limit + 1)


def _beyond(field: str, descending: bool, place: str) -> list[Operation]:
    literal, call_id = _place(field, place)
    strict: Comparison = "lt" if descending else "gt"
    weak: Comparison = "lte" if descending else "gte"
    tie = Or((Compare(strict, Field(field), literal), Compare(strict, Field("id"), Literal(call_id))))
    return [Compare(weak, Field(field), literal), tie]


def _place(field: str, place: str) -> tuple[Literal, str]:
    """The value and the id that a key of a row is made of."""
    if found := _PLACE.fullmatch(place):
        value = int(found[1])
        try:
            return Literal(times.to_iso(value) if field == "started_at" else value), found[2]
        except (ValueError, OverflowError):
            pass
    raise InvalidRequest(f"There is no such place in the list: {place[:100]!r}")


def _range(body: Chosen) -> list[Operation]:
    found: list[Operation] = []
    if body.start is not None:
        found.append(Compare("gte", Field("started_at"), Literal(body.start)))
    if body.end is not None:
        found.append(Compare("lt", Field("started_at"), Literal(body.end)))
    return found


def _all(conditions: list[Operation | None]) -> Operation | None:
    known: list[Operation] = []
    for condition in conditions:
        known += condition.operands if isinstance(condition, And) else [condition] if condition is not None else []  # type: ignore[arg-type]
    return And(tuple(known)) if len(known) > 1 else known[0] if known else None


def _filter(chosen: CallConditions | None) -> Filter:
    if chosen is None:
        return Filter()
    lists = {name: value for name in CallConditions.model_fields if isinstance(value := getattr(chosen, name), list)}
    for name, value in lists.items():
        if len(value) > _MAX_ENTRIES:
            raise InvalidRequest(f"filter.{name} has {len(value)} entries; at most {_MAX_ENTRIES} are allowed")
    parts = {name: tuple(value) for name, value in lists.items()}
    users, runs = parts.pop("wb_user_ids", None), parts.pop("wb_run_ids", None)
    return Filter(**parts, user_ids=users, run_ids=runs, roots_only=bool(chosen.trace_roots_only))
