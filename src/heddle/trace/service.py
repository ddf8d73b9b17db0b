"""The server about itself: is it alive, can it write, which version, which limits; and where projects are."""

from typing import Any

from fastapi import Request, Response

import heddle
from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.http.metrics import CONTENT_TYPE
from heddle.http.routing import MetricsDep, Reader, RequestModel, ResponseModel, SettingsDep, StateDep, answer, group
from heddle.settings import PLACES, TABLE
from heddle.wire import refs

router = group("Service")

MINIMUM_WEAVE_PYTHON = "0.0.1"
TRACE_SERVER_VERSION = "1.0.0"
"""SDKs may ask for a minimum; no published one asks for more than this."""

_LIMITS = (
    "max_trace_body", "max_table_body", "max_chat_body", "max_training_body", "max_file", "max_page_rows",
    "large_field_bytes", "write_queue_bytes", "max_database_bytes", "query_timeout",
)  # fmt: skip
_PLACES = PLACES | {"public_url", "trusted_proxies"}


class ServerInfoRes(ResponseModel):
    """What SDKs ask at start, and what this server was set to."""

    min_required_weave_python_version: str
    trace_server_version: str
    heddle_version: str
    limits: dict[str, int | float]
    settings: dict[str, Any]


class StatusRes(ResponseModel):
    """One word, and the reason when it is not `ok`."""

    status: str


class VersionRes(ResponseModel):
    """The version of this server."""

    version: str


class GeolocateRes(ResponseModel):
    """Where a caller is; nothing here looks it up, everybody is allowed."""

    ip: str
    location: dict[str, Any] | None = None
    allowed: bool = False


class ProjectsInfoReq(RequestModel):
    """External project ids."""

    project_ids: list[str]


class ProjectsInfoRes(ResponseModel):
    """Both spellings of one project."""

    external_project_id: str
    internal_project_id: str


@router.get("/server_info", response_model=ServerInfoRes)
async def server_info(request: Request, settings: SettingsDep) -> Response:
    """Versions and limits, and for who has a key the settings; no secrets, no folders, no addresses."""
    knows = isinstance(request.scope.get("heddle.caller"), Caller)
    shown = [row for row in TABLE if knows and row.name not in _PLACES and not row.kind.is_secret]
    return answer(
        {
            "min_required_weave_python_version": MINIMUM_WEAVE_PYTHON,
            "trace_server_version": TRACE_SERVER_VERSION,
            "heddle_version": heddle.__version__,
            "limits": {name: getattr(settings, name) for name in _LIMITS},
            "settings": {row.name: getattr(settings, row.name) for row in shown},
        }
    )


@router.post("/service/projects_info", response_model=list[ProjectsInfoRes])
async def projects_info(body: ProjectsInfoReq, caller: Reader) -> Response:
    """The internal ids of projects; malformed ones and those that the key does not reach are left out."""
    found = []
    for project_id in body.project_ids:
        internal = _internal(project_id) if caller.may_read(project_id) else None
        if internal is not None:
            found.append({"external_project_id": project_id, "internal_project_id": internal})
    return answer(found)


def _internal(project_id: str) -> str | None:
    try:
        return refs.internal_project(project_id)
    except InvalidRequest:
        return None


@router.get("/health", response_model=StatusRes)
async def health() -> Response:
    """Alive."""
    return answer({"status": "ok"})


@router.get("/ready", response_model=StatusRes)
async def ready(state: StateDep) -> Response:
    """Ready to take work: the store commits a write, and the model is loaded if it is to be. 503 with the reason."""
    reason = await state.why_not_ready()
    if reason is None:
        return answer({"status": "ok"})
    failed = answer({"status": "unavailable", "reason": reason})
    failed.status_code = 503
    failed.headers["Retry-After"] = "1"
    return failed


@router.get("/version", response_model=VersionRes)
async def version() -> Response:
    """The version of heddle."""
    return answer({"version": heddle.__version__})


@router.get("/geolocate", response_model=GeolocateRes)
async def geolocate(request: Request, ip: str | None = None) -> Response:
    """The caller's own address unless one is asked for; no look-up is made anywhere."""
    own = request.client.host if request.client else ""
    return answer({"ip": ip or own, "location": None, "allowed": True})


@router.get("/metrics", include_in_schema=False)
async def metrics(metrics: MetricsDep) -> Response:
    """Prometheus figures."""
    return Response(await metrics.text(), media_type=CONTENT_TYPE)
