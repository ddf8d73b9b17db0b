"""Which monitors there are, and whether they score."""

from typing import Annotated

from fastapi import Depends, Response

from heddle.evals.monitors.service import Monitors
from heddle.http import Reader, RequestModel, ResponseModel, Service, answer, group
from heddle.wire import refs

MonitorsDep = Annotated[Monitors, Depends(Service("monitors"))]
router = group("Monitors")


class MonitorsQueryReq(RequestModel):
    """Body of /monitors/query."""

    project_id: str


class MonitorSchema(ResponseModel):
    """A stored monitor as it is now."""

    name: str
    ref: str
    active: bool
    problem: str | None
    """Why it scores nothing, where it cannot."""
    submitted: int
    """Calls that were handed to its scorers since the server started."""


class MonitorsQueryRes(ResponseModel):
    """The monitors of a project."""

    monitors: list[MonitorSchema]


@router.post("/monitors/query", response_model=MonitorsQueryRes)
async def monitors_query(body: MonitorsQueryReq, caller: Reader, monitors: MonitorsDep) -> Response:
    """The monitors of a project: whether each is on, and why it cannot score."""
    project = caller.open(body.project_id)
    shown = [
        {
            "name": state.name,
            "ref": refs.object_ref(project, "object", state.name, state.digest),
            "active": state.active,
            "problem": state.problem,
            "submitted": state.submitted,
        }
        for state in monitors.states(project)
    ]
    return answer({"monitors": shown})
