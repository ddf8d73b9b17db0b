"""What waits for a monitor; alert rules, what each found last, and the messages that are to be delivered about them."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import sqlalchemy as sa

from heddle.errors import Busy
from heddle.store.control.audit import audit
from heddle.store.control.coordination import MONITORS, NO_LEASE, NOW, QUEUED, RUNNING, JobQueue, changes_of, is_others
from heddle.store.control.pending_calls import ended_calls
from heddle.store.control.repository import Integer, Key, Mapped, Question, Repository, writes


@dataclass(frozen=True, slots=True)
class Waiting:
    """The newest call of a trace or thread (`group_key`), and when its time has come. Instants in microseconds."""

    project: Key[str]
    monitor: Key[str]
    group_key: Key[str]
    call_id: str
    due_at: int


_waiting = Mapped(Waiting, "monitor_waiting", sa.Index("monitor_waiting_due", "due_at"))
monitor_waiting = _waiting.table
_c = monitor_waiting.c
_NEXT_WAITING = sa.select(sa.func.min(_c.due_at))
TURN = "monitors"
"""The name that the server has which handles calls for monitors."""
_IS_ANY = sa.or_(sa.exists().where(_c.due_at <= NOW), sa.exists(sa.select(ended_calls.c.seq)))
_NEWS = Question(changes_of(MONITORS), is_others(TURN), _IS_ANY)


class News(NamedTuple):
    """What a server that shares the tables sees of monitors."""

    changes: int
    is_others_turn: bool
    is_any: bool
    """Calls ended, or have waited long enough."""


class MonitorWaits(Repository):
    """The verbs of waiting calls. Project ids are internal, `monitor` is an object's name."""

    async def put(self, rows: Sequence[Waiting], check: Callable[[sa.Connection], None]) -> None:
        """Let calls wait, unless `check` raises; a later call of the same group takes the place of the one before."""

        def work(connection: sa.Connection) -> None:
            check(connection)
            for row in rows:
                connection.execute(monitor_waiting.delete().where(_one(row)))
                _waiting.insert(connection, row)

        await self._executor.write(work, 200 * len(rows))

    async def due(self, now: int, limit: int) -> list[Waiting]:
        """Those whose time has come, oldest first."""
        return await self._all(_waiting, _waiting.select(_c.due_at <= now).order_by(_c.due_at).limit(limit))

    async def look(self, now: int) -> News:
        """What there is for monitors to do."""
        changes, is_others_turn, is_any = await self.instance.looks.ask(
            self._executor, _NEWS, now=now, me=self.instance.owner
        )
        return News(changes or 0, bool(is_others_turn), bool(is_any))

    async def next_due(self) -> int | None:
        """When the next one's time comes, None when none waits."""
        return await self._scalar(_NEXT_WAITING)

    @writes
    def remove(self, connection: sa.Connection, rows: Sequence[Waiting]) -> None:
        """Forget these, unless a later call, or the same one that ended again, has taken their place."""
        for row in rows:
            same = (_c.call_id == row.call_id, _c.due_at == row.due_at)
            connection.execute(monitor_waiting.delete().where(_one(row), *same))


def _one(row: Waiting) -> sa.ColumnElement[bool]:
    return sa.and_(_c.project == row.project, _c.monitor == row.monitor, _c.group_key == row.group_key)


QUIET, FIRING = "quiet", "firing"
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
    """Metric, filter, window, threshold, targets."""
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
    """One message about a rule to one of its targets, a job of a queue.

    `body` is the exact text of webhooks; that of a mail has `to` once the server took it for some: the others.
    """

    id: Key[str]
    alert_id: str
    project: str
    event: str
    body: str
    state: str = QUEUED
    attempts: Integer = 0
    next_at: int
    error: str | None = None
    created_at: int
    ended_at: int | None = None
    lease_until: int | None = None
    lease_owner: str | None = None
    started_at: int | None = None
    cancel_asked: Annotated[bool, sa.text("0")] = False
    target: Annotated[str, sa.text("''")] = ""
    """The id of the target in the rule; empty for its `webhook_url`."""


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
_UNCHANGED = sa.and_(
    _r.id == sa.bindparam("of"),
    _r.rule == sa.bindparam("judged", type_=_r.rule.type),
    _r.is_enabled == 1,
    _r.state == sa.bindparam("before"),
)
_NOTE_CHECK = alert_rules.update().where(_UNCHANGED)
_NEXT_DELIVERY = sa.select(sa.func.min(_d.next_at)).where(_d.state == QUEUED)


class Alerts(Repository):
    """The verbs of alerts. Projects are internal ids."""

    @writes
    def create(self, connection: sa.Connection, row: AlertRow, most: int) -> bool:
        """Store a new rule; false when the project has so many already."""
        count = sa.select(sa.func.count()).select_from(alert_rules).where(_r.project == row.project)
        is_free = connection.execute(count).scalar_one() < most
        if is_free:
            _rules.insert(connection, row)
        return is_free

    async def read(self, project: str, alert_id: str) -> AlertRow | None:
        """One rule."""
        return await self._first(_rules, _r.project == project, _r.id == alert_id)

    async def of_project(self, project: str) -> list[AlertRow]:
        """The rules of a project, oldest first."""
        return await self._all(_rules, _rules.select(_r.project == project).order_by(_r.created_at, _r.id))

    async def count_states(self) -> dict[tuple[str, ...], float]:
        """How many rules that are enabled are in each state; those that cannot be judged count as `problem`."""
        state = sa.case((_r.problem.is_not(None), "problem"), else_=_r.state)
        counts = sa.select(state, sa.func.count()).where(_r.is_enabled == 1).group_by(state)
        return dict.fromkeys([(QUIET,), (FIRING,), ("problem",)], 0.0) | {
            (state,): count for state, count in await self._tuples(counts)
        }

    async def enabled(self) -> list[AlertRow]:
        """Every rule that is on, oldest first."""
        return await self._all(_rules, _rules.select(_r.is_enabled == 1).order_by(_r.created_at, _r.id))

    async def change(self, row: AlertRow, before: AlertRow | None = None) -> bool:
        """Replace name, rule, state and whether it is on; false for an unknown rule, or one that is not as `before`."""
        values = {key: value for key, value in _rules.values(row).items() if key not in ("id", "project", "secret")}
        changed = alert_rules.update().where(_r.project == row.project, _r.id == row.id)
        if before is not None:
            read = _rules.values(before)
            changed = changed.where(*(_r[key] == read[key] for key in ("name", "is_enabled", "rule")))
        return await self._execute(changed.values(values)) > 0

    @writes
    def delete(self, connection: sa.Connection, project: str, alert_id: str, user: str, at: int) -> bool:
        """Delete a rule and what waits to be delivered about it; false for an unknown rule."""
        one = sa.and_(_r.project == project, _r.id == alert_id)
        found = connection.execute(alert_rules.delete().where(one)).rowcount > 0
        if found:
            connection.execute(alert_deliveries.delete().where(_d.alert_id == alert_id, _d.ended_at.is_(None)))
            audit(connection, at, user, "alert.delete", project, {"id": alert_id})
        return found

    @writes
    def save_check(
        self, connection: sa.Connection, row: AlertRow, messages: Sequence[DeliveryRow], before: str
    ) -> None:
        """Note what a look at a rule found, with the messages that it leads to, in one step.

        Nothing happens when the rule was changed or deleted meanwhile, or is not in the state `before` any more, as
        another server has told of its change.
        """
        names = ("state", "value", "problem", "checked_at", "changed_at")
        noted = {name: getattr(row, name) for name in names}
        if connection.execute(_NOTE_CHECK, noted | {"of": row.id, "judged": row.rule, "before": before}).rowcount:
            for message in messages:
                _deliveries.insert(connection, message)


class Deliveries(JobQueue[DeliveryRow]):
    """The queue of messages about rules, as one server works on it."""

    jobs = _deliveries
    ready = _d.next_at <= NOW

    @writes
    def add(self, connection: sa.Connection, rows: Sequence[DeliveryRow]) -> bool:
        """Let more messages of one rule wait; false when it was deleted meanwhile. Raises Busy when many wait."""
        first = rows[0]
        rule = sa.select(_r.id).where(_r.project == first.project, _r.id == first.alert_id)
        waiting = sa.select(sa.func.count()).select_from(alert_deliveries)
        waiting = waiting.where(_d.alert_id == first.alert_id, _d.ended_at.is_(None))
        if connection.execute(waiting).scalar_one() + len(rows) > MOST_WAITING:
            raise Busy(f"{MOST_WAITING} messages of this alert are waiting for delivery")
        known = connection.execute(rule).first() is not None
        for row in rows if known else ():
            _deliveries.insert(connection, row)
        return known

    async def take(self, now: int, held: Collection[str] = ()) -> DeliveryRow | None:
        """Begin to send the message of the project, and there of the target, to which the fewest are being sent."""
        return await self._executor.write(
            lambda connection: self._take(connection, self._next, now, LEASE_SECONDS, held=list(held))
        )

    @cached_property
    def _next(self) -> sa.Select[Any]:
        other = alert_deliveries.alias()
        at_work = sa.select(sa.func.count()).where(other.c.state == RUNNING, other.c.project == _d.project)
        same = at_work.where(other.c.alert_id == _d.alert_id, other.c.target == _d.target)
        order = (at_work.scalar_subquery(), same.scalar_subquery(), _d.next_at)
        return self._select_free(self.ready, order_by=order)

    async def put_back(self, row: DeliveryRow, next_at: int) -> None:
        """Let a message of this server wait again, with what it knows of its attempts."""
        changes = {"state": QUEUED, "attempts": row.attempts, "error": row.error, "next_at": next_at, **NO_LEASE}
        await self._set([row.id], {**changes, "body": row.body})

    async def finish(self, row: DeliveryRow, state: str, at: int) -> None:
        """End a message of this server: it was taken, or is given up."""
        changes = {"state": state, "attempts": row.attempts, "error": row.error, "ended_at": at, **NO_LEASE}
        await self._set([row.id], changes)

    async def next_due(self) -> int | None:
        """When the next message is to be sent, None when none waits."""
        return await self._scalar(_NEXT_DELIVERY)

    async def count_waiting(self) -> int:
        """How many messages wait to be sent."""
        return await self._count(alert_deliveries, _d.ended_at.is_(None))

    async def query(self, project: str, alert_id: str | None, limit: int, offset: int) -> list[DeliveryRow]:
        """Messages of a project (and rule), newest first."""
        chosen = _deliveries.select(_d.project == project)
        if alert_id is not None:
            chosen = chosen.where(_d.alert_id == alert_id)
        chosen = chosen.order_by(_d.created_at.desc(), _d.id.desc()).limit(limit).offset(offset)
        return await self._all(_deliveries, chosen)

    async def forget_ended(self, before: int) -> int:
        """Remove messages that ended before an instant; returns how many."""
        return await self._execute(alert_deliveries.delete().where(_d.ended_at < before))
