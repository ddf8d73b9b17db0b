"""The alert routes: rules, what they found, and the messages about them."""

from typing import Annotated, Any

import orjson
from fastapi import Depends, Response

from heddle.auth import Caller, Scope
from heddle.errors import InvalidRequest, NotFound
from heddle.http import Empty, Reader, Service, SettingsDep, StoreDep, Writer, answer, group
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.alerts import PENDING, QUIET, AlertRow, DeliveryRow
from heddle.trace.alerts import webhook
from heddle.trace.alerts.models import (
    AlertCreateReq,
    AlertCreateRes,
    AlertDeliveriesReq,
    AlertDeliveriesRes,
    AlertReq,
    AlertRes,
    AlertRule,
    AlertsQueryReq,
    AlertsQueryRes,
    AlertTestRes,
    AlertUpdateReq,
)
from heddle.trace.alerts.service import AlertService
from heddle.trace.calls.read import filter_of
from heddle.wire import callfields, ids, jsontext, query, refs, times

MOST_RULES = 100
AlertsDep = Annotated[AlertService, Depends(Service("alerts"))]
router = group("Alerts")


@router.post("/alerts/create", response_model=AlertCreateRes)
async def alert_create(
    body: AlertCreateReq, caller: Writer, settings: SettingsDep, store: StoreDep, alerts: AlertsDep
) -> Response:
    """Make a rule; the answer alone shows the secret that its messages are signed with."""
    caller.require(Scope.READ)
    project = caller.open(body.project_id)
    rule = _checked(body, project, settings)
    secret = webhook.new_secret()
    row = AlertRow(
        id=ids.uuid7(),
        project=project,
        name=body.name,
        is_enabled=body.enabled,
        rule=rule,
        secret=secret,
        created_at=times.now(),
        created_by=caller.user,
    )
    if not await store.alerts.create(row, MOST_RULES):
        raise InvalidRequest(f"A project has at most {MOST_RULES} alerts")
    alerts.changed()
    return answer({"alert": _shown(row), "secret": secret})


@router.post("/alerts/query", response_model=AlertsQueryRes)
async def alerts_query(body: AlertsQueryReq, caller: Reader, store: StoreDep) -> Response:
    """The rules of a project and what each found last."""
    rows = await store.alerts.of_project(caller.open(body.project_id))
    return answer({"alerts": [_shown(row) for row in rows]})


@router.post("/alerts/update", response_model=AlertRes)
async def alert_update(
    body: AlertUpdateReq, caller: Writer, settings: SettingsDep, store: StoreDep, alerts: AlertsDep
) -> Response:
    """Replace a rule; its secret stays, and it begins quiet."""
    caller.require(Scope.READ)
    row = await _find(body.project_id, body.id, caller, store)
    row.rule = _checked(body, row.project, settings)
    row.name, row.is_enabled = body.name, body.enabled
    row.state, row.value, row.problem, row.checked_at, row.changed_at = QUIET, None, None, None, times.now()
    if not await store.alerts.change(row):
        raise NotFound(f"Alert {body.id[:100]} not found")
    alerts.changed()
    return answer({"alert": _shown(row)})


@router.post("/alerts/delete", response_model=Empty)
async def alert_delete(body: AlertReq, caller: Writer, store: StoreDep) -> Response:
    """Delete a rule, and the messages about it that were not sent yet."""
    project = caller.open(body.project_id)
    if not await store.alerts.delete(project, body.id, caller.user, times.now()):
        raise NotFound(f"Alert {body.id[:100]} not found")
    return answer({})


@router.post("/alerts/test", response_model=AlertTestRes)
async def alert_test(body: AlertReq, caller: Writer, store: StoreDep, alerts: AlertsDep) -> Response:
    """Send a test message to the webhook of a rule."""
    caller.require(Scope.READ)
    row = await _find(body.project_id, body.id, caller, store)
    return answer({"delivery_id": await alerts.test(row)})


@router.post("/alerts/deliveries/query", response_model=AlertDeliveriesRes)
async def alert_deliveries(body: AlertDeliveriesReq, caller: Reader, store: StoreDep) -> Response:
    """The messages of a project or of one rule, newest first, and how sending them went; kept for 30 days."""
    project = caller.open(body.project_id)
    rows = await store.alerts.deliveries(project, body.id, body.limit, body.offset)
    return answer({"deliveries": [_shown_delivery(row) for row in rows]})


def _checked(body: AlertCreateReq, project: str, settings: Settings) -> dict[str, Any]:
    """The rule as it is stored; raises InvalidRequest for what could never be judged or sent."""
    webhook.check_address(body.webhook_url, settings.alert_webhooks)
    filter_of(body.filter, project)
    if body.query is not None:
        for field in query.fields(query.parse_query(body.query)):
            callfields.resolve(field)
    # As the store gives it back: a change is told from the rule's text.
    stored: dict[str, Any] = orjson.loads(
        jsontext.dumps_bytes(body.model_dump(mode="json", include=set(AlertRule.model_fields)))
    )
    return stored


async def _find(project_id: str, alert_id: str, caller: Caller, store: Store) -> AlertRow:
    row = await store.alerts.read(caller.open(project_id), alert_id)
    if row is None:
        raise NotFound(f"Alert {alert_id[:100]} not found")
    return row


def _shown(row: AlertRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "project_id": refs.external_project(row.project),
        "name": row.name,
        "enabled": row.is_enabled,
        "rule": row.rule,
        "state": row.state,
        "value": row.value,
        "problem": row.problem,
        "checked_at": times.optional_iso(row.checked_at),
        "changed_at": times.optional_iso(row.changed_at),
        "created_at": times.to_iso(row.created_at),
        "created_by": row.created_by,
    }


def _shown_delivery(row: DeliveryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "alert_id": row.alert_id,
        "event": row.event,
        "state": row.state,
        "attempts": row.attempts,
        "next_at": times.to_iso(row.next_at) if row.state == PENDING else None,
        "error": row.error,
        "created_at": times.to_iso(row.created_at),
        "ended_at": times.optional_iso(row.ended_at),
        "body": orjson.Fragment(row.body),
    }
