"""Alert rules, what each found last, and the messages that are to be delivered about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.errors import Busy
from heddle.store.control.leases import SECOND, Instance, database_time
from heddle.store.control.projects import audit
from heddle.store.control.schema import Executor, metadata
from heddle.wire.jsontypes import Json

QUIET, FIRING = "quiet", "firing"
PENDING, DELIVERED, FAILED = "pending", "delivered", "failed"
MOST_WAITING = 20
LEASE_SECONDS = 60.0
"""Longer than a message takes to be sent."""

alert_rules = sa.Table(
    "alert_rules",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("is_enabled", sa.Integer, nullable=False),
    sa.Column("rule", sa.Text, nullable=False, comment="JSON: metric, filter, window, threshold, webhook"),
    sa.Column("secret", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("value", sa.Float, nullable=True),
    sa.Column("problem", sa.Text, nullable=True),
    sa.Column("checked_at", sa.BigInteger, nullable=True),
    sa.Column("changed_at", sa.BigInteger, nullable=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Index("alert_rules_project", "project"),
)

alert_deliveries = sa.Table(
    "alert_deliveries",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("alert_id", sa.Text, nullable=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("next_at", sa.BigInteger, nullable=False),
    sa.Column("error", sa.Text, nullable=True),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("ended_at", sa.BigInteger, nullable=True),
    sa.Column("lease_until", sa.BigInteger, nullable=True),
    sa.Index("alert_deliveries_due", "state", "next_at"),
    sa.Index("alert_deliveries_alert", "project", "alert_id", "created_at"),
)
_r, _d = alert_rules.c, alert_deliveries.c


@dataclass(slots=True)
class AlertRow:
    """A stored rule and what it found last. Instants in microseconds, the project internal."""

    id: str
    project: str
    name: str
    is_enabled: bool
    rule: Json
    secret: str
    created_at: int
    created_by: str
    state: str = QUIET
    value: float | None = None
    problem: str | None = None
    checked_at: int | None = None
    changed_at: int | None = None


@dataclass(slots=True)
class DeliveryRow:
    """One message about a rule; `body` is the exact text that is signed and sent."""

    id: str
    alert_id: str
    project: str
    event: str
    body: str
    created_at: int
    next_at: int
    state: str = PENDING
    attempts: int = 0
    error: str | None = None
    ended_at: int | None = None
    lease_until: int | None = None
    """Until then it is in the hands of one server."""


class Alerts:
    """The verbs of alerts. Projects are internal ids."""

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        self._executor = executor
        self.instance = instance or Instance()

    async def create(self, row: AlertRow, most: int) -> bool:
        """Store a new rule; false when the project has so many already."""
        count = sa.select(sa.func.count()).select_from(alert_rules).where(_r.project == row.project)

        def work(connection: sa.Connection) -> bool:
            if connection.execute(count).scalar_one() >= most:
                return False
            connection.execute(alert_rules.insert().values(_values(row)))
            return True

        return await self._executor.write(work)

    async def read(self, project: str, alert_id: str) -> AlertRow | None:
        """One rule."""
        found = await self._rules(sa.and_(_r.project == project, _r.id == alert_id))
        return found[0] if found else None

    async def of_project(self, project: str) -> list[AlertRow]:
        """The rules of a project, oldest first."""
        return await self._rules(_r.project == project)

    async def enabled(self) -> list[AlertRow]:
        """Every rule that is on."""
        return await self._rules(_r.is_enabled == 1)

    async def change(self, row: AlertRow) -> bool:
        """Replace name, rule, state and whether it is on; false for an unknown rule."""
        values = {key: value for key, value in _values(row).items() if key not in ("id", "project", "secret")}
        changed = alert_rules.update().where(_r.project == row.project, _r.id == row.id).values(values)
        return await self._executor.write(lambda connection: connection.execute(changed).rowcount > 0)

    async def delete(self, project: str, alert_id: str, user: str, at: int) -> bool:
        """Delete a rule and what waits to be delivered about it; false for an unknown rule."""

        def work(connection: sa.Connection) -> bool:
            one = sa.and_(_r.project == project, _r.id == alert_id)
            found = connection.execute(alert_rules.delete().where(one)).rowcount > 0
            if found:
                waiting = sa.and_(_d.alert_id == alert_id, _d.state == PENDING)
                connection.execute(alert_deliveries.delete().where(waiting))
                audit(connection, at, user, "alert.delete", project, {"id": alert_id})
            return found

        return await self._executor.write(work)

    async def found(self, row: AlertRow, delivery: DeliveryRow | None, before: str) -> None:
        """Note what a look at a rule found, with the message that it leads to, in one step.

        Nothing happens when the rule was changed or deleted meanwhile, or is not in the state `before` any more, as
        another server has told of its change.
        """
        same = sa.and_(_r.id == row.id, _r.rule == orjson.dumps(row.rule).decode(), _r.is_enabled == 1)
        same = sa.and_(same, _r.state == before)
        names = ("state", "value", "problem", "checked_at", "changed_at")
        noted = alert_rules.update().where(same).values({name: getattr(row, name) for name in names})

        def work(connection: sa.Connection) -> None:
            if connection.execute(noted).rowcount and delivery is not None:
                connection.execute(alert_deliveries.insert().values(_fields(delivery)))

        await self._executor.write(work)

    async def add_delivery(self, row: DeliveryRow) -> bool:
        """Let one more message wait; false when its rule was deleted meanwhile. Raises Busy when many wait."""
        rule = sa.select(_r.id).where(_r.project == row.project, _r.id == row.alert_id)
        waiting = sa.select(sa.func.count()).select_from(alert_deliveries)
        waiting = waiting.where(_d.alert_id == row.alert_id, _d.state == PENDING)

        def work(connection: sa.Connection) -> bool:
            if connection.execute(waiting).scalar_one() >= MOST_WAITING:
                raise Busy(f"{MOST_WAITING} messages of this alert wait to be delivered")
            known = connection.execute(rule).first() is not None
            if known:
                connection.execute(alert_deliveries.insert().values(_fields(row)))
            return known

        return await self._executor.write(work)

    async def due(self, now: int, limit: int) -> list[tuple[DeliveryRow, AlertRow]]:
        """Messages whose time has come, with their rules, oldest first: in the hands of this server for a while."""
        free = sa.or_(_d.lease_until.is_(None), _d.lease_until < database_time())
        chosen = sa.select(alert_deliveries).where(_d.state == PENDING, _d.next_at <= now, free).order_by(_d.next_at)
        chosen = chosen.limit(limit).with_for_update(skip_locked=True)
        until = database_time() + int(LEASE_SECONDS * SECOND)

        def work(connection: sa.Connection) -> list[tuple[DeliveryRow, AlertRow]]:
            found = []
            for row in connection.execute(chosen).all():
                rule = connection.execute(sa.select(alert_rules).where(_r.id == row.alert_id)).first()
                if rule is not None:
                    found.append((DeliveryRow(**row._mapping), _rule(rule)))
            taken = [delivery.id for delivery, _ in found]
            connection.execute(alert_deliveries.update().where(_d.id.in_(taken)).values(lease_until=until))
            return found

        return await self._executor.write(work)

    async def let_go(self) -> None:
        """Give back the messages that an earlier server had in its hands, where one server owns all."""
        if not self.instance.is_shared:
            change = alert_deliveries.update().where(_d.state == PENDING).values(lease_until=None)
            await self._executor.write(lambda connection: connection.execute(change).rowcount)

    async def next_due(self) -> int | None:
        """When the next message is to be sent, None when none waits."""
        time = sa.case((_d.lease_until > _d.next_at, _d.lease_until), else_=_d.next_at)
        first = sa.select(sa.func.min(time)).where(_d.state == PENDING)
        return await self._executor.read(lambda connection: connection.execute(first).scalar())

    async def count_waiting(self) -> int:
        """How many messages wait to be sent."""
        found = sa.select(sa.func.count()).select_from(alert_deliveries).where(_d.state == PENDING)
        return await self._executor.read(lambda connection: int(connection.execute(found).scalar_one()))

    async def tried(self, row: DeliveryRow) -> None:
        """Note how sending a message went; it is nobody's then."""
        names = ("state", "attempts", "next_at", "error", "ended_at")
        values = {name: getattr(row, name) for name in names} | {"lease_until": None}
        changed = alert_deliveries.update().where(_d.id == row.id).values(values)
        await self._executor.write(lambda connection: connection.execute(changed))

    async def deliveries(self, project: str, alert_id: str | None, limit: int, offset: int) -> list[DeliveryRow]:
        """Messages of a project (and rule), newest first."""
        chosen = sa.select(alert_deliveries).where(_d.project == project)
        if alert_id is not None:
            chosen = chosen.where(_d.alert_id == alert_id)
        chosen = chosen.order_by(_d.created_at.desc(), _d.id.desc()).limit(limit).offset(offset)
        return await self._executor.read(
            lambda connection: [DeliveryRow(**row._mapping) for row in connection.execute(chosen)]
        )

    async def forget_ended(self, before: int) -> int:
        """Remove messages that ended before an instant; returns how many."""
        old = alert_deliveries.delete().where(_d.state != PENDING, _d.ended_at < before)
        return await self._executor.write(lambda connection: connection.execute(old).rowcount)

    async def _rules(self, which: sa.ColumnElement[bool]) -> list[AlertRow]:
        chosen = sa.select(alert_rules).where(which).order_by(_r.created_at, _r.id)
        return await self._executor.read(lambda connection: [_rule(row) for row in connection.execute(chosen)])


def _fields(row: DeliveryRow) -> Json:
    return {name: getattr(row, name) for name in DeliveryRow.__slots__}


def _values(row: AlertRow) -> Json:
    values = {name: getattr(row, name) for name in AlertRow.__slots__}
    return values | {"rule": orjson.dumps(row.rule).decode(), "is_enabled": int(row.is_enabled)}


def _rule(row: sa.Row[Any]) -> AlertRow:
    return AlertRow(**dict(row._mapping) | {"rule": orjson.loads(row.rule), "is_enabled": bool(row.is_enabled)})


ALERT_TABLES: Sequence[sa.Table] = (alert_rules, alert_deliveries)
