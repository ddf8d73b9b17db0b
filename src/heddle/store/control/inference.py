"""What inference counts and allows: usage per project, model, key, user and day; limits of single projects and keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from heddle.store.control.changes import LIMITS, count_change
from heddle.store.control.mapping import Key, Mapped, Repository, dialect_insert
from heddle.store.control.projects import audit
from heddle.store.control.schema import metadata
from heddle.wire import times
from heddle.wire.batched import batched

BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds in seconds of the latency buckets; one more bucket holds what took longer."""
BUCKETS = len(BOUNDS) + 1
MOST_ROWS = 1000
"""Rows of one project and day that may differ in model, key and user; what comes later shares rows."""
OTHERS = "(others)"
MOST_GROUPS = 100_000

DIMENSIONS = ("project", "day", "model", "key", "user")
COUNTS = (
    "requests",
    "errors",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "first_tokens",
)
TIMES = ("seconds", "first_token_seconds")
TOOK = tuple(f"took_{number}" for number in range(BUCKETS))
FIRST = tuple(f"first_{number}" for number in range(BUCKETS))
SUMMED = (*COUNTS, *TIMES, *TOOK, *FIRST)

inference_usage = sa.Table(
    "inference_usage",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("day", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("user", sa.Text, primary_key=True),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in COUNTS),
    *(sa.Column(name, sa.Float, nullable=False) for name in TIMES),
    *(sa.Column(name, sa.BigInteger, nullable=False) for name in (*TOOK, *FIRST)),
    sqlite_with_rowid=False,
)

_u = inference_usage.c
_key = sa.and_(*(_u[name] == sa.bindparam(f"at_{name}") for name in DIMENSIONS))
_add = (
    inference_usage.update()
    .where(_key)
    .values({name: _u[name] + sa.bindparam(f"by_{name}", type_=_u[name].type) for name in SUMMED})
)
_count = (
    sa.select(sa.func.count())
    .select_from(inference_usage)
    .where(_u.project == sa.bindparam("p"), _u.day == sa.bindparam("d"))
)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Used:
    """What one completion adds: `day` in days since 1970 (UTC), times in seconds, `project` internal or empty."""

    project: str
    day: int
    model: str
    key: str = ""
    user: str = ""
    requests: int = 1
    errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    seconds: float = 0.0
    first_token_seconds: float | None = None

    def values(self) -> Row:
        """The sums of a row that holds nothing else."""
        row: Row = dict.fromkeys(SUMMED, 0)
        row |= {name: getattr(self, name) for name in COUNTS if name != "first_tokens"}
        row |= {"seconds": self.seconds, "first_token_seconds": 0.0}
        row[TOOK[bucket(self.seconds)]] = 1
        if self.first_token_seconds is not None:
            row |= {"first_tokens": 1, "first_token_seconds": self.first_token_seconds}
            row[FIRST[bucket(self.first_token_seconds)]] = 1
        return row


def bucket(seconds: float) -> int:
    """The latency bucket of a time."""
    return next((number for number, bound in enumerate(BOUNDS) if seconds <= bound), len(BOUNDS))


@dataclass(frozen=True, slots=True)
class LimitRow:
    """The limits of one project (`team/project`) or key (its id); None: the setting holds, 0: no limit."""

    kind: Key[str]
    name: Key[str]
    concurrency: int | None
    tokens_per_minute: int | None
    updated_at: int
    updated_by: str


_limits = Mapped(LimitRow, "inference_limits")
inference_limits = _limits.table


class InferenceRows(Repository):
    """What can be done with usage and limits."""

    async def add(self, used: Used) -> None:
        """Count one completion; returns after the commit."""
        await self._executor.write(lambda connection: _add_row(connection, used), 200)

    async def projects(self, first_day: int, last_day: int) -> list[str]:
        """The projects with usage in a range of days; both ends belong to it."""
        query = sa.select(_u.project).where(_u.day.between(first_day, last_day)).distinct()
        return [row.project for row in await self._tuples(query)]

    async def usage(
        self,
        days: tuple[int, int],
        by: Sequence[str],
        projects: Sequence[str] | None = None,
        equal: Mapping[str, str] | None = None,
    ) -> list[Row]:
        """The sums of a range of days, one row per value of the dimensions `by`, sorted by them.

        `projects` and `equal` (dimension -> value) narrow the rows. At most MOST_GROUPS + 1 rows come.
        """
        groups = [_u[name] for name in by]
        sums = [sa.func.sum(_u[name]).label(name) for name in SUMMED]
        query = sa.select(*groups, *sums).where(_u.day.between(*days)).order_by(*groups).limit(MOST_GROUPS + 1)
        query = query.where(*(_u[name] == value for name, value in (equal or {}).items()))
        if groups:
            query = query.group_by(*groups)
        queries = [query] if projects is None else [query.where(_u.project.in_(some)) for some in batched(projects)]

        found = [dict(row._mapping) for each in queries for row in await self._tuples(each)]
        return [row for row in found if row["requests"] is not None]

    async def limits(self) -> list[LimitRow]:
        """Every limit that was set, sorted."""
        return await self._all(_limits, _limits.select().order_by(_limits.c.kind, _limits.c.name))

    async def set_limit(
        self, kind: str, name: str, concurrency: int | None, tokens_per_minute: int | None, user: str
    ) -> None:
        """Set the limits of one project or key; both None removes the row. Noted in the audit log."""
        at = times.now()
        row = LimitRow(kind, name, concurrency, tokens_per_minute, at, user)

        def work(connection: sa.Connection) -> None:
            c = inference_limits.c
            connection.execute(inference_limits.delete().where(c.kind == kind, c.name == name))
            if concurrency is not None or tokens_per_minute is not None:
                _limits.insert(connection, row)
            count_change(connection, LIMITS)
            details = {"kind": kind, "name": name, "concurrency": concurrency, "tokens_per_minute": tokens_per_minute}
            audit(connection, at, user, "limit.update", None, details)

        await self._executor.write(work)


def _add_row(connection: sa.Connection, used: Used) -> None:
    place = {name: getattr(used, name) for name in DIMENSIONS}
    values = used.values()
    if _added(connection, place, values):
        return
    if connection.execute(_count, {"p": used.project, "d": used.day}).scalar_one() >= MOST_ROWS:
        # A client that sends a new user with each request must not grow the table without bound.
        place |= {"key": OTHERS, "user": OTHERS}
    statement = dialect_insert(connection, inference_usage).values({**place, **values})
    summed = {name: _u[name] + statement.excluded[name] for name in SUMMED}
    connection.execute(statement.on_conflict_do_update(index_elements=list(DIMENSIONS), set_=summed))


def _added(connection: sa.Connection, place: Row, values: Row) -> bool:
    bound = {f"at_{name}": value for name, value in place.items()}
    bound |= {f"by_{name}": value for name, value in values.items()}
    return connection.execute(_add, bound).rowcount > 0
