"""Judges every alert rule now and then, and delivers its messages until they are taken or given up.

A change of state and its messages, one for each target, are stored together, so that each change is told once, also
after a crash: receivers of webhooks know a message that comes twice by its `webhook-id`. Webhooks are signed by
Standard Webhooks 1.0 (headers `webhook-id`, `webhook-timestamp`, `webhook-signature`): HMAC-SHA256 over
`id.timestamp.body`, with a secret that is shown once, when the rule is made.
"""

import logging
import operator
from collections.abc import Callable

from pydantic import ValidationError

from heddle.errors import HeddleError, NotFound
from heddle.jobs.runner import Attempt, Loop, Runner
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.coordination import FAILED, SUCCEEDED
from heddle.store.control.monitors import FIRING, LEASE_SECONDS, QUIET, AlertRow, DeliveryRow
from heddle.trace.alerts.rules import AlertRule, measure
from heddle.trace.alerts.targets import send, targets_of
from heddle.wire import jsontext, refs, times

logger = logging.getLogger("heddle.alerts")

ATTEMPTS = 12
FIRST_PAUSE, LONGEST_PAUSE = 5, 6 * 3600
"""Seconds between attempts: doubled each time, about a day in all."""
KEPT_DAYS = 30

_AT_ONCE = 20
_LOOKING = "alerts"
_IDLE_SECONDS = 60.0
_RETRY_SECONDS = 5.0
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


class Sender(Runner[DeliveryRow]):
    """Sends the messages of a queue, some at the same time."""

    logger = logger
    name = "alert"

    def __init__(self, settings: Settings, store: Store, count: Callable[[str], None]) -> None:
        """`count` is told the outcome of each attempt."""
        super().__init__(store.alert_deliveries, _AT_ONCE, LEASE_SECONDS)
        self._count = count
        self._settings = settings
        self._alerts = store.alerts
        self._rows = store.alert_deliveries

    async def start(self) -> None:
        """Take up what an earlier server had begun, where one owns all, and send."""
        await self._rows.put_back_all()
        await super().start()

    async def _next(self, is_full: bool) -> DeliveryRow | None:
        return None if is_full else await self._rows.take(times.now(), self._at_work)

    async def _rest(self) -> float:
        following = await self._rows.next_due()
        return _IDLE_SECONDS if following is None else max(0.0, (following - times.now()) / times.SECOND)

    async def _give_back(self, attempt: Attempt[DeliveryRow]) -> None:
        await self._rows.put_back(attempt.job, attempt.job.next_at)

    async def _failed(self, attempt: Attempt[DeliveryRow], error: Exception) -> float:
        self.logger.warning("how message %s went could not be stored: %s", attempt.job.id, error)
        await self._rows.put_back(attempt.job, times.now() + int(_RETRY_SECONDS * times.SECOND))
        return 0.0

    async def _work(self, attempt: Attempt[DeliveryRow]) -> None:
        delivery = attempt.job
        problem = await self._send(delivery)
        delivery.attempts += 1
        delivery.error = problem
        if problem is None:
            await self._rows.finish(delivery, SUCCEEDED, times.now())
            self._count("delivered")
        elif delivery.attempts >= ATTEMPTS:
            await self._rows.finish(delivery, FAILED, times.now())
            self._count("given_up")
            self.logger.warning("a message of alert %s was given up: %s", delivery.alert_id, problem)
        else:
            pause = min(FIRST_PAUSE * 2 ** (delivery.attempts - 1), LONGEST_PAUSE)
            await self._rows.put_back(delivery, times.now() + pause * times.SECOND)
            self._count("put_off")

    async def _send(self, delivery: DeliveryRow) -> str | None:
        row = await self._alerts.read(delivery.project, delivery.alert_id)
        target = targets_of(row.rule).get(delivery.target) if row is not None else None
        if row is None or target is None:
            return "the rule has this target no more"
        try:
            return await send(self._settings, row, target, delivery)
        except HeddleError as error:
            return error.reason


class AlertService:
    """The alerts of one server."""

    def __init__(self, settings: Settings, store: Store, count: Callable[[str], None]) -> None:
        """`count` is told the outcome of each attempt to deliver a message."""
        self._settings = settings
        self._store = store
        self._looking = Loop(self._look, logger, "alerts wait", settings.alert_interval)
        self._sender = Sender(settings, store, count)

    async def start(self) -> None:
        """Begin to look and to deliver."""
        self._looking.start()
        await self._sender.start()

    async def stop(self) -> None:
        """Stop; what waits is delivered after the next start."""
        await self._looking.stop()
        await self._sender.stop()

    def changed(self) -> None:
        """Look now: a rule was made or changed."""
        self._looking.wake()

    async def test(self, row: AlertRow, target: str | None = None) -> list[str]:
        """Put test messages about a rule into the queue, to one target or to all; returns their ids.

        Raises NotFound for a rule or a target that is gone.
        """
        messages = [found for found in _messages(row, "alert.test", times.now()) if target in (None, found.target)]
        if not messages:
            raise NotFound(f"Alert {row.id} has no target {(target or '')[:100]!r}")
        if not await self._store.alert_deliveries.add(messages):
            raise NotFound(f"Alert {row.id} not found")
        self._sender.wake()
        return [message.id for message in messages]

    async def _look(self) -> float:
        """Of several servers one looks, unless a rule was changed here."""
        if await self._store.leases.take(_LOOKING, self._settings.alert_interval) or self._looking.was_woken:
            await self.look(times.now())
            await self._store.alert_deliveries.forget_ended(times.now() - KEPT_DAYS * times.DAY)
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
                await self._store.alerts.save_check(row, (), row.state)

    async def _judge(self, row: AlertRow, now: int) -> None:
        rule = AlertRule.model_validate(row.rule)
        figure = await measure(self._store, row.project, rule, now)
        is_enough = rule.metric == "count" or figure.calls >= (rule.minimum_calls or 1)
        is_over = is_enough and figure.value is not None and _COMPARE[rule.operator](figure.value, rule.threshold)
        state = FIRING if is_over else QUIET
        row.value, row.problem, row.checked_at = figure.value, None, now
        messages, before = list[DeliveryRow](), row.state
        if state != row.state:
            row.state, row.changed_at = state, now
            messages = _messages(row, "alert.firing" if state == FIRING else "alert.resolved", now, figure.calls)
        await self._store.alerts.save_check(row, messages, before)
        if messages:
            self._sender.wake()


def _messages(row: AlertRow, event: str, now: int, calls: int | None = None) -> list[DeliveryRow]:
    """One message for each target of a rule."""
    rule = {key: value for key, value in row.rule.items() if key not in ("webhook_url", "targets")}
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
    return [
        DeliveryRow(
            id=f"msg_{times.uuid7()}",
            alert_id=row.id,
            project=row.project,
            event=event,
            body=text,
            created_at=now,
            next_at=now,
            target=target,
        )
        for target in targets_of(row.rule)
    ]
