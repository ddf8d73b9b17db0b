"""`GET /v1/info`: what Logfire's SDKs ask for when they are given a token."""

from fastapi import Request, Response

from heddle.auth import public_address
from heddle.http.routing import Reader, ResponseModel, SettingsDep, answer, group
from heddle.trace.otel.export import ProjectResolver

router = group("Compatibility")


class LogfireInfo(ResponseModel):
    """The project of a token, and its page."""

    project_name: str
    project_url: str


@router.get("/v1/info", response_model=LogfireInfo)
async def read_logfire_info(request: Request, caller: Reader, settings: SettingsDep) -> Response:
    """The project of spans without a service's name and its page; where there is none, the entity of the key."""
    project = ProjectResolver.of(request.headers, caller, settings).resolve({})
    page = ""
    if project is not None:
        caller.open(project)
        page = f"{project}/weave"
    return answer(
        {
            "project_name": project or caller.default_entity,
            "project_url": public_address(settings, str(request.base_url)) + page,
        }
    )
