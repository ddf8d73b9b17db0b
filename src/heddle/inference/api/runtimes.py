"""Custom runtimes: other servers of models that a project names, whose models /completions/create then asks.

A runtime works only at an address that the setting `providers` names, with the key of that setting: whoever may write
to a project must not choose which addresses this server calls, nor with which keys. Contract: trace-evals, section 12.
"""

import re
from typing import Annotated

from fastapi import APIRouter, Path, Response
from pydantic import Field

from heddle.errors import InvalidRequest
from heddle.http.routing import Reader, RequestModel, ResponseModel, StoreDep, Writer, answer, group
from heddle.inference.providers import check_headers, playground_id
from heddle.store.control.projects import RuntimeRow
from heddle.wire import times

router: APIRouter = group("Runtimes")

MOST_MODELS = 1000
HIDDEN = "***"
"""What is answered in the place of a header's value."""
_DEFAULT_MAX_TOKENS = 4096
_MOST_TOKENS = 2**31 - 1
_ADDRESS = re.compile(r"https?://[^\s,;?#]+")
RuntimeName = Annotated[str, Path(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_. -]*$")]


class CustomRuntimeID(RequestModel):
    """A model of the runtime, and the most tokens of its answers."""

    id: str = Field(min_length=1, max_length=512, pattern=r"^\S+$")
    max_tokens: int = Field(default=_DEFAULT_MAX_TOKENS, gt=0, le=_MOST_TOKENS)


class CustomRuntimeApplyBody(RequestModel):
    """Body of PUT /v2/{entity}/{project}/runtimes/{runtime_name}.

    `api_key_secret` is the name of the environment variable that the setting `providers` gives for the address.
    """

    base_url: str
    api_key_secret: str | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    runtime_ids: list[CustomRuntimeID]


class CustomRuntimeIDRes(ResponseModel):
    """A model and the name by which /completions/create knows it."""

    id: str
    max_tokens: int = _DEFAULT_MAX_TOKENS
    playground_id: str


class CustomRuntimeApplyRes(ResponseModel):
    """The runtime as it is stored."""

    name: str
    base_url: str
    api_key_secret: str | None
    headers: dict[str, str]
    runtime_ids: list[CustomRuntimeIDRes]


class RuntimesRes(ResponseModel):
    """The project's runtimes by name."""

    runtimes: list[CustomRuntimeApplyRes]


@router.put("/v2/{entity}/{project}/runtimes/{runtime_name}", response_model=CustomRuntimeApplyRes)
async def apply_runtime(
    entity: str, project: str, runtime_name: RuntimeName, body: CustomRuntimeApplyBody, caller: Writer, store: StoreDep
) -> Response:
    """Describe a runtime whole: what an earlier request of its name said and this one does not is gone."""
    project_id = caller.open(f"{entity}/{project}")
    before = await store.runtimes.read(project_id, runtime_name)
    stored = {} if before is None else before.headers
    if not _ADDRESS.fullmatch(body.base_url):
        raise InvalidRequest(f"base_url: {body.base_url[:300]!r} is not an http or https URL", param="base_url")
    if len(body.runtime_ids) > MOST_MODELS:
        raise InvalidRequest(f"runtime_ids has {len(body.runtime_ids)} entries, at most {MOST_MODELS} are allowed")
    models = {model.id: model.max_tokens for model in body.runtime_ids}
    if len(models) < len(body.runtime_ids):
        raise InvalidRequest("runtime_ids contains a model twice", param="runtime_ids")
    row = RuntimeRow(
        project=project_id,
        name=runtime_name,
        base_url=body.base_url.rstrip("/"),
        api_key_secret=body.api_key_secret,
        headers={
            name: stored.get(name, value) if value == HIDDEN else value
            for name, value in check_headers(body.headers, "headers").items()
        },
        max_tokens=models,
        updated_at=times.now(),
        updated_by=caller.user,
    )
    await store.runtimes.apply(row)
    return answer(_describe(row))


@router.get("/v2/{entity}/{project}/runtimes", response_model=RuntimesRes)
async def list_runtimes(entity: str, project: str, caller: Reader, store: StoreDep) -> Response:
    """The runtimes of a project."""
    rows = await store.runtimes.all(caller.open(f"{entity}/{project}"))
    return answer({"runtimes": [_describe(row) for row in rows]})


def _describe(row: RuntimeRow) -> dict[str, object]:
    models = row.max_tokens.items()
    return {
        "name": row.name,
        "base_url": row.base_url,
        "api_key_secret": row.api_key_secret,
        # Their values may be secrets, and not every reader of a project may know those.
        "headers": dict.fromkeys(row.headers, HIDDEN),
        "runtime_ids": [
            {"id": model, "max_tokens": most, "playground_id": playground_id(row.name, model)} for model, most in models
        ],
    }
