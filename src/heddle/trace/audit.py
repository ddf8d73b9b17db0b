"""The audit log: who did what in the projects that the caller administers."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Query, Response

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.http.parameters import KNOWN_PARAMETERS
from heddle.http.routing import Admin, Lines, ResponseModel, StoreDep, answer, describe_row, group, json_lines, lines
from heddle.store.base import Store
from heddle.store.control.audit import AuditQuery, AuditRow
from heddle.wire import refs, times

router = group("Audit log")
_AT_ONCE = 1000
_MOST_NUMBER = 2**31 - 1


class AuditEntry(ResponseModel):
    """One row: `number` grows, `project` is null for what is the whole server's."""

    number: int
    at: str
    user: str
    address: str
    action: str
    project: str | None
    details: dict[str, Any]


class AuditRes(ResponseModel):
    """Rows, newest first; `before` of the next page, null at the end."""

    rows: list[AuditEntry]
    before: int | None


ProjectName = Annotated[str | None, Query(description="entity/project; without it, all that the caller administers")]
User = Annotated[str | None, Query(max_length=256)]
Action = Annotated[str | None, Query(description="an action, such as key.create, or its beginning", max_length=100)]
Instant = Annotated[str | None, Query(description="ISO 8601; `since` is included, `until` is not")]


@router.get("/audit_log", response_model=AuditRes, dependencies=KNOWN_PARAMETERS)
async def read(
    caller: Admin,
    store: StoreDep,
    project: ProjectName = None,
    user: User = None,
    action: Action = None,
    since: Instant = None,
    until: Instant = None,
    before: Annotated[int | None, Query(ge=1, le=_MOST_NUMBER)] = None,
    limit: Annotated[int, Query(ge=1, le=_AT_ONCE)] = 100,
) -> Response:
    """Rows of the audit log, newest first."""
    wanted = await _select(store, caller, project, user, action, since, until)
    rows = await store.audit_log.query(replace(wanted, before=before), limit)
    return answer({"rows": list(map(_describe, rows)), "before": rows[-1].number if len(rows) == limit else None})


@router.get("/audit_log/export", response_model=AuditEntry, response_class=Lines, dependencies=KNOWN_PARAMETERS)
async def export(
    caller: Admin,
    store: StoreDep,
    project: ProjectName = None,
    user: User = None,
    action: Action = None,
    since: Instant = None,
    until: Instant = None,
) -> Response:
    """The same rows, all of them, as JSON lines."""
    return lines(_stream(store, await _select(store, caller, project, user, action, since, until)))


async def _stream(store: Store, wanted: AuditQuery) -> AsyncIterator[bytes]:
    while rows := await store.audit_log.query(wanted, _AT_ONCE):
        yield json_lines(map(_describe, rows))
        wanted = replace(wanted, before=rows[-1].number)


async def _select(
    store: Store,
    caller: Caller,
    project: str | None,
    user: str | None,
    action: str | None,
    since: str | None,
    until: str | None,
) -> AuditQuery:
    """The rows that are asked for and the caller administers; raises Forbidden, InvalidRequest."""
    projects: list[str] | None = None
    if project is not None:
        projects = [caller.open(project)]
    elif not caller.is_operator:
        names = {name: refs.external_project(name) for name in await store.audit_log.projects()}
        projects = [name for name, external in names.items() if external and caller.reaches(external)]
    instants = {"since": since, "until": until}
    parsed = {name: None if text is None else times.parse(text) for name, text in instants.items()}
    wrong = next((name for name, text in instants.items() if text is not None and parsed[name] is None), None)
    if wrong is not None:
        raise InvalidRequest(f"{wrong} must be a time such as 2026-01-31T12:00:00Z")
    return AuditQuery(projects=projects, user=user, action=action, since=parsed["since"], until=parsed["until"])


def _describe(row: AuditRow) -> dict[str, Any]:
    project = None if row.project is None else refs.external_project(row.project)
    return describe_row(AuditEntry, row, at=times.to_iso(row.at), project=project)
