"""Agents and their versions, their spans as rows and as groups, and the spans of conversations."""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import asdict

import orjson
from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from heddle.errors import InvalidField
from heddle.http.routing import Reader, StoreDep, answer, group
from heddle.store.base import Store
from heddle.store.control.agents.aggregates import COST_SUMS, LISTS, SUMS, SpanAggregate
from heddle.store.control.agents.fields import SpanFilter, column_name
from heddle.store.control.agents.reads import SpansRequest
from heddle.store.control.agents.table import CUSTOM
from heddle.store.control.row_queries import Sort
from heddle.trace.agents import chat, search, select, stats
from heddle.trace.agents.messages import full_spans, output_text, span_view, status, user_texts
from heddle.trace.agents.requests import (
    AgentConversationSpansReq,
    AgentCustomAttrsSchemaReq,
    AgentSpanGroupDistributionSpec,
    AgentSpansQueryReq,
    AgentsQueryReq,
    AgentVersionsQueryReq,
    groups,
    sort_of,
)
from heddle.trace.agents.responses import (
    AgentConversationSpansRes,
    AgentCustomAttrsSchemaRes,
    AgentSpansQueryRes,
    AgentsQueryRes,
    AgentVersionsQueryRes,
)
from heddle.trace.feedback.models import AGENT_MONITOR, AGENT_USER_FEEDBACK, remove_tone
from heddle.wire import jsontext, refs
from heddle.wire.aggregates import AggregateRow, Key, Measure
from heddle.wire.jsontypes import Json
from heddle.wire.query import Compare, Field, Literal, Not, Operation
from heddle.wire.spans import AgentSpan

router: APIRouter = group("Agents")

_SHOWN = (
    *("invocation_count", "span_count", "total_input_tokens", "total_output_tokens", "total_duration_ms"),
    *("error_count", "first_seen", "last_seen"),
)


_LAST_SEEN = [Sort("last_seen", descending=True)]


@router.post("/agents/query", response_model=AgentsQueryRes)
async def agents_query(body: AgentsQueryReq, caller: Reader, store: StoreDep) -> Response:
    """The agents of a project, the last seen first."""
    project = caller.open(body.project_id)
    asked = body.filters.agent_name if body.filters is not None else None
    named: Operation = _is_named(asked) if asked else Not(_is_named(""))
    rows, total = await _groups(store, project, body, "agent_name", named)
    agents = [_agent(body.project_id, item.keys[0], item) for item in rows]
    return answer({"agents": agents, "total_count": total})


@router.post("/agents/agent-versions/query", response_model=AgentVersionsQueryRes)
async def agents_versions_query(body: AgentVersionsQueryReq, caller: Reader, store: StoreDep) -> Response:
    """The versions of one agent, the last seen first; spans without a version are one of the name ''."""
    project = caller.open(body.project_id)
    rows, total = await _groups(store, project, body, "agent_version", _is_named(body.agent_name))
    versions = [{**_agent(body.project_id, body.agent_name, item), "agent_version": item.keys[0]} for item in rows]
    return answer({"versions": versions, "total_count": total})


async def _groups(
    store: Store, project: str, body: AgentsQueryReq | AgentVersionsQueryReq, column: str, condition: Operation
) -> tuple[list[AggregateRow], int]:
    """The spans that fulfil a condition, grouped by a column."""
    measures = (*SUMS, *([COST_SUMS[0]] if body.include_costs else []))
    known = {column, *(item.alias for item in measures)}
    for term in body.sort_by or ():
        if term.field not in known:
            raise InvalidField(f"Invalid sort field: {term.field[:200]}; expected one of {', '.join(sorted(known))}")
    selected = SpanFilter(project, after=await select.kept_since(store, project), query=condition)
    prices = await select.prices_for(store, selected) if body.include_costs else ()
    order, page = sort_of(body.sort_by) or _LAST_SEEN, (body.limit, body.offset)
    request = SpanAggregate(selected, measures, [Key(column, alias=column)], (), (), order, *page, prices)
    return await store.agent_spans.groups(request)


def _is_named(agent_name: str) -> Operation:
    return Compare("eq", Field("agent_name"), Literal(agent_name))


def _agent(project_id: str, agent_name: str, item: AggregateRow) -> Json:
    shown = {name: item.values[name] for name in _SHOWN}
    shown["total_duration_ms"] = round(shown["total_duration_ms"] or 0)
    cost = item.values.get("total_cost_usd")
    return {"project_id": project_id, "agent_name": agent_name, **shown, "total_cost_usd": cost}


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
    sort = sort_of(body.sort_by)
    prices = await select.prices_for(store, selected) if body.include_costs else None
    rows, total = await store.agent_spans.page(SpansRequest(selected, sort, body.limit, body.offset, prices))
    columns = [column.value() for column in body.custom_attr_columns]
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
    keys, asked = groups(body.group_by), [item.measure() for item in body.measures]
    priced = [item.value for item in (*body.measures, *(each.measure for each in body.group_filters)) if item.value]
    costs = body.include_costs or any(value.is_cost for value in priced)
    request = SpanAggregate(
        selected,
        (*asked, *SUMS, *(COST_SUMS if costs else ()), *LISTS),
        keys,
        [item.filter(keys) for item in body.group_filters],
        sort=sort_of(body.sort_by) or ([Sort(asked[0].alias, descending=True)] if asked else _LAST_SEEN),
        limit=body.limit,
        offset=body.offset,
        prices=await select.prices_for(store, selected) if costs else (),
    )
    rows, total = await store.agent_spans.groups(request)
    found = [_group(row, keys, asked) for row in rows]
    if not body.include_costs:
        found = [each | dict.fromkeys(item.alias for item in COST_SUMS) for each in found]
    for spec in body.group_distributions:
        await _distribute(store, selected, keys[0], found, spec)
    if len(keys) == 1 and keys[0].source in ("field", "column") and column_name(keys[0].key) == "conversation_id":
        await add_previews(store, selected, found, keys[0].alias)
    return answer({"spans": [], "groups": found, "total_count": total})


def _group(row: AggregateRow, keys: Sequence[Key], asked: Sequence[Measure]) -> Json:
    shown: Json = {
        "group_keys": {key.alias: value for key, value in zip(keys, row.keys, strict=True)},
        **{item.alias: row.values.get(item.alias) for item in (*COST_SUMS, *SUMS, *LISTS)},
        "first_message": None,
        "last_message": None,
        "metrics": {item.alias: row.values[item.alias] for item in asked},
        "distributions": {},
    }
    shown["total_duration_ms"] = round(shown["total_duration_ms"] or 0)
    return shown


async def _distribute(
    store: Store, selected: SpanFilter, key: Key, shown: list[Json], spec: AgentSpanGroupDistributionSpec
) -> None:
    """Add one distribution to every group."""
    stored = [int(item) if isinstance(item := each["group_keys"][key.alias], bool) else item for each in shown]
    value = spec.value.value()
    found = await store.agent_spans.distributions(selected, key, stored, value, spec.bins, spec.top_n)
    named = {"alias": spec.alias, "source": value.source, "key": value.key, "value_type": CUSTOM[value.source]}
    for each, item in zip(shown, stored, strict=True):
        each["distributions"][spec.alias] = named | asdict(found[item])


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


_PREVIEW = 280
_TRIES = 6


async def add_previews(store: Store, selected: SpanFilter, groups: Sequence[Json], alias: str) -> None:
    """Fill `first_message` and `last_message` of groups whose key `alias` is a conversation.

    They are looked for in the first and the last few spans of each conversation; without text there they stay null.
    """
    by_id = {key: group for group in groups if (key := group["group_keys"][alias])}
    window = SpanFilter(selected.project, selected.after, selected.before)
    for name, role, last, text_of in (
        ("first_message", "user_message", False, _first_text),
        ("last_message", "assistant_message", True, _last_text),
    ):
        missing = list(by_id)
        for rank in range(1, _TRIES + 1):
            found = await _texts(store, window, missing, rank, last, text_of) if missing else {}
            for conversation_id, text in found.items():
                by_id[conversation_id][name] = {"role": role, "text": text}
            missing = [conversation_id for conversation_id in missing if conversation_id not in found]


async def _texts(
    store: Store,
    selected: SpanFilter,
    conversation_ids: Sequence[str],
    rank: int,
    last: bool,
    text_of: Callable[[AgentSpan], str],
) -> dict[str, str]:
    """What the span at a rank of each conversation says, where it says something."""
    spans = await store.agent_spans.ranked(selected, conversation_ids, rank, last)
    conversation_of = {span_id: conversation_id for conversation_id, span_id in spans}
    found: dict[str, str] = {}
    async for piece in full_spans(store, selected.project, list(conversation_of)):
        for span_id, span in piece.items():
            if text := text_of(span).strip():
                short = text if len(text) <= _PREVIEW else text[:_PREVIEW].rstrip() + "…"
                found[conversation_of[span_id]] = short
    return found


def _first_text(span: AgentSpan) -> str:
    return next(reversed(user_texts(span.input_messages)), "")


def _last_text(span: AgentSpan) -> str:
    return output_text(span.output_messages)


MAX_SPANS = 200


for _module in (stats, search, chat):
    router.routes.extend(_module.router.routes)


@router.post("/agents/conversations/spans", response_model=AgentConversationSpansRes)
async def agents_conversations_spans(body: AgentConversationSpansReq, caller: Reader, store: StoreDep) -> Response:
    """The newest 200 spans of each conversation, oldest first, and the feedback on it and on its turns."""
    project = caller.open(body.project_id)
    selected = await select.span_filter(store, project, after=body.started_after, before=body.started_before)
    ids = list(dict.fromkeys(body.conversation_ids))
    found = await store.agent_spans.conversations(selected, ids, MAX_SPANS) if ids else {}
    turns = {row["trace_id"]: conversation_id for conversation_id, rows in found.items() for row in rows}
    said = await _feedback(store, project, ids, turns)
    conversations = [
        {
            "conversation_id": conversation_id,
            "spans": [_span(row) for row in found.get(conversation_id, ())],
            "spans_feedback": said.get(conversation_id, []),
        }
        for conversation_id in body.conversation_ids
    ]
    return answer({"conversations": conversations})


async def _feedback(store: Store, project: str, ids: Iterable[str], turns: dict[str, str]) -> dict[str, list[Json]]:
    """Tags and ratings by conversation: those of the conversation itself first, then those of its turns."""
    prefix = f"{refs.INTERNAL}{project}/"
    targets: dict[str, tuple[str, str | None]] = {
        f"{prefix}agent_conversation/{refs.quote_part(conversation_id)}": (conversation_id, None)
        for conversation_id in ids
    }
    targets |= {f"{prefix}agent_turn/{refs.quote_part(turn)}": (turns[turn], turn) for turn in turns}
    rows = await store.feedback.for_refs(project, list(targets))
    found: dict[str, list[Json]] = {}
    for ref, (conversation_id, trace_id) in targets.items():
        for row in rows.get(ref, ()):
            if row["feedback_type"] in (AGENT_USER_FEEDBACK, AGENT_MONITOR):
                found.setdefault(conversation_id, []).append(_marker(row, trace_id))
    return found


def _marker(row: Json, trace_id: str | None) -> Json:
    named = {
        name: orjson.loads(orjson.dumps(row[name]))
        for name in ("scorer_tags", "scorer_ratings", "scorer_rating_reasons", "scorer_rating_confidences")
    }
    reasons, confidences = named["scorer_rating_reasons"], named["scorer_rating_confidences"]
    return {
        "trace_id": trace_id,
        "feedback_type": row["feedback_type"],
        "tags": [remove_tone(tag) for tag in named["scorer_tags"] if tag],
        "ratings": [
            {"name": name, "value": value, "reason": reasons.get(name) or None, "confidence": confidences.get(name)}
            for name, value in named["scorer_ratings"].items()
        ],
    }


def _span(row: Json) -> Json:
    return {
        "operation_name": row["operation_name"],
        "trace_id": row["trace_id"],
        "span_id": row["span_id"],
        "status": status(row["status_code"]),
        "duration_ms": max(0, (row["ended_at"] - row["started_at"]) // 1000),
    }
