"""/v1/limits: what projects and keys may have, and what they have now."""

from collections.abc import Collection, Iterable
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from heddle.auth import Caller
from heddle.errors import Forbidden, ValidationFailed
from heddle.http.own_bodies import OwnBody
from heddle.http.parameters import KNOWN_PARAMETERS
from heddle.http.quotas import Use
from heddle.http.routing import Admin, QuotasDep, Reader, ResponseModel, Route, StoreDep, answer, group
from heddle.inference.limits import KEY, KINDS, PROJECT, Limit
from heddle.inference.service import InferenceDep
from heddle.quotas import DISK, LOCAL_KEY, NONE, Quota, check_groups, parse_quotas, show_quotas
from heddle.store.control.inference import LimitRow, MeterName
from heddle.wire import times
from heddle.wire.jsontypes import Json

router: APIRouter = group("Limits")


class LimitReq(OwnBody):
    """Body of PUT /v1/limits; null lets the setting hold again, 0 and "none" mean no limit."""

    kind: Literal["project", "key"]
    name: str = Field(max_length=1024)
    concurrency: int | None = Field(default=None, ge=0, le=10**6)
    tokens_per_minute: int | None = Field(default=None, ge=0, le=10**12)
    quotas: str | None = Field(default=None, max_length=4096)


class UseShown(ResponseModel):
    """How much is used of a quota, until when; `ends_at` is null before the first request, and of what is stored."""

    quota: str
    group: str
    unit: str
    limit: int
    used: int
    ends_at: str | None


class LimitShown(ResponseModel):
    """The limits that hold for one project or key, how many of its completions run now, what it sent and stores."""

    object: str = "limit"
    kind: str
    name: str | None
    concurrency: int
    tokens_per_minute: int
    running: int
    quotas: str
    own: list[str]
    """Which of these are its own, not the settings'."""
    uses: list[UseShown]


class LimitList(ResponseModel):
    """`defaults` are the settings'; `data` those of single projects and keys."""

    object: str = "list"
    defaults: list[LimitShown]
    data: list[LimitShown]


class _Described:
    """Describes limits, as they are now."""

    def __init__(self, store: StoreDep, inference: InferenceDep, quotas: QuotasDep) -> None:
        self._store, self._inference, self._quotas = store, inference, quotas

    async def describe_all(self, names: Collection[MeterName] | None = None) -> Json:
        """The limits of the settings and of these; without names of all that have their own or use a quota."""
        await self._inference.accounts.reload_limits()
        await self._quotas.load()
        rows = {(row.kind, row.name): row for row in await self._store.inference.limits()}
        uses = await self._quotas.uses()
        if names is None:
            names = {*rows, *(use.name for use in uses)}
        limits = self._inference.accounts.limits
        return {
            "object": "list",
            "defaults": [
                _shown(kind, None, limits.default(kind), 0, self._quotas.default(kind), None, ()) for kind in KINDS
            ],
            "data": [await self._describe(name, rows.get(name), uses) for name in sorted(names)],
        }

    async def _describe(self, name: MeterName, row: LimitRow | None, uses: Iterable[Use]) -> Json:
        accounts = self._inference.accounts
        own = [use for use in uses if use.name == name]
        running = await accounts.running(name)
        return _shown(*name, accounts.limits.of(name), running, self._quotas.of(name), row, own)


DescribedDep = Annotated[_Described, Depends(_Described)]


@router.get("/v1/limits", response_model=LimitList)
async def limits(caller: Admin, found: DescribedDep) -> Response:
    """The limits of the settings, of single projects and keys, and of whoever uses a quota of the settings."""
    _require_unbound(caller)
    return answer(await found.describe_all())


@router.get("/v1/limits/own", response_model=LimitList, dependencies=KNOWN_PARAMETERS)
async def own_limits(caller: Reader, found: DescribedDep, project: str | None = None) -> Response:
    """The limits of the caller's key, and of a project: the one named, or the one that the key is bound to."""
    if project is not None:
        caller.open(project)
    reached = project or caller.project
    names = {(KEY, caller.key_id or LOCAL_KEY), *([(PROJECT, reached)] if reached else [])}
    return answer(await found.describe_all(names))


@router.put("/v1/limits", response_model=LimitShown)
async def set_limit(body: LimitReq, request: Request, caller: Admin, store: StoreDep, found: DescribedDep) -> Response:
    """Set the limits of one project (`team/project`) or key (its id); they hold from now on."""
    _require_unbound(caller)
    if body.kind == PROJECT:
        caller.open(body.name)
    elif body.name not in {key.id for key in await store.keys.all()} | {LOCAL_KEY}:
        raise ValidationFailed.at(["body", "name"], f"Key {body.name[:100]!r} not found")
    quotas = None if body.quotas is None else _read_quotas(body, request)
    await store.inference.set_limit(body.kind, body.name, body.concurrency, body.tokens_per_minute, caller.user, quotas)
    (shown,) = (await found.describe_all({(body.kind, body.name)}))["data"]
    return answer(shown)


def _read_quotas(body: LimitReq, request: Request) -> str:
    """Quotas as they are stored; raises ValidationFailed."""
    try:
        quotas = parse_quotas(body.quotas or NONE)
        check_groups(quotas, {route.group for route in request.app.routes if isinstance(route, Route)})
        if body.kind == KEY and any(quota.unit == DISK for quota in quotas):
            raise ValueError("A key cannot have a disk quota; set it on a project")
    except ValueError as problem:
        raise ValidationFailed.at(["body", "quotas"], str(problem)) from None
    return show_quotas(quotas)


def _require_unbound(caller: Caller) -> None:
    if not caller.is_operator:
        raise Forbidden("Limits apply to the whole server; an admin key that is not bound to a project is required")


def _shown(
    kind: str,
    name: str | None,
    limit: Limit,
    running: int,
    quotas: Iterable[Quota],
    row: LimitRow | None,
    uses: Iterable[Use],
) -> Json:
    values = {
        "concurrency": limit.concurrency,
        "tokens_per_minute": limit.tokens_per_minute,
        "quotas": show_quotas(quotas),
    }
    own = [word for word in values if row is not None and getattr(row, word) is not None]
    shown = [
        {
            "quota": str(use.quota),
            "group": use.quota.group,
            "unit": use.quota.unit,
            "limit": use.quota.most,
            "used": use.used,
            "ends_at": None if use.ends_at is None else times.to_iso(use.ends_at * times.SECOND),
        }
        for use in uses
    ]
    return {"object": "limit", "kind": kind, "name": name, **values, "running": running, "own": own, "uses": shown}
