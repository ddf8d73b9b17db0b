"""What projects and keys do at this moment on all servers together: places of running completions, and tokens owed."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa

from heddle.store.control.leases import SECOND, database_time
from heddle.store.control.mapping import Key, Mapped, Repository, upsert
from heddle.wire.batched import batched

Name = tuple[str, str]
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


_meters = Mapped(MeterRow, "inference_meters")
_places = Mapped(
    PlaceRow,
    "inference_places",
    sa.Index("inference_places_name", "kind", "name"),
    sa.Index("inference_places_owner", "owner"),
)
inference_meters, inference_places = _meters.table, _places.table
METER_TABLES = (inference_meters, inference_places)


@dataclass(slots=True)
class Meter:
    """What one project or key does now; `debt` in tokens, as it was at the instant `at` (seconds)."""

    running: int = 0
    debt: float = 0.0
    at: float = 0.0


Decide = Callable[[Mapping[Name, Meter], float], T]
"""Looks at meters and changes their debts, given the instant in seconds; may raise, and then nothing changes."""


class Meters(Repository):
    """The tables of meters and places. A place is a lease: one of a server that died is free again after a while."""

    async def take(self, place: str, names: Collection[Name], seconds: float, decide: Decide[T]) -> T:
        """Take one place of each name for a while, unless `decide` raises."""

        def work(connection: sa.Connection) -> T:
            now = _now(connection)
            meters = {name: _read(connection, name, now) for name in names}
            decided = decide(meters, now / SECOND)
            until = now + int(seconds * SECOND)
            for kind, name in names:
                _save(connection, (kind, name), meters[kind, name])
                _places.insert(connection, PlaceRow(place, kind, name, self.instance.owner, until))
            return decided

        return await self._executor.write(work)

    async def give_back(self, place: str, names: Collection[Name], decide: Decide[None]) -> None:
        """Free a place, and let `decide` settle what its completion really used."""

        def work(connection: sa.Connection) -> None:
            connection.execute(inference_places.delete().where(inference_places.c.id == place))
            now = _now(connection)
            meters = {name: _read(connection, name, now) for name in names}
            decide(meters, now / SECOND)
            for name in names:
                _save(connection, name, meters[name])

        await self._executor.write(work)

    async def renew(self, places: Iterable[str], seconds: float) -> None:
        """Keep places for a while longer."""
        c, held = inference_places.c, list(places)

        def work(connection: sa.Connection) -> None:
            until = _now(connection) + int(seconds * SECOND)
            for part in batched(held):
                which = sa.and_(c.owner == self.instance.owner, c.id.in_(part))
                connection.execute(inference_places.update().where(which).values(lease_until=until))

        await self._executor.write(work)

    async def running(self, name: Name) -> int:
        """How many places of a name are taken."""
        c = inference_places.c
        live = sa.and_(c.kind == name[0], c.name == name[1], c.lease_until >= database_time())
        return await self._count(inference_places, live)


def _now(connection: sa.Connection) -> int:
    return int(connection.execute(sa.select(database_time())).scalar_one())


def _read(connection: sa.Connection, name: Name, now: int) -> Meter:
    c, p = inference_meters.c, inference_places.c
    of_name = sa.and_(p.kind == name[0], p.name == name[1])
    connection.execute(inference_places.delete().where(of_name, p.lease_until < now))
    running = connection.execute(sa.select(sa.func.count()).select_from(inference_places).where(of_name)).scalar_one()
    chosen = sa.select(c.debt, c.settled_at).where(c.kind == name[0], c.name == name[1])
    found = connection.execute(chosen).first()
    return Meter(running, 0.0, now / SECOND) if found is None else Meter(running, found.debt, found.settled_at / SECOND)


def _save(connection: sa.Connection, name: Name, meter: Meter) -> None:
    values = _meters.values(MeterRow(*name, meter.debt, round(meter.at * SECOND)))
    upsert(connection, inference_meters, ("kind", "name"), values)
