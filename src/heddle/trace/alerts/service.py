"""Alerts: rules that watch a metric of calls over the time just past, judged now and then; their messages, delivered.

A change of state and its messages, one for each target, are stored together, so that each change is told once, also
after a crash: receivers of webhooks know a message that comes twice by its `webhook-id`. Webhooks are signed by
Standard Webhooks 1.0 (headers `webhook-id`, `webhook-timestamp`, `webhook-signature`): HMAC-SHA256 over
`id.timestamp.body`, with a secret that is shown once, when the rule is made.
"""

import logging
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, Self

import orjson
from pydantic import Field, ValidationError, model_validator

from heddle.errors import HeddleError, NotFound
from heddle.http.own_bodies import OwnCallsFilter, OwnReq
from heddle.http.routing import RequestModel, ResponseModel
from heddle.jobs.runner import Attempt, Loop, Runner
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.coordination import FAILED, SUCCEEDED
from heddle.store.control.feedback import Window
from heddle.store.control.monitors import FIRING, LEASE_SECONDS, QUIET, AlertRow, DeliveryRow
from heddle.store.control.objects import ObjectFilter
from heddle.trace.alerts.targets import Target, send, targets_of
from heddle.trace.calls.read import filter_of
from heddle.trace.feedback.models import RUNNABLE
from heddle.trace.stats import cost_of_sums
from heddle.wire import jsontext, refs, times
from heddle.wire.aggregates import CallAggregate, Measure, Value
from heddle.wire.batched import batched
from heddle.wire.buckets import percentile_of
from heddle.wire.calls import CallConditions, CallsQuery, Filter, UniformRun
from heddle.wire.means import mean
from heddle.wire.query import parse_query

Metric = Literal["count", "error_share", "cost", "p95_latency_ms", "score"]
Operator = Literal[">", ">=", "<", "<="]
Text = Annotated[str, Field(min_length=1, max_length=200)]
Receiver = Annotated[str, Field(max_length=320)]
MOST_SECONDS = 31 * 86_400


class AlertTarget(RequestModel):
    """Where messages of a rule go: a webhook of one's own, an incoming webhook of Slack, or mail.

    What it is shown with beside these may come back: the rule as it was read is what /alerts/update takes.
    """

    id: str | None = Field(default=None, pattern=r"^[a-z0-9]{1,40}$")
    """That of a target which is there already: an address of Slack may then be left out, and stays."""
    kind: Literal["webhook", "slack", "email"]
    url: Annotated[str, Field(min_length=1, max_length=2000)] | None = None
    to: list[Receiver] | None = Field(default=None, min_length=1, max_length=20)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.kind == "email") != (self.to is not None):
            raise ValueError("to is required for email targets and not allowed for others")
        if self.kind == "email" and self.url is not None:
            raise ValueError("url is not allowed for email targets")
        if self.kind != "email" and self.url is None and self.id is None:
            raise ValueError("url is required")
        return self


class AlertRule(RequestModel):
    """What is watched: a figure of the calls that a filter chooses, over the last `window_seconds`."""

    metric: Metric
    operator: Operator
    threshold: float
    window_seconds: int = Field(default=3600, ge=60, le=MOST_SECONDS)
    filter: CallConditions | None = None
    query: dict[str, Any] | None = None
    """A query as /calls/stream_query takes it."""
    scorer: Text | None = None
    """For `score`: the name of the scorer, as in feedback of type `wandb.runnable.<name>`."""
    score_path: str | None = Field(default=None, max_length=1000)
    """For `score`: dotted path of the number in the scorer's output; the whole output without."""
    minimum_calls: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """With fewer calls (or scores) in the window nothing is decided; 1 unless given, and not for `count`."""
    webhook_url: Annotated[str, Field(min_length=1, max_length=2000)] | None = None
    """Where signed messages go; there must be this or a target."""
    targets: list[AlertTarget] = Field(default_factory=list, max_length=10)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.webhook_url is None and not self.targets:
            raise ValueError("webhook_url or at least one target is required")
        if (self.metric == "score") != (self.scorer is not None):
            raise ValueError("scorer is required for the metric score and not allowed for others")
        if self.score_path is not None and self.scorer is None:
            raise ValueError("score_path requires scorer")
        if self.metric == "count" and self.minimum_calls is not None:
            raise ValueError("minimum_calls is not allowed for the metric count")
        if self.query is not None:
            parse_query(self.query)
        return self


class AlertCreateReq(AlertRule, extra="forbid"):
    """Body of /alerts/create."""

    project_id: str
    filter: OwnCallsFilter | None = None
    name: Text
    enabled: bool = True


class AlertUpdateReq(AlertCreateReq):
    """Body of /alerts/update: the whole rule anew; `after` is the digest that it must have until then."""

    id: str
    after: str | None = None


class AlertReq(OwnReq):
    """Names one rule."""

    id: str


class AlertsQueryReq(OwnReq):
    """Body of /alerts/query."""


class AlertDeliveriesReq(OwnReq):
    """Body of /alerts/deliveries/query."""

    id: str | None = None
    limit: int = Field(default=100, ge=0, le=1000)
    offset: int = Field(default=0, ge=0)


class AlertSchema(ResponseModel):
    """A rule and what it found last; instants are ISO 8601. The digest is of what /alerts/update replaces."""

    id: str
    digest: str
    project_id: str
    name: str
    enabled: bool
    rule: dict[str, Any]
    state: Literal["quiet", "firing"]
    value: float | None
    problem: str | None
    checked_at: str | None
    changed_at: str | None
    created_at: str
    created_by: str


class AlertCreateRes(ResponseModel):
    """The new rule, and once only the secret that its messages are signed with."""

    alert: AlertSchema
    secret: str


class AlertTestReq(AlertReq):
    """Body of /alerts/test; without a target, all of them."""

    target: str | None = None


class AlertRes(ResponseModel):
    """One rule."""

    alert: AlertSchema


class AlertsQueryRes(ResponseModel):
    """The rules of a project."""

    alerts: list[AlertSchema]


class AlertDeliverySchema(ResponseModel):
    """One message and how sending it went."""

    id: str
    alert_id: str
    event: Literal["alert.firing", "alert.resolved", "alert.test"]
    target: str
    """The id of the target; empty for `webhook_url`."""
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    next_at: str | None
    error: str | None
    created_at: str
    ended_at: str | None
    body: dict[str, Any]


class AlertDeliveriesRes(ResponseModel):
    """Messages, newest first."""

    deliveries: list[AlertDeliverySchema]


class AlertTestRes(ResponseModel):
    """The messages that were put into the queue: the first, and all."""

    delivery_id: str
    delivery_ids: list[str]


_TOKENS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_LATENCY = Value("latency_ms")


class Measurement(NamedTuple):
    """A figure and how many calls (or scores) it comes from; None where there is nothing to compute it from."""

    value: float | None
    calls: int


async def measure(store: Store, project: str, rule: AlertRule, now: int) -> Measurement:
    """The figure of a rule in a project (internal id) at an instant (microseconds).

    Calls count by when they started, scores by when they were given.
    """
    start = now - rule.window_seconds * 1_000_000
    query = CallsQuery(
        project, filter_of(rule.filter, project), None if rule.query is None else parse_query(rule.query)
    )
    if rule.metric == "score":
        return await _measure_score(store, query, rule, Window(start, now + 1, f"{RUNNABLE}.{rule.scorer}"))
    runs = [UniformRun(0, start, now + 1 - start, start, now + 1)]
    if rule.metric == "cost":
        return await _measure_cost(store, query, runs)
    measures = [Measure("calls"), Measure("failed", "sum", Value("error_count")), Measure("ended", "count", _LATENCY)]
    if rule.metric == "p95_latency_ms":
        measures.append(Measure("latencies", "values", _LATENCY))
    rows = await store.call_aggregates.aggregate(CallAggregate(query, measures, runs=runs))
    if not rows:
        return Measurement(0.0 if rule.metric == "count" else None, 0)
    values = rows[0].values
    if rule.metric == "count":
        return Measurement(float(values["calls"]), values["calls"])
    if rule.metric == "error_share":
        return Measurement(values["failed"] / values["ended"] if values["ended"] else None, values["ended"])
    ordered = values.get("latencies", [])
    return Measurement(percentile_of(ordered, 95.0), len(ordered))


async def _measure_cost(store: Store, query: CallsQuery, runs: Sequence[UniformRun]) -> Measurement:
    """Each token of whole traces once: SDKs repeat the usage of a call in those above it, which may be chosen alone."""
    measures = [Measure("calls"), *(Measure(name, "sum", Value(name)) for name in _TOKENS)]
    others = replace(query.filter, trace_ids=None, thread_ids=None, user_ids=None, run_ids=None)
    of = "totals" if others == Filter() and query.query is None else "usage"
    rows = await store.call_aggregates.aggregate(CallAggregate(query, measures, ("model",), runs, of))
    prices = await store.costs.project_rows(query.project)
    total = sum(cost_of_sums(prices, row.keys[0], row.values)["total_cost"] for row in rows)
    return Measurement(total, sum(row.values["calls"] for row in rows))


async def _measure_score(store: Store, query: CallsQuery, rule: AlertRule, window: Window) -> Measurement:
    """The mean of the scores that calls of the filter were given."""
    given: list[tuple[str, float]] = []
    path = rule.score_path.split(".") if rule.score_path else ()

    def take(row: Any) -> None:
        number = jsontext.follow(orjson.loads(row.payload).get("output"), path)
        if isinstance(number, int | float):
            given.append((row.weave_ref, float(number)))

    await store.feedback.scan(query.project, window, ("weave_ref", "payload"), take)
    if query.filter != Filter() or query.query is not None:
        chosen = await _find_chosen(store, query, [ref for ref, _ in given])
        given = [item for item in given if item[0] in chosen]
    return Measurement(mean(number for _, number in given) if given else None, len(given))


async def _find_chosen(store: Store, query: CallsQuery, targets: Sequence[str]) -> set[str]:
    """Which of the refs are calls that the query selects."""
    prefix = refs.call_ref(query.project, "")
    ids = [ref[len(prefix) :] for ref in dict.fromkeys(targets) if ref.startswith(prefix)]
    if query.filter.call_ids is not None:
        ids = [call_id for call_id in ids if call_id in query.filter.call_ids]
    found: set[str] = set()
    for some in batched(ids):
        part = replace(query.filter, call_ids=tuple(some))
        async for rows in store.calls.stream(CallsQuery(query.project, part, query.query)):
            found.update(refs.call_ref(query.project, row.id) for row in rows)
    return found


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
        following = None if self._is_shared else await self._rows.next_due()
        return _IDLE_SECONDS if following is None else max(0.0, (following - times.now()) / times.SECOND)

    async def _give_back(self, attempt: Attempt[DeliveryRow]) -> None:
        await self._rows.put_back(attempt.job, attempt.job.next_at)

    async def _failed(self, attempt: Attempt[DeliveryRow], error: Exception) -> float:
        self.logger.warning("the outcome of message %s could not be stored: %s", attempt.job.id, error)
        await self._rows.put_back(attempt.job, times.now() + int(_RETRY_SECONDS * times.SECOND))
        return 0.0

    async def _work(self, attempt: Attempt[DeliveryRow]) -> None:
        delivery = attempt.job
        row = await self._alerts.read(delivery.project, delivery.alert_id)
        target = targets_of(row.rule).get(delivery.target) if row is not None else None
        if row is None or target is None:
            delivery.error, is_last = "the rule has this target no more", True
        else:
            delivery.error = await self._send(row, target, delivery)
            delivery.attempts += 1
            is_last = delivery.attempts >= ATTEMPTS
        if delivery.error is None:
            await self._rows.finish(delivery, SUCCEEDED, times.now())
            self._count("delivered")
        elif is_last:
            await self._rows.finish(delivery, FAILED, times.now())
            self._count("given_up")
            self.logger.warning(
                "a message of alert %s was not delivered and will not be retried: %s", delivery.alert_id, delivery.error
            )
        else:
            pause = min(FIRST_PAUSE * 2 ** (delivery.attempts - 1), LONGEST_PAUSE)
            await self._rows.put_back(delivery, times.now() + pause * times.SECOND)
            self._count("put_off")

    async def _send(self, row: AlertRow, target: Target, delivery: DeliveryRow) -> str | None:
        try:
            return await send(self._settings, row, target, delivery)
        except HeddleError as error:
            return error.reason
        except Exception:  # a fault of ours: the log gets the traceback, the message counts its attempt
            self.logger.exception("message %s could not be sent", delivery.id)
            return "Internal server error"


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
                row.problem = error.reason if isinstance(error, HeddleError) else "the stored rule is not valid"
                row.checked_at = now
                logger.warning("alert %s cannot be evaluated: %s", row.name, row.problem)
                await self._store.alerts.save_check(row, (), row.state)

    async def _judge(self, row: AlertRow, now: int) -> None:
        rule = AlertRule.model_validate(row.rule)
        figure = await measure(self._store, row.project, rule, now)
        is_enough = rule.metric == "count" or figure.calls >= (rule.minimum_calls or 1)
        is_over = is_enough and figure.value is not None and _COMPARE[rule.operator](figure.value, rule.threshold)
        state = FIRING if is_over else QUIET
        is_lost = rule.scorer is not None and not is_enough and await self._is_deleted(row.project, rule.scorer)
        row.problem = f"the scorer {rule.scorer} was deleted" if is_lost else None
        row.value, row.checked_at = figure.value, now
        messages, before = list[DeliveryRow](), row.state
        if state != row.state:
            row.state, row.changed_at = state, now
            messages = _messages(row, "alert.firing" if state == FIRING else "alert.resolved", now, figure.calls)
        await self._store.alerts.save_check(row, messages, before)
        if messages:
            self._sender.wake()

    async def _is_deleted(self, project: str, scorer: str) -> bool:
        """True for a scorer that was there; clients also give scores of scorers that were never stored."""
        found = await self._store.objects.read(project, scorer, "v0", with_value=False)
        if found is None or found.deleted_at is None:
            return False
        return not await self._store.objects.query(project, ObjectFilter(object_ids=(scorer,)), 1)


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
