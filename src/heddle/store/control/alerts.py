"""Alert rules, what each found last, and the messages that are to be delivered about them."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from heddle.errors import Busy
from heddle.store.control.leases import SECOND, database_time
from heddle.store.control.mapping import Integer, Key, Mapped, Repository
from heddle.store.control.projects import audit

QUIET, FIRING = "quiet", "firing"
PENDING, DELIVERED, FAILED = "pending", "delivered", "failed"
MOST_WAITING = 20
LEASE_SECONDS = 60.0
"""Longer than a message takes to be sent."""


@dataclass(slots=True, kw_only=True)
class AlertRow:
    """A stored rule and what it found last. Instants in microseconds, the project internal."""

    id: Key[str]
    project: str
    name: str
    is_enabled: bool
    rule: dict[str, Any]
    """Metric, filter, window, threshold, webhook."""
    secret: str
    state: str = QUIET
    value: float | None = None
    problem: str | None = None
    checked_at: int | None = None
    changed_at: int | None = None
    created_at: int
    created_by: str


@dataclass(slots=True, kw_only=True)
class DeliveryRow:
    """One message about a rule; `body` is the exact text that is signed and sent."""

    id: Key[str]
    alert_id: str
    project: str
    event: str
    body: str
    state: str = PENDING
    attempts: Integer = 0
    next_at: int
    error: str | None = None
    created_at: int
    ended_at: int | None = None
    lease_until: int | None = None
    """Until then it is in the hands of one server."""


_rules = Mapped(AlertRow, "alert_rules", sa.Index("alert_rules_project", "project"))
_deliveries = Mapped(
    DeliveryRow,
    "alert_deliveries",
    sa.Index("alert_deliveries_due", "state", "next_at"),
    sa.Index("alert_deliveries_alert", "project", "alert_id", "created_at"),
)
alert_rules, alert_deliveries = _rules.table, _deliveries.table
ALERT_TABLES = (alert_rules, alert_deliveries)
_r, _d = alert_rules.c, alert_deliveries.c


class Alerts(Repository):
    """The verbs of alerts. Projects are internal ids."""

    async def create(self, row: AlertRow, most: int) -> bool:
        """Store a new rule; false when the project has so many already."""
        count = sa.select(sa.func.count()).select_from(alert_rules).where(_r.project == row.project)

        def work(connection: sa.Connection) -> bool:
            is_free = bool(connection.execute(count).scalar_one() < most)
            if is_free:
                _rules.insert(connection, row)
            return is_free

        return await self._executor.write(work)

    async def read(self, project: str, alert_id: str) -> AlertRow | None:
        """One rule."""
        return await self._first(_rules, _r.project == project, _r.id == alert_id)

    async def of_project(self, project: str) -> list[AlertRow]:
        """The rules of a project, oldest first."""
        return await self._all(_rules, _rules.select(_r.project == project).order_by(_r.created_at, _r.id))

    async def enabled(self) -> list[AlertRow]:
        """Every rule that is on, oldest first."""
        return await self._all(_rules, _rules.select(_r.is_enabled == 1).order_by(_r.created_at, _r.id))

    async def change(self, row: AlertRow) -> bool:
        """Replace name, rule, state and whether it is on; false for an unknown rule."""
        values = {key: value for key, value in _rules.values(row).items() if key not in ("id", "project", "secret")}
        changed = alert_rules.update().where(_r.project == row.project, _r.id == row.id).values(values)
        return await self._execute(changed) > 0

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
        same = sa.and_(_r.id == row.id, _r.rule == row.rule, _r.is_enabled == 1, _r.state == before)
        names = ("state", "value", "problem", "checked_at", "changed_at")
        noted = alert_rules.update().where(same).values({name: getattr(row, name) for name in names})

        def work(connection: sa.Connection) -> None:
            if connection.execute(noted).rowcount and delivery is not None:
                _deliveries.insert(connection, delivery)

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
                _deliveries.insert(connection, row)
            return known

        return await self._executor.write(work)

    async def due(self, now: int, limit: int) -> list[tuple[DeliveryRow, AlertRow]]:
        """Messages whose time has come, with their rules, oldest first: in the hands of this server for a while."""
        free = sa.or_(_d.lease_until.is_(None), _d.lease_until < database_time())
        chosen = _deliveries.select(_d.state == PENDING, _d.next_at <= now, free).order_by(_d.next_at)
        chosen = chosen.limit(limit).with_for_update(skip_locked=True)
        until = database_time() + int(LEASE_SECONDS * SECOND)

        def work(connection: sa.Connection) -> list[tuple[DeliveryRow, AlertRow]]:
            found = []
            for row in _deliveries.all(connection, chosen):
                rule = _rules.first(connection, _rules.select(_r.id == row.alert_id))
                if rule is not None:
                    found.append((row, rule))
            taken = [delivery.id for delivery, _ in found]
            connection.execute(alert_deliveries.update().where(_d.id.in_(taken)).values(lease_until=until))
            return found

        return await self._executor.write(work)

    async def let_go(self) -> None:
        """Give back the messages that an earlier server had in its hands, where one server owns all."""
        if not self.instance.is_shared:
            await self._execute(alert_deliveries.update().where(_d.state == PENDING).values(lease_until=None))

    async def next_due(self) -> int | None:
        """When the next message is to be sent, None when none waits."""
        time = sa.case((_d.lease_until > _d.next_at, _d.lease_until), else_=_d.next_at)
        return await self._scalar(sa.select(sa.func.min(time)).where(_d.state == PENDING))

    async def count_waiting(self) -> int:
        """How many messages wait to be sent."""
        return await self._count(alert_deliveries, _d.state == PENDING)

    async def tried(self, row: DeliveryRow) -> None:
        """Note how sending a message went; it is nobody's then."""
        names = ("state", "attempts", "next_at", "error", "ended_at")
        values = {name: getattr(row, name) for name in names} | {"lease_until": None}
        await self._execute(alert_deliveries.update().where(_d.id == row.id).values(values))

    async def deliveries(self, project: str, alert_id: str | None, limit: int, offset: int) -> list[DeliveryRow]:
        """Messages of a project (and rule), newest first."""
        chosen = _deliveries.select(_d.project == project)
        if alert_id is not None:
            chosen = chosen.where(_d.alert_id == alert_id)
        chosen = chosen.order_by(_d.created_at.desc(), _d.id.desc()).limit(limit).offset(offset)
        return await self._all(_deliveries, chosen)

    async def forget_ended(self, before: int) -> int:
        """Remove messages that ended before an instant; returns how many."""
        return await self._execute(alert_deliveries.delete().where(_d.state != PENDING, _d.ended_at < before))
