"""Agents and their versions, summed over their spans."""

from fastapi import APIRouter, Response

from heddle.errors import InvalidField
from heddle.http import Reader, StoreDep, answer, group
from heddle.store.base import Store
from heddle.store.control.agents.groups import SUMS, GroupsRequest
from heddle.store.control.agents.measures import GroupRef
from heddle.store.control.agents.query import SpanFilter
from heddle.trace.agents import select
from heddle.trace.agents.answers import AgentsQueryRes, AgentVersionsQueryRes
from heddle.trace.agents.models import AgentsQueryReq, AgentVersionsQueryReq
from heddle.wire.jsontypes import Json
from heddle.wire.query import Compare, Field, Literal, Not, Operation

router: APIRouter = group("Agents")

_SHOWN = (
    *("invocation_count", "span_count", "total_input_tokens", "total_output_tokens", "total_duration_ms"),
    *("error_count", "first_seen", "last_seen"),
)


@router.post("/agents/query", response_model=AgentsQueryRes)
async def agents_query(body: AgentsQueryReq, caller: Reader, store: StoreDep) -> Response:
    """The agents of a project, the last seen first."""
    project = caller.open(body.project_id)
    asked = body.filters.agent_name if body.filters is not None else None
    named: Operation = _is_named(asked) if asked else Not(_is_named(""))
    groups, total = await _groups(store, project, body, "agent_name", named)
    agents = [_agent(body.project_id, item["group_keys"]["agent_name"], item) for item in groups]
    return answer({"agents": agents, "total_count": total})


@router.post("/agents/agent-versions/query", response_model=AgentVersionsQueryRes)
async def agents_versions_query(body: AgentVersionsQueryReq, caller: Reader, store: StoreDep) -> Response:
    """The versions of one agent, the last seen first; spans without a version are one of the name ''."""
    project = caller.open(body.project_id)
    groups, total = await _groups(store, project, body, "agent_version", _is_named(body.agent_name))
    versions = [
        {**_agent(body.project_id, body.agent_name, item), "agent_version": item["group_keys"]["agent_version"]}
        for item in groups
    ]
    return answer({"versions": versions, "total_count": total})


async def _groups(
    store: Store, project: str, body: AgentsQueryReq | AgentVersionsQueryReq, column: str, condition: Operation
) -> tuple[list[Json], int]:
    """The spans that fulfil a condition, grouped by a column."""
    known = {column, *SUMS} | ({"total_cost_usd"} if body.include_costs else set())
    for term in body.sort_by or ():
        if term.field not in known:
            raise InvalidField(f"Invalid sort field: {term.field[:200]}; known are {', '.join(sorted(known))}")
    selected = SpanFilter(project, after=await select.kept_since(store, project), query=condition)
    prices = await select.prices_for(store, selected) if body.include_costs else None
    request = GroupsRequest(
        selected,
        [GroupRef("field", column, column)],
        sort=select.sort_of(body.sort_by),
        limit=body.limit,
        offset=body.offset,
        prices=prices,
    )
    return await store.agent_spans.groups(request)


def _is_named(agent_name: str) -> Operation:
    return Compare("eq", Field("agent_name"), Literal(agent_name))


def _agent(project_id: str, agent_name: str, item: Json) -> Json:
    shown = {name: item[name] for name in _SHOWN}
    return {"project_id": project_id, "agent_name": agent_name, **shown, "total_cost_usd": item["total_cost_usd"]}
