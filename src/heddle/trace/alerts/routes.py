"""The alert routes: rules, what they found, and the messages about them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import orjson
from fastapi import Depends, Response

from heddle.auth import Caller, Scope
from heddle.errors import Conflict, InvalidRequest, NotFound
from heddle.http.routing import (
    Deleter,
    Empty,
    Reader,
    Service,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    describe_row,
    group,
)
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.coordination import SUCCEEDED
from heddle.store.control.monitors import QUIET, AlertRow, DeliveryRow
from heddle.store.secrets import Secrets
from heddle.trace.alerts import targets
from heddle.trace.alerts.service import (
    AlertCreateReq,
    AlertCreateRes,
    AlertDeliveriesReq,
    AlertDeliveriesRes,
    AlertDeliverySchema,
    AlertReq,
    AlertRes,
    AlertRule,
    AlertSchema,
    AlertService,
    AlertsQueryReq,
    AlertsQueryRes,
    AlertTarget,
    AlertTestReq,
    AlertTestRes,
    AlertUpdateReq,
)
from heddle.trace.calls.read import filter_of
from heddle.wire import jsontext, query, refs, times
from heddle.wire.call_fields import resolve_field
from heddle.wire.jsontypes import Json

MOST_RULES = 100
AlertsDep = Annotated[AlertService, Depends(Service("alerts"))]
router = group("Alerts")


@router.post("/alerts/create", response_model=AlertCreateRes)
async def alert_create(
    body: AlertCreateReq, caller: Writer, settings: SettingsDep, store: StoreDep, alerts: AlertsDep
) -> Response:
    """Make a rule; the answer alone shows the secret that its messages are signed with."""
    caller = caller.require(Scope.READ)
    project = caller.open(body.project_id)
    body.name = await store.redaction.value(project, body.name)
    alert_id, secret = times.uuid7(), targets.create_secret()
    rule = _checked(body, alert_id, project, settings)
    row = AlertRow(
        id=alert_id,
        project=project,
        name=body.name,
        is_enabled=body.enabled,
        rule=rule,
        secret=Secrets(settings).protect(secret, f"alert {alert_id}"),
        created_at=times.now(),
        created_by=caller.user,
    )
    if not await store.alerts.create(row, MOST_RULES):
        raise InvalidRequest(f"A project can have at most {MOST_RULES} alerts")
    alerts.changed()
    return answer({"alert": _describe(row, settings), "secret": secret})


@router.post("/alerts/query", response_model=AlertsQueryRes)
async def alerts_query(body: AlertsQueryReq, caller: Reader, settings: SettingsDep, store: StoreDep) -> Response:
    """The rules of a project and what each found last."""
    rows = await store.alerts.of_project(caller.open(body.project_id))
    return answer({"alerts": [_describe(row, settings) for row in rows]})


@router.post("/alerts/update", response_model=AlertRes)
async def alert_update(
    body: AlertUpdateReq, caller: Writer, settings: SettingsDep, store: StoreDep, alerts: AlertsDep
) -> Response:
    """Replace a rule; its secret stays, and it begins quiet. With `after`, 409 where others have changed it."""
    caller = caller.require(Scope.READ)
    before = await _find(body.project_id, body.id, caller, store)
    row = replace(before, name=await store.redaction.value(before.project, body.name), is_enabled=body.enabled)
    row.rule = _checked(body, row.id, row.project, settings, targets.targets_of(row.rule))
    row.state, row.value, row.problem, row.checked_at, row.changed_at = QUIET, None, None, None, times.now()
    if body.after is None:
        if not await store.alerts.change(row):
            raise NotFound(f"Alert {body.id[:100]} not found")
    elif body.after != _digest(before) or not await store.alerts.change(row, before):
        raise Conflict(f"The alert {before.name} has been changed or deleted since")
    alerts.changed()
    return answer({"alert": _describe(row, settings)})


@router.post("/alerts/delete", response_model=Empty)
async def alert_delete(body: AlertReq, caller: Deleter, store: StoreDep) -> Response:
    """Delete a rule, and the messages about it that were not sent yet."""
    project = caller.open(body.project_id)
    if not await store.alerts.delete(project, body.id, caller.user, times.now()):
        raise NotFound(f"Alert {body.id[:100]} not found")
    return answer({})


@router.post("/alerts/test", response_model=AlertTestRes)
async def alert_test(body: AlertTestReq, caller: Writer, store: StoreDep, alerts: AlertsDep) -> Response:
    """Send a test message to a target of a rule, or to all."""
    caller = caller.require(Scope.READ)
    row = await _find(body.project_id, body.id, caller, store)
    ids = await alerts.test(row, body.target)
    return answer({"delivery_id": ids[0], "delivery_ids": ids})


@router.post("/alerts/deliveries/query", response_model=AlertDeliveriesRes)
async def alert_deliveries(body: AlertDeliveriesReq, caller: Reader, store: StoreDep) -> Response:
    """The messages of a project or of one rule, newest first, and how sending them went; kept for 30 days."""
    project = caller.open(body.project_id)
    rows = await store.alert_deliveries.query(project, body.id, body.limit, body.offset)
    return answer({"deliveries": [_describe_delivery(row) for row in rows]})


def _checked(
    body: AlertCreateReq, alert_id: str, project: str, settings: Settings, before: Mapping[str, targets.Target] = {}
) -> Json:
    """The rule as it is stored; raises InvalidRequest for what could never be judged or sent."""
    if body.webhook_url is not None:
        targets.check_webhook_address(body.webhook_url, settings.alert_webhooks, "webhook_url")
    filter_of(body.filter, project)
    if body.query is not None:
        for field in query.fields(query.parse_query(body.query)):
            resolve_field(field)
    rule = body.model_dump(mode="json", include=set(AlertRule.model_fields) - {"targets"})
    if body.targets:
        rule["targets"] = [
            _target(target, f"targets[{number}].url", alert_id, settings, before)
            for number, target in enumerate(body.targets)
        ]
        if len({target["id"] for target in rule["targets"]}) < len(body.targets):
            raise InvalidRequest("targets: the ids must be unique", param="targets")
    # As the store gives it back: a change is told from the rule's text.
    stored: Json = orjson.loads(jsontext.dumps_bytes(rule))
    return stored


def _target(
    target: AlertTarget, field: str, alert_id: str, settings: Settings, before: Mapping[str, targets.Target]
) -> Json:
    known = before.get(target.id or "?", {})
    made: Json = {"id": target.id or times.uuid7().replace("-", ""), "kind": target.kind}
    if target.to is not None:
        targets.check_receivers(target.to, settings)
        return made | {"to": target.to}
    if target.url is None:
        if known.get("kind") != "slack" or target.kind != "slack":
            raise InvalidRequest(f"{field} is required: the rule has no Slack target {target.id!r}", param="targets")
        return dict(known)
    targets.check_webhook_address(target.url, settings.alert_webhooks, field)
    if target.kind == "webhook":
        return made | {"url": target.url}
    return made | targets.seal_url(target.url, settings, alert_id, made["id"])


async def _find(project_id: str, alert_id: str, caller: Caller, store: Store) -> AlertRow:
    row = await store.alerts.read(caller.open(project_id), alert_id)
    if row is None:
        raise NotFound(f"Alert {alert_id[:100]} not found")
    return row


def _describe(row: AlertRow, settings: Settings) -> Json:
    rule = dict(row.rule)
    if "targets" in rule:
        rule["targets"] = [
            {name: value for name, value in target.items() if name != "url" or target["kind"] != "slack"}
            for target in rule["targets"]
        ]
    project = refs.external_project(row.project)
    problem = row.problem or targets.find_problem(row.rule, settings)
    more = {"project_id": project, "enabled": row.is_enabled, "rule": rule, "problem": problem, "digest": _digest(row)}
    return describe_row(AlertSchema, row, **more)


def _digest(row: AlertRow) -> str:
    return refs.value_digest({"name": row.name, "enabled": row.is_enabled, "rule": row.rule})


def _describe_delivery(row: DeliveryRow) -> Json:
    is_open = row.ended_at is None
    state = "pending" if is_open else "delivered" if row.state == SUCCEEDED else "failed"
    next_at = row.next_at if is_open else None
    return describe_row(AlertDeliverySchema, row, state=state, next_at=next_at, body=orjson.Fragment(row.body))
