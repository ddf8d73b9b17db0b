"""The projects of this server with what happened in them lately."""

import asyncio
from typing import Any

from fastapi import Response

from heddle.http.routing import PricesDep, Reader, RequestModel, StoreDep, Writer, answer, group
from heddle.ui.reads.overview import describe_rejections
from heddle.wire import refs, times
from heddle.wire.calls import ProjectActivity, cost_of_tokens
from heddle.wire.inference import CostOf, sum_of_costs

router = group("Pages")

_LATELY = 30 * times.DAY
_TOLD = 7 * times.DAY
"""How long it is told what named no project."""


@router.get("/_ui/api/projects", include_in_schema=False)
async def projects(caller: Reader, store: StoreDep, prices: PricesDep) -> Response:
    """Every project that the caller reaches, the one with the newest call first; cost and errors of 30 days."""
    found = await store.call_aggregates.projects(times.now() - _LATELY, prices.changes)
    named = [(activity, refs.external_project(activity.project)) for activity in found]
    reached = [(activity, name) for activity, name in named if name is not None and caller.reaches(name)]
    reached.sort(key=lambda pair: (-(pair[0].last_started_at or 0), pair[1]))
    costs = await asyncio.gather(*(prices(activity.project) for activity, _ in reached))
    shown = [_describe(*pair, cost_of) for pair, cost_of in zip(reached, costs, strict=True)]
    # What named no project is nobody's: callers that are bound to one do not see it.
    rejected = [] if caller.reach else await describe_rejections(store, "", times.now() - _TOLD)
    return answer({"projects": shown, "rejected": rejected})


class NewProject(RequestModel):
    """The project to make: `entity/project`."""

    id: str


@router.post("/_ui/api/projects", include_in_schema=False)
async def make_project(body: NewProject, caller: Writer, store: StoreDep) -> Response:
    """Make a project known; nothing happens to one that is."""
    await store.projects.make(caller.open(body.id), None)
    store.call_aggregates.forget_projects()
    return answer({"id": body.id})


def _describe(activity: ProjectActivity, name: str, cost_of: CostOf) -> dict[str, Any]:
    return {
        "id": name,
        "calls": activity.calls,
        "last_activity": times.optional_iso(activity.last_started_at),
        "lately": activity.lately,
        "errors": activity.errors,
        "error_share": activity.errors / activity.lately if activity.lately else None,
        "cost": sum_of_costs(cost_of_tokens(cost_of, used, used.priced_at) for used in activity.usage),
    }
