"""The routes of redaction: what is taken out of what a project is sent, and how much that was."""

from fastapi import Response

from heddle.http.routing import Admin, ProjectReq, Reader, ResponseModel, StoreDep, answer, group
from heddle.wire.redaction import RedactionKind, RedactionRules

router = group("Projects")


class RedactionReadReq(ProjectReq):
    """A project."""


class RedactionUpdateReq(ProjectReq):
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
