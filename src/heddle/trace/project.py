"""The routes of projects, and what is taken out of what they are sent."""

import logging
from typing import Annotated, Literal

from fastapi import Depends, Response
from pydantic import Field

from heddle.http.own_bodies import OwnReq
from heddle.http.routing import Admin, ProjectReq, Reader, ResponseModel, Service, StoreDep, answer, group
from heddle.jobs.runner import Loop
from heddle.store.base import Store
from heddle.wire import times
from heddle.wire.redaction import RedactionKind, RedactionRules

logger = logging.getLogger("heddle.retention")
router = group("Projects")
MAX_RETENTION_DAYS = 36_500


class Retention(Loop):
    """Looks every `interval` seconds, on one of several servers, and at once when it is woken."""

    def __init__(self, store: Store, interval: float, audit_days: int) -> None:
        super().__init__(self._look, logger, "old calls could not be deleted now", interval)
        self._store = store
        self._audit_days = audit_days
        self._interval = interval

    async def _look(self) -> float:
        if await self._store.leases.take("retention", self._interval) or self.was_woken:
            await self.purge()
        return self._interval

    async def purge(self) -> int:
        """Delete what is too old in every project and in the audit log; returns how many calls that were."""
        if self._audit_days:
            await self._store.audit_log.purge_older(times.now() - self._audit_days * times.DAY)
        total = 0
        for project, days in await self._store.projects.with_retention():
            total += await self._purge(project, days)
        if total:
            await self._store.collect_files()
        return total

    async def _purge(self, project: str, days: int) -> int:
        """Delete what is too old in a project, as long as its setting stays; returns how many calls that were."""
        before = times.now() - days * times.DAY

        async def is_wanted() -> bool:
            return await self._store.projects.retention(project) == days

        deleted = await self._store.calls.purge_older(project, before, is_wanted)
        if deleted:
            details = {"calls": deleted, "before": times.to_iso(before), "retention_days": days}
            await self._store.audit_log.note("heddle", "retention.purge", project, details)
            logger.info("deleted %d calls that were older than %d days", deleted, days)
        for stored in (self._store.feedback, self._store.metric_series, self._store.log_records):
            if await is_wanted():
                await stored.purge_older(project, before)
        return deleted


RetentionDep = Annotated[Retention, Depends(Service("retention"))]


class ProjectStatsReq(ProjectReq):
    """Which sizes are wanted."""

    include_trace_storage_size: bool | None = True
    include_object_storage_size: bool | None = True
    include_table_storage_size: bool | None = True
    include_file_storage_size: bool | None = True


class ProjectStatsRes(ResponseModel):
    """Sizes in bytes; 0 for what was not asked for."""

    trace_storage_size_bytes: int
    objects_storage_size_bytes: int
    tables_storage_size_bytes: int
    files_storage_size_bytes: int


class ProjectTTLSettingsReadReq(ProjectReq):
    """A project."""


class ProjectTTLSettingsReadRes(ResponseModel):
    """How many days calls are kept; null: for ever."""

    retention_days: int | None = None


class ProjectTTLSettingsUpdateReq(ProjectReq, extra="forbid"):
    """The new retention; null keeps calls for ever."""

    retention_days: int | None = Field(default=None, ge=1, le=MAX_RETENTION_DAYS)
    wb_user_id: str | None = None


class ProjectTTLSettingsUpdateRes(ResponseModel):
    """The retention from now on."""

    retention_days: int | None


class IngestSamplingSettingsReq(ProjectReq):
    """A project."""


class IngestSamplingSettingsRes(ResponseModel):
    """Which part of the calls is kept at ingest: all of them."""

    dry_run: bool
    sample_rate: float


class SensitiveDataSettingsRes(ResponseModel):
    """Which policy removes sensitive data at ingest: `pii-v1` where any detector looks at it."""

    policy: Literal["off", "pii-v1"]


@router.post("/project/stats", response_model=ProjectStatsRes)
async def project_stats(body: ProjectStatsReq, caller: Reader, store: StoreDep) -> Response:
    """Bytes stored in a project."""
    project = caller.open(body.project_id)
    stored = await store.projects.stored_bytes(project)
    calls = await store.calls.storage_size(project) if body.include_trace_storage_size else 0
    tables = await store.tables.total_size(project) if body.include_table_storage_size else 0
    return answer(
        {
            "trace_storage_size_bytes": calls,
            "objects_storage_size_bytes": stored.objects if body.include_object_storage_size else 0,
            "tables_storage_size_bytes": tables,
            "files_storage_size_bytes": stored.files if body.include_file_storage_size else 0,
        }
    )


@router.post("/project/ttl_settings/read", response_model=ProjectTTLSettingsReadRes)
async def read_retention(body: ProjectTTLSettingsReadReq, caller: Reader, store: StoreDep) -> Response:
    """How long calls of a project are kept."""
    return answer({"retention_days": await store.projects.retention(caller.open(body.project_id))})


@router.post("/project/ttl_settings/update", response_model=ProjectTTLSettingsUpdateRes)
async def update_retention(
    body: ProjectTTLSettingsUpdateReq, caller: Admin, store: StoreDep, retention: RetentionDep
) -> Response:
    """Keep calls for so many days; older ones are deleted right away, and from then on as they grow old."""
    project = caller.open(body.project_id)
    await store.projects.set_retention(project, body.retention_days, caller.user)
    retention.wake()
    return answer({"retention_days": body.retention_days})


@router.post("/project/ingest_sampling_settings/read", response_model=IngestSamplingSettingsRes)
async def read_ingest_sampling(body: IngestSamplingSettingsReq, caller: Reader) -> Response:
    """heddle keeps every call that it is sent."""
    caller.open(body.project_id)
    return answer({"dry_run": False, "sample_rate": 1.0})


@router.get("/project/sensitive_data_settings", response_model=SensitiveDataSettingsRes)
async def read_sensitive_data(project_id: str, caller: Reader, store: StoreDep) -> Response:
    """Whether detectors take something out before it is stored; /project/redaction/read says what."""
    rules = await store.redaction.rules(caller.open(project_id))
    return answer({"policy": "pii-v1" if rules.kinds else "off"})


class RedactionReadReq(OwnReq):
    """A project."""


class RedactionUpdateReq(OwnReq):
    """New rules: detectors, and paths of values such as `inputs.user.email`; nulls let the setting hold again."""

    kinds: list[RedactionKind] | None = None
    paths: list[str] | None = None


class RedactionRes(ResponseModel):
    """The rules that hold, whether they are the project's own, and how many values were taken out, by kind."""

    kinds: list[RedactionKind]
    paths: list[str]
    is_own: bool
    redacted: dict[str, int]


@router.post("/project/redaction/read", response_model=RedactionRes)
async def read_redaction(body: RedactionReadReq, caller: Reader, store: StoreDep) -> Response:
    """What is taken out of the content of a project before it is stored, and how much that was."""
    return await _describe(caller.open(body.project_id), store)


@router.post("/project/redaction/update", response_model=RedactionRes)
async def update_redaction(body: RedactionUpdateReq, caller: Admin, store: StoreDep) -> Response:
    """Take something else out from now on, within a second on every server; what is stored stays as it is."""
    project = caller.open(body.project_id)
    rules = None
    if body.kinds is not None or body.paths is not None:
        rules = RedactionRules(tuple(dict.fromkeys(body.kinds or ())), tuple(dict.fromkeys(body.paths or ())))
        rules.check()
    await store.redaction.set(project, rules, caller.user)
    return await _describe(project, store)


async def _describe(project: str, store: StoreDep) -> Response:
    rules = await store.redaction.rules(project)
    return answer(
        {
            "kinds": list(rules.kinds),
            "paths": list(rules.paths),
            "is_own": await store.redaction.is_own(project),
            "redacted": dict(await store.redaction.counts(project)),
        }
    )
