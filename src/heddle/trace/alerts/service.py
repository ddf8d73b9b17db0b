"""Looks at every rule now and then, and delivers what is to be told until it is taken or given up.

A change of state and its message are stored together, so that each change is told once, also after a crash: receivers
know a message that comes twice by its `webhook-id`.
"""

import asyncio
import logging
import operator
from collections.abc import Callable

from pydantic import ValidationError

from heddle.errors import HeddleError, NotFound
from heddle.loops import Loop
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.alerts import DELIVERED, FAILED, FIRING, QUIET, AlertRow, DeliveryRow
from heddle.trace.alerts import webhook
from heddle.trace.alerts.figures import measure
from heddle.trace.alerts.models import AlertRule
from heddle.wire import ids, jsontext, refs, times

logger = logging.getLogger("heddle.alerts")

ATTEMPTS = 12
FIRST_PAUSE, LONGEST_PAUSE = 5, 6 * 3600
"""Seconds between attempts: doubled each time, about a day in all."""
KEPT_DAYS = 30

_BATCH = 50
_LOOKING = "alerts"
_LOOK_SECONDS = 5.0
"""How often messages are looked for that another server left."""
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class AlertService:
    """The alerts of one server."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._looking = Loop(self._look, logger, "alerts wait", settings.alert_interval)
        self._sending = Loop(self._send, logger, "messages of alerts wait", 60.0)

    async def start(self) -> None:
        """Begin to look and to deliver."""
        await self._store.alerts.let_go()
        self._looking.start()
        self._sending.start()

    async def stop(self) -> None:
        """Stop; what waits is delivered after the next start."""
        await self._looking.stop()
        await self._sending.stop()

    def changed(self) -> None:
        """Look now: a rule was made or changed."""
        self._looking.wake()

    async def test(self, row: AlertRow) -> str:
        """Put a test message about a rule into the queue; returns its id. Raises NotFound for a rule that is gone."""
        delivery = _delivery(row, "alert.test", times.now())
        if not await self._store.alerts.add_delivery(delivery):
            raise NotFound(f"Alert {row.id} not found")
        self._sending.wake()
        return delivery.id

    async def _look(self) -> float:
        """Of several servers one looks, unless a rule was changed here."""
        if await self._store.leases.take(_LOOKING, self._settings.alert_interval) or self._looking.was_woken:
            await self.look(times.now())
            await self._store.alerts.forget_ended(times.now() - KEPT_DAYS * times.DAY)
        return self._settings.alert_interval

    async def look(self, now: int) -> None:
        """Look at every rule once."""
        for row in await self._store.alerts.enabled():
            try:
                await self._judge(row, now)
            except (HeddleError, ValidationError) as error:
                row.problem = error.reason if isinstance(error, HeddleError) else "the rule is none"
                row.checked_at = now
                logger.warning("alert %s cannot be judged: %s", row.name, row.problem)
                await self._store.alerts.found(row, None, row.state)

    async def _judge(self, row: AlertRow, now: int) -> None:
        rule = AlertRule.model_validate(row.rule)
        figure = await measure(self._store, row.project, rule, now)
        is_enough = rule.metric == "count" or figure.calls >= (rule.minimum_calls or 1)
        is_over = is_enough and figure.value is not None and _COMPARE[rule.operator](figure.value, rule.threshold)
        state = FIRING if is_over else QUIET
        row.value, row.problem, row.checked_at = figure.value, None, now
        delivery, before = None, row.state
        if state != row.state:
            row.state, row.changed_at = state, now
            delivery = _delivery(row, "alert.firing" if state == FIRING else "alert.resolved", now, figure.calls)
        await self._store.alerts.found(row, delivery, before)
        if delivery is not None:
            self._sending.wake()

    async def _send(self) -> float | None:
        due = await self._store.alerts.due(times.now(), _BATCH)
        await asyncio.gather(*(self._deliver(delivery, row) for delivery, row in due))
        following = await self._store.alerts.next_due()
        pause = None if following is None else max(0.0, (following - times.now()) / times.SECOND)
        if self._store.alerts.instance.is_shared:
            return min(_LOOK_SECONDS, _LOOK_SECONDS if pause is None else pause)
        return pause

    async def _deliver(self, delivery: DeliveryRow, row: AlertRow) -> None:
        now = times.now()
        url = str(row.rule["webhook_url"])
        try:
            webhook.check_address(url, self._settings.alert_webhooks)
            problem = await webhook.send(url, row.secret, delivery.id, now // times.SECOND, delivery.body)
        except HeddleError as error:
            problem = error.reason
        delivery.attempts += 1
        delivery.error = problem
        if problem is None:
            delivery.state, delivery.ended_at = DELIVERED, now
        elif delivery.attempts >= ATTEMPTS:
            delivery.state, delivery.ended_at = FAILED, now
            logger.warning("a message of alert %s was given up: %s", row.name, problem)
        else:
            pause = min(FIRST_PAUSE * 2 ** (delivery.attempts - 1), LONGEST_PAUSE)
            delivery.next_at = times.now() + pause * times.SECOND
        await self._store.alerts.tried(delivery)


def _delivery(row: AlertRow, event: str, now: int, calls: int | None = None) -> DeliveryRow:
    rule = {key: value for key, value in row.rule.items() if key != "webhook_url"}
    data = {
        "alert_id": row.id,
        "project_id": refs.external_project(row.project),
        "name": row.name,
        "state": row.state,
        "value": row.value,
        "calls": calls,
        "rule": rule,
    }
    body = {"type": event, "timestamp": times.to_iso(now), "data": data}
    text = refs.convert_out(jsontext.dumps_bytes(body)).decode()
    return DeliveryRow(
        id=f"msg_{ids.uuid7()}",
        alert_id=row.id,
        project=row.project,
        event=event,
        body=text,
        created_at=now,
        next_at=now,
    )
