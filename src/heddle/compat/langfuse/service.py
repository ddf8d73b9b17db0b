"""What clients of Langfuse ask first (is the server there, do the keys fit), their spans, and what is not offered."""

from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

import heddle
from heddle.compat.langfuse.access import API, ReadProject, resolver
from heddle.errors import NotFound
from heddle.http.routing import Reader, SettingsDep, StateDep, Writer, answer, group, hot, local
from heddle.trace.otel.routes import TRACES, OTelExportRes, answer_export, export_api

router: APIRouter = group("Langfuse")
last_router: APIRouter = group("Langfuse")
"""Tried after all others."""
_EXPERIMENTS = "experiments are traces with attributes.experiment, scores of a run are feedback"
_KEYS = "keys are managed with `heddle keys`"
_PAGES = "dashboards are pages of the web interface"
INSTEAD = {
    "annotation-queues": "annotation queues are POST /annotation_queues",
    "experiments": _EXPERIMENTS,
    "experiment-items": _EXPERIMENTS,
    "datasets": "/api/public/v2/datasets",
    "comments": "notes on calls are POST /feedback/create with feedback_type wandb.note.1",
    "metrics": "figures of calls are POST /calls/stats, tokens and costs POST /calls/usage",
    "models": "prices of models are POST /cost/create",
    "llm-connections": "providers of models are given to the server at its start (docs/inference.md)",
    "score-configs": "a scorer's ranges are its object; scores are taken without a config",
    "media": "media are stored out of the spans themselves (LANGFUSE_MEDIA_UPLOAD_ENABLED=false)",
    "evaluators": "scorers are objects, POST /v2/{entity}/{project}/scorers",
    "evaluation-rules": "monitors score calls as they come; they are objects of the class Monitor (docs/evaluation.md)",
    "organizations": _KEYS,
    "memberships": _KEYS,
    "apiKeys": _KEYS,
    "scim": _KEYS,
    "projects": "a project exists once something is written to it; GET /api/public/projects names that of the keys",
    "integrations": "`heddle export` writes projects as Parquet or as an archive",
    "dashboards": _PAGES,
    "dashboard-widgets": _PAGES,
}
"""What exists in the place of interfaces that are not offered, by the word of their path."""


@router.get("/api/public/health")
async def read_health() -> Response:
    """Alive."""
    return answer({"status": "OK", "version": heddle.__version__})


@router.get("/api/public/projects", **API)
async def list_projects(project: ReadProject) -> Response:
    """The project that the keys mean; clients check their keys with it."""
    entity, _, name = project.id.partition("/")
    organization = {"id": entity, "name": entity}
    return answer({"data": [{"id": project.id, "name": name, "organization": organization, "metadata": {}}]})


@router.post("/api/public/otel/v1/traces", response_model=OTelExportRes, openapi_extra=export_api(TRACES))
@hot
@local
async def langfuse_traces(request: Request, caller: Writer, state: StateDep) -> Response:
    """Store spans as calls, as /v1/traces does; the keys name the project."""
    projects = resolver(request.headers, caller, state.settings)
    return await answer_export(TRACES, request, caller, state, projects)


@router.get("/project/{entity}/{project}/traces/{trace_id}", include_in_schema=False)
async def open_trace(entity: str, project: str, trace_id: str, settings: SettingsDep) -> Response:
    """The page of a trace, at the address that the SDKs print."""
    parts = "/".join(quote(part, safe="") for part in (entity, project, "weave", "traces", trace_id))
    return RedirectResponse(f"{settings.root_path.rstrip('/')}/{parts}", status_code=302)


@last_router.get("/api/public/{rest:path}", include_in_schema=False)
async def refuse_reading(request: Request, rest: str, caller: Reader) -> Response:  # noqa: ARG001
    """Say what of the API of Langfuse is not offered, and what is there instead."""
    raise _not_offered(request, rest)


@last_router.post("/api/public/{rest:path}", include_in_schema=False)
@last_router.put("/api/public/{rest:path}", include_in_schema=False)
@last_router.patch("/api/public/{rest:path}", include_in_schema=False)
@last_router.delete("/api/public/{rest:path}", include_in_schema=False)
async def refuse_writing(request: Request, rest: str, caller: Writer) -> Response:  # noqa: ARG001
    """The same for what changes something."""
    raise _not_offered(request, rest)


def _not_offered(request: Request, rest: str) -> NotFound:
    words = rest.split("/")
    instead = next((text for word, text in INSTEAD.items() if word in words), "docs/langfuse.md lists what is")
    return NotFound(f"heddle does not offer {request.method} /api/public/{rest[:200]} of Langfuse: {instead}")
