"""Inference: usage per project, model, key, user and day; limits, and what counts against them now; LoRA adapters."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, TypeVar

import sqlalchemy as sa

from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.store.control.audit import audit
from heddle.store.control.coordination import ADAPTERS, LIMITS, SECOND, count_change, database_time
from heddle.store.control.repository import (
    Indexed,
    Key,
    Mapped,
    Repository,
    Unique,
    dialect_insert,
    metadata,
    reads,
    upsert,
    writes,
)
from heddle.wire import refs, times
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
    quotas: str | None = None
    """As `heddle.quotas` reads them."""


_limits = Mapped(LimitRow, "inference_limits")
inference_limits = _limits.table


class InferenceRows(Repository):
    """What can be done with usage and limits."""

    @writes
    def add(self, connection: sa.Connection, used: Used) -> None:
        """Count one completion; returns after the commit."""
        place = {name: getattr(used, name) for name in DIMENSIONS}
        values = used.values()
        bound = {f"at_{name}": item for name, item in place.items()} | {f"by_{n}": item for n, item in values.items()}
        if connection.execute(_add, bound).rowcount > 0:
            return
        if connection.execute(_count, {"p": used.project, "d": used.day}).scalar_one() >= MOST_ROWS:
            # A client that sends a new user with each request must not grow the table without bound.
            place |= {"key": OTHERS, "user": OTHERS}
        upsert(connection, inference_usage, DIMENSIONS, {**place, **values}, added=SUMMED)

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

    @writes
    def set_limit(
        self,
        connection: sa.Connection,
        kind: str,
        name: str,
        concurrency: int | None,
        tokens_per_minute: int | None,
        user: str,
        quotas: str | None = None,
    ) -> None:
        """Set the limits of one project or key; all None removes the row. Noted in the audit log."""
        at = times.now()
        limits = {"concurrency": concurrency, "tokens_per_minute": tokens_per_minute, "quotas": quotas}
        c = inference_limits.c
        connection.execute(inference_limits.delete().where(c.kind == kind, c.name == name))
        if any(value is not None for value in limits.values()):
            _limits.insert(connection, LimitRow(kind, name, concurrency, tokens_per_minute, at, user, quotas))
        count_change(connection, LIMITS)
        audit(connection, at, user, "limit.update", None, {"kind": kind, "name": name} | limits)


_KEPT_SECONDS = 3600
MeterName = tuple[str, str]
"""Kind (`project` or `key`) and name."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MeterRow:
    """Tokens that a project or key owed at an instant."""

    kind: Key[str]
    name: Key[str]
    debt: float
    settled_at: int


@dataclass(frozen=True, slots=True)
class PlaceRow:
    """The place of a running completion, once per project and key that it counts for; a lease."""

    id: Key[str]
    kind: Key[str]
    name: str
    owner: str
    lease_until: int


@dataclass(frozen=True, slots=True)
class QuotaCount:
    """How much a project or key used of one kind of quota in a period; instants in seconds since 1970."""

    kind: Key[str]
    name: Key[str]
    quota: Key[str]
    begins_at: Key[int]
    ends_at: Indexed[int]
    used: int


_meters = Mapped(MeterRow, "inference_meters")
_places = Mapped(
    PlaceRow,
    "inference_places",
    sa.Index("inference_places_name", "kind", "name"),
    sa.Index("inference_places_owner", "owner"),
)
_counts = Mapped(QuotaCount, "quota_counts")
inference_meters, inference_places, quota_counts = _meters.table, _places.table, _counts.table
METER_TABLES = (inference_meters, inference_places)


@dataclass(slots=True)
class Meter:
    """What one project or key does now; `debt` in tokens, as it was at the instant `at` (seconds)."""

    running: int = 0
    debt: float = 0.0
    at: float = 0.0


Decide = Callable[[Mapping[MeterName, Meter], float], T]
"""Looks at meters and changes their debts, given the instant in seconds; may raise, and then nothing changes."""


class Meters(Repository):
    """The tables of meters, places and counts. A place is a lease: one of a server that died is free after a while."""

    @writes
    def take(
        self, connection: sa.Connection, place: str, names: Collection[MeterName], seconds: float, decide: Decide[T]
    ) -> T:
        """Take one place of each name for a while, unless `decide` raises."""
        now = _now(connection)
        meters = {name: _read_meter(connection, name, now) for name in names}
        decided = decide(meters, now / SECOND)
        until = now + int(seconds * SECOND)
        for kind, name in names:
            _save_meter(connection, (kind, name), meters[kind, name])
            _places.insert(connection, PlaceRow(place, kind, name, self.instance.owner, until))
        return decided

    @writes
    def give_back(
        self, connection: sa.Connection, place: str, names: Collection[MeterName], decide: Decide[None]
    ) -> None:
        """Free a place, and let `decide` settle what its completion really used."""
        connection.execute(inference_places.delete().where(inference_places.c.id == place))
        now = _now(connection)
        meters = {name: _read_meter(connection, name, now) for name in names}
        decide(meters, now / SECOND)
        for name in names:
            _save_meter(connection, name, meters[name])

    @writes
    def renew(self, connection: sa.Connection, places: Iterable[str], seconds: float) -> None:
        """Keep places for a while longer."""
        c, held = inference_places.c, list(places)
        until = _now(connection) + int(seconds * SECOND)
        for part in batched(held):
            which = sa.and_(c.owner == self.instance.owner, c.id.in_(part))
            connection.execute(inference_places.update().where(which).values(lease_until=until))

    @writes
    def count(self, connection: sa.Connection, counts: Sequence[QuotaCount]) -> list[int]:
        """Add to what was used, forget what ended an hour before; returns what all servers counted, in this order."""
        c = quota_counts.c
        connection.execute(quota_counts.delete().where(c.ends_at < _now(connection) // SECOND - _KEPT_SECONDS))
        # Servers that count the same lock the rows in the same order.
        totals: dict[QuotaCount, int] = {}
        for row in sorted(counts, key=astuple):
            insert = dialect_insert(connection, quota_counts).values(_counts.values(row))
            added = insert.on_conflict_do_update(
                index_elements=["kind", "name", "quota", "begins_at"], set_={"used": c.used + insert.excluded.used}
            )
            totals[row] = connection.execute(added.returning(c.used)).scalar_one()
        return [totals[row] for row in counts]

    async def counts(self, now: float) -> list[QuotaCount]:
        """What was used in the periods of an instant (seconds since 1970)."""
        c = quota_counts.c
        return await self._all(_counts, _counts.select(c.begins_at <= now, c.ends_at > now).order_by(c.kind, c.name))

    async def running(self, name: MeterName) -> int:
        """How many places of a name are taken."""
        c = inference_places.c
        live = sa.and_(c.kind == name[0], c.name == name[1], c.lease_until >= database_time())
        return await self._count(inference_places, live)


def _now(connection: sa.Connection) -> int:
    return int(connection.execute(sa.select(database_time())).scalar_one())


def _read_meter(connection: sa.Connection, name: MeterName, now: int) -> Meter:
    c, p = inference_meters.c, inference_places.c
    of_name = sa.and_(p.kind == name[0], p.name == name[1])
    connection.execute(inference_places.delete().where(of_name, p.lease_until < now))
    running = connection.execute(sa.select(sa.func.count()).select_from(inference_places).where(of_name)).scalar_one()
    chosen = sa.select(c.debt, c.settled_at).where(c.kind == name[0], c.name == name[1])
    found = connection.execute(chosen).first()
    return Meter(running, 0.0, now / SECOND) if found is None else Meter(running, found.debt, found.settled_at / SECOND)


def _save_meter(connection: sa.Connection, name: MeterName, meter: Meter) -> None:
    values = _meters.values(MeterRow(*name, meter.debt, round(meter.at * SECOND)))
    upsert(connection, inference_meters, ("kind", "name"), values)


AdapterKey = tuple[str, str, str]
"""Entity, project, name."""


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """One immutable version; entity and project are empty for adapters of the whole server."""

    entity: Key[str]
    project: Key[str]
    name: Key[str]
    step: Key[int]
    base_model: str
    folder: Unique[str]
    """Relative to the data folder."""
    created_at: int
    """Microseconds."""
    created_by: str


@dataclass(frozen=True, slots=True)
class AdapterName:
    """The name of a trainable model, and which step it means."""

    entity: Key[str]
    project: Key[str]
    name: Key[str]
    latest: int


_versions, _names = Mapped(AdapterRow, "adapters"), Mapped(AdapterName, "adapter_names")
adapters, adapter_names = _versions.table, _names.table
_IDENTITY = ("entity", "project", "name")
_OLDEST_FIRST = _versions.select().order_by(adapters.c.created_at, adapters.c.step)


class Adapters(Repository):
    """The table of adapter versions."""

    @writes
    def add(self, connection: sa.Connection, row: AdapterRow, instead_of: AdapterRow | None = None) -> None:
        """Make a version known; raises InvalidRequest when it exists, unless it is this one (of the same folder)."""
        if instead_of is not None:
            _remove(connection, instead_of, row.created_at, row.created_by)
        known = _versions.first(connection, _versions.select(*_is_version(row)))
        if known is not None and known.folder == row.folder:
            return  # another server published it, or the answer to that was lost
        if known is not None:
            raise InvalidRequest(f"The adapter {row.name}@{row.step} already exists")
        _versions.insert(connection, row)
        count_change(connection, ADAPTERS)
        audit(connection, row.created_at, row.created_by, "adapter.create", _project(row), _identity(row))

    @writes
    def remove(self, connection: sa.Connection, rows: Sequence[AdapterRow], at: int, user: str) -> None:
        """Forget versions; those that are gone are skipped. Raises Conflict for one that its name means."""
        for row in rows:
            name = _names.first(connection, _names.select(*_is_of(adapter_names, _name_of(row))))
            if name is not None and name.latest == row.step:
                raise Conflict(f"{row.name}@{row.step} cannot be removed: {row.name!r} means it")
            _remove(connection, row, at, user)

    @writes
    def point(self, connection: sa.Connection, name: AdapterKey, step: int, instead_of: int | None = None) -> None:
        """Let a trainable name mean a step from now on; raises NotFound for one that is not known (any more).

        Raises Conflict where it does not mean the step `instead_of`.
        """
        meant = _names.first(connection, _names.select(*_is_of(adapter_names, name)))
        if instead_of is not None and (meant is None or meant.latest != instead_of):
            raise Conflict(f"{name[2]!r} does not mean step {instead_of} any more")
        if _versions.first(connection, _versions.select(*_is_of(adapters, name), adapters.c.step == step)) is None:
            raise NotFound(f"{name[2]}@{step} not found")
        upsert(connection, adapter_names, _IDENTITY, _names.values(AdapterName(*name, step)))
        count_change(connection, ADAPTERS)

    @writes
    def forget(self, connection: sa.Connection, name: AdapterKey, at: int, user: str) -> None:
        """A trainable name ends, with all its versions."""
        connection.execute(adapter_names.delete().where(*_is_of(adapter_names, name)))
        for row in _versions.all(connection, _versions.select(*_is_of(adapters, name))):
            _remove(connection, row, at, user)
        count_change(connection, ADAPTERS)

    async def pointers(self) -> dict[AdapterKey, int]:
        """The step that every trainable name means."""
        return _meaning(await self._all(_names, _names.select()))

    async def all(self) -> list[AdapterRow]:
        """Every version, oldest first."""
        return await self._all(_versions, _OLDEST_FIRST)

    @reads
    def snapshot(self, connection: sa.Connection) -> tuple[list[AdapterRow], dict[AdapterKey, int]]:
        """All versions and what every trainable name means, of one moment: a step and its name come in between."""
        meant = _meaning(_names.all(connection, _names.select()))
        return _versions.all(connection, _OLDEST_FIRST), meant


def _meaning(names: Iterable[AdapterName]) -> dict[AdapterKey, int]:
    return {_name_of(row): row.latest for row in names}


def _remove(connection: sa.Connection, row: AdapterRow, at: int, user: str) -> None:
    connection.execute(adapters.delete().where(*_is_version(row)))
    count_change(connection, ADAPTERS)
    audit(connection, at, user, "adapter.delete", _project(row), _identity(row))


def _name_of(row: AdapterRow | AdapterName) -> AdapterKey:
    return row.entity, row.project, row.name


def _is_of(table: sa.Table, name: AdapterKey) -> list[sa.ColumnElement[bool]]:
    return [table.c[column] == value for column, value in zip(_IDENTITY, name, strict=True)]


def _is_version(row: AdapterRow) -> list[sa.ColumnElement[bool]]:
    return [adapters.c[name] == value for name, value in _identity(row).items()]


def _project(row: AdapterRow) -> str | None:
    return refs.internal_project(f"{row.entity}/{row.project}") if row.entity else None


def _identity(row: AdapterRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in (*_IDENTITY, "step")}
