"""Spans of agents and models as rows, as groups, and the custom attributes they have."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from heddle.http import Reader, StoreDep, answer, group
from heddle.store.base import Store
from heddle.store.control.agents.fields import column_name
from heddle.store.control.agents.groups import Distribution, GroupsRequest
from heddle.store.control.agents.query import SpanFilter
from heddle.store.control.agents.reads import SpansRequest
from heddle.store.control.agents.table import CUSTOM
from heddle.trace.agents import select
from heddle.trace.agents.answers import AgentCustomAttrsSchemaRes
from heddle.trace.agents.answers_spans import AgentSpansQueryRes
from heddle.trace.agents.messages import full_spans
from heddle.trace.agents.models import AgentCustomAttrsSchemaReq, AgentSpansQueryReq
from heddle.trace.agents.previews import add_previews
from heddle.trace.agents.view import span_view
from heddle.wire import jsontext, refs
from heddle.wire.jsontypes import Json

router: APIRouter = group("Agents")


@router.post("/agents/spans/query", response_model=AgentSpansQueryRes)
async def agents_spans_query(body: AgentSpansQueryReq, caller: Reader, store: StoreDep) -> Response:
    """Spans that match, newest first, or groups of them."""
    project = caller.open(body.project_id)
    select.refuse_insights(body.insight_filters)
    selected = await select.span_filter(
        store,
        project,
        after=body.started_after,
        before=body.started_before,
        query=body.query,
        signals=body.signal_filters,
    )
    if body.group_by:
        return await _grouped(store, body, selected)
    sort = select.sort_of(body.sort_by)
    prices = await select.prices_for(store, selected) if body.include_costs else None
    rows, total = await store.agent_spans.page(SpansRequest(selected, sort, body.limit, body.offset, prices))
    columns = [select.value_ref(column) for column in body.custom_attr_columns]
    if body.include_details:
        return StreamingResponse(_detailed(store, body, project, rows, total), media_type="application/json")
    spans = [span_view(body.project_id, row, columns, None) for row in rows]
    return answer({"spans": spans, "groups": [], "total_count": total})


async def _detailed(
    store: Store, body: AgentSpansQueryReq, project: str, rows: list[Json], total: int
) -> AsyncIterator[bytes]:
    """The answer piece by piece: messages may be large, and only a few spans are in memory at a time."""
    yield b'{"groups":[],"total_count":%d,"spans":[' % total
    done = 0
    async for full in full_spans(store, project, [row["span_id"] for row in rows]):
        last = next(reversed(full), None)
        while last is not None and done < len(rows):
            row = rows[done]
            mine = full.get(row["span_id"])
            mine = mine if mine is not None and mine.trace_id == row["trace_id"] else None
            yield _item(span_view(body.project_id, row, (), mine), done)
            done += 1
            if row["span_id"] == last:
                break
    for place in range(done, len(rows)):
        yield _item(span_view(body.project_id, rows[place], (), None), place)
    yield b"]}"


def _item(value: Json, place: int) -> bytes:
    return (b"," if place else b"") + refs.convert_out(jsontext.dumps_bytes(value))


async def _grouped(store: Store, body: AgentSpansQueryReq, selected: SpanFilter) -> Response:
    group_by = select.group_refs(body.group_by or ())
    costs = body.include_costs or select.needs_costs(
        [*body.measures, *(item.measure for item in body.group_filters)], ()
    )
    request = GroupsRequest(
        selected,
        group_by,
        [select.measure_of(item) for item in body.measures],
        [select.group_filter(item, group_by) for item in body.group_filters],
        select.sort_of(body.sort_by),
        body.limit,
        body.offset,
        await select.prices_for(store, selected) if costs else None,
    )
    groups, total = await store.agent_spans.groups(request)
    if not body.include_costs:
        for item in groups:
            item |= {"total_cost_usd": None, "total_input_cost_usd": None, "total_output_cost_usd": None}
    alias = group_by[0].alias
    for spec in body.group_distributions:
        await _distribute(
            store, request, groups, Distribution(spec.alias, spec.value.source, spec.value.key, spec.bins, spec.top_n)
        )
    if len(group_by) == 1 and group_by[0].source in ("field", "column") and _is_conversation(group_by[0].key):
        await add_previews(store, selected, groups, alias)
    return answer({"spans": [], "groups": groups, "total_count": total})


def _is_conversation(key: str) -> bool:
    return column_name(key) == "conversation_id"


async def _distribute(store: Store, request: GroupsRequest, groups: list[Json], spec: Distribution) -> None:
    """Add one distribution to every group."""
    ref = request.group_by[0]
    keys = [item["group_keys"][ref.alias] for item in groups]
    stored = [int(key) if isinstance(key, bool) else key for key in keys]
    found = await store.agent_spans.distributions(request.filter, ref, stored, spec)
    named = {"alias": spec.alias, "source": spec.source, "key": spec.key, "value_type": CUSTOM[spec.source]}
    for item, key in zip(groups, stored, strict=True):
        item["distributions"][spec.alias] = named | found[key]


@router.post("/agents/spans/custom-attrs/schema", response_model=AgentCustomAttrsSchemaRes)
async def agents_spans_custom_attrs_schema(
    body: AgentCustomAttrsSchemaReq, caller: Reader, store: StoreDep
) -> Response:
    """The custom attributes of the spans that match; those of most spans first."""
    project = caller.open(body.project_id)
    selected = await select.span_filter(
        store, project, after=body.started_after, before=body.started_before, query=body.query
    )
    found = await store.agent_spans.attributes(selected)
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0][1], item[0][0]))
    page = ordered[body.offset : body.offset + body.limit]
    return answer(
        {
            "attributes": [
                {"source": source, "key": key, "value_type": CUSTOM[source], "span_count": count}
                for (source, key), count in page
            ],
            "limit": body.limit,
            "offset": body.offset,
            "has_more": len(ordered) > body.offset + body.limit,
        }
    )
