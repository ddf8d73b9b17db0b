"""The agents reads over HTTP: spans are exported over OTLP, and read as lists, groups and figures."""

import time
from typing import Any

import pytest

from tests.conftest import Wire
from tests.support.agents import Trace, eq, export, hour, travelled

Json = Any


def spans(wire: Wire, **body: Json) -> list[Json]:
    """The spans that a query selects."""
    return list(wire.post("/agents/spans/query", **body)["spans"])


def names(wire: Wire, **body: Json) -> list[str]:
    """The names of the selected spans, sorted."""
    return sorted(span["span_name"] for span in spans(wire, **body))


@pytest.fixture
def travel(wire: Wire) -> Trace:
    """A turn of the agent `planner`."""
    return travelled(wire)


def test_a_span_as_it_is_read(wire: Wire, travel: Trace) -> None:
    """Scalars always, messages and custom attributes with details; what a span does not say is empty or null."""
    found = wire.post("/agents/spans/query", query=eq("operation_name", "execute_tool"))
    assert found["total_count"] == 1 and found["groups"] == []
    [tool] = found["spans"]
    assert tool["project_id"] == wire.project
    assert tool["trace_id"] == travel.trace_id
    assert (tool["agent_name"], tool["agent_version"], tool["conversation_id"]) == ("planner", "2", "trip")
    assert (tool["status_code"], tool["status_message"], tool["tool_name"]) == ("ERROR", "unknown", "timetable")
    assert (tool["input_tokens"], tool["request_model"], tool["request_temperature"]) == (None, "", None)
    assert tool["custom_attrs_int"] == {} and tool["tool_call_result"] == "" and tool["total_cost_usd"] is None
    [full] = spans(wire, query=eq("operation_name", "execute_tool"), include_details=True)
    assert (full["tool_call_arguments"], full["tool_call_result"]) == ('{"to":"Basel"}', "no such station")
    assert full["custom_attrs_int"] == {"retries": 2}
    assert "timetable" in full["raw_span_dump"]
    [_, first] = spans(wire, query=eq("operation_name", "chat"), include_details=True)
    assert first["input_messages"] == [{"role": "user", "content": "Find a train", "finish_reason": ""}]
    assert first["output_messages"] == [{"role": "assistant", "content": "One moment", "finish_reason": ""}]


def test_identity_of_the_trace(wire: Wire) -> None:
    """A span without an agent shows the trace's, also when the agent's span comes later; a named one keeps its own."""
    trace = Trace()
    root = trace.agent("outer", gen_ai__conversation__id="later")
    trace.chat(root, "hi")
    helper = trace.agent("helper", root, gen_ai__agent__version="7")
    trace.chat(helper, "sub", gen_ai__agent__name="helper", gen_ai__agent__version="7")
    export(wire, spans=trace.spans[1:])
    assert {span["conversation_id"] for span in spans(wire)} == {""}
    export(wire, spans=trace.spans[:1])
    found = [(span["span_name"], span["agent_name"], span["agent_version"]) for span in spans(wire)]
    assert found == [
        ("chat gpt-4o", "helper", "7"),
        ("invoke_agent helper", "helper", "7"),
        ("chat gpt-4o", "outer", ""),
        ("invoke_agent outer", "outer", ""),
    ]
    assert {span["conversation_id"] for span in spans(wire)} == {"later"}


def test_a_span_that_is_sent_again_takes_back_what_it_declared(wire: Wire) -> None:
    """The others of its trace went on showing the agent and the conversation that it named before."""
    trace = Trace()
    root = trace.agent("old", gen_ai__conversation__id="before")
    trace.chat(root, "hi")
    helper = trace.agent("helper", root)
    trace.chat(helper, "sub", gen_ai__agent__name="helper")
    export(wire, spans=trace.spans)
    again = Trace(start=trace.start)
    again.trace_id = trace.trace_id
    others = ["helper", "helper"]
    for agent, conversation, shown in (("new", "after", [*others, "new", "new"]), ("", "", [*others, *others])):
        again.spans.clear()
        again.agent(agent, gen_ai__conversation__id=conversation)
        again.spans[0]["spanId"] = root
        export(wire, spans=again.spans)
        assert [(span["agent_name"], span["conversation_id"]) for span in spans(wire)] == [
            (name, conversation) for name in shown
        ]


@pytest.mark.usefixtures("travel")
def test_queries(wire: Wire) -> None:
    """Fields by every spelling, custom attributes by type or by the constant beside them, null, numbers, time."""
    chats = ["chat gpt-4o", "chat gpt-4o"]
    for field in ("operation_name", "operation.name", "gen_ai.operation.name", "weave.operation.name"):
        assert names(wire, query=eq(field, "chat")) == chats
    assert names(wire, query=eq("team", "a")) == ["chat gpt-4o"]
    assert names(wire, query=eq("custom_attrs_string.team", "a")) == ["chat gpt-4o"]
    assert names(wire, query=eq("retries", 2)) == ["execute_tool timetable"]
    assert names(wire, query=eq("score", 0.5)) == ["chat gpt-4o"]
    assert names(wire, query=eq("parent_span_id", "")) == ["invoke_agent planner"]
    assert names(wire, query=eq("parent_span_id", None)) == ["invoke_agent planner"]
    assert names(wire, query=eq("custom_attrs_int.retries", None)) == [*chats, "invoke_agent planner"]
    tokens = {"$gt": [{"$getField": "input_tokens"}, {"$literal": 150}]}
    assert names(wire, query={"$expr": tokens}) == ["chat gpt-4o"]
    both = {"$and": [tokens, {"$contains": {"input": {"$getField": "span_name"}, "substr": {"$literal": "chat"}}}]}
    assert names(wire, query={"$expr": {"$not": [both]}}) != chats
    models = {"$in": [{"$getField": "request_model"}, [{"$literal": "gpt-4o"}, {"$literal": "other"}]]}
    assert names(wire, query={"$expr": models}) == chats
    assert names(wire, started_after=hour(1)) == [] == names(wire, started_before=hour(-1))
    assert len(names(wire, started_after=hour(-1), started_before=hour(1))) == 4


@pytest.mark.usefixtures("travel")
def test_order_pages_and_columns(wire: Wire) -> None:
    """The newest first unless sorted; pages make up the whole; only asked custom attributes are shown."""
    all_ids = [span["span_id"] for span in spans(wire)]
    assert all_ids == [span["span_id"] for span in spans(wire, sort_by=[{"field": "started_at"}])]
    pages = [spans(wire, limit=2, offset=offset) for offset in (0, 2, 4)]
    assert [span["span_id"] for page in pages for span in page] == all_ids
    assert wire.post("/agents/spans/query", limit=1, offset=3)["total_count"] == 4
    assert wire.post("/agents/spans/query", limit=0) == {"spans": [], "groups": [], "total_count": 4}
    up = spans(wire, sort_by=[{"field": "input_tokens", "direction": "asc"}])
    assert [span["input_tokens"] for span in up] == [100, 200, None, None]
    columns = [{"source": "custom_attrs_int", "key": "retries"}]
    by_custom = spans(wire, custom_attr_columns=columns, sort_by=[{"field": "custom_attrs_int.retries"}])
    assert by_custom[0]["custom_attrs_int"] == {"retries": 2} and by_custom[0]["custom_attrs_string"] == {}


@pytest.mark.usefixtures("travel")
def test_costs(wire: Wire) -> None:
    """Prices of the project price spans, groups and figures; without a price there is no cost."""
    assert all(span["total_cost_usd"] is None for span in spans(wire))
    prices = {"gpt-4o": {"prompt_token_cost": 0.01, "completion_token_cost": 0.1, "effective_date": hour(-1)}}
    wire.post("/cost/create", costs=prices)
    found = spans(wire, include_costs=True, sort_by=[{"field": "total_cost_usd"}])
    assert [span["total_cost_usd"] for span in found] == [pytest.approx(4), pytest.approx(2), None, None]
    assert found[1]["input_cost_usd"] == pytest.approx(1) and found[1]["output_cost_usd"] == pytest.approx(1)
    [group] = wire.post("/agents/spans/query", group_by=[{"key": "agent_name"}], include_costs=True)["groups"]
    assert group["total_cost_usd"] == pytest.approx(6) and group["total_input_cost_usd"] == pytest.approx(3)
    [agent] = wire.post("/agents/query", include_costs=True)["agents"]
    assert agent["total_cost_usd"] == pytest.approx(6)
    assert wire.post("/agents/query")["agents"][0]["total_cost_usd"] is None
    measure = {"alias": "dollars", "aggregation": "sum", "value": {"source": "derived", "key": "total_cost_usd"}}
    [group] = wire.post("/agents/spans/query", group_by=[{"key": "agent_name"}], measures=[measure])["groups"]
    assert group["metrics"] == {"dollars": pytest.approx(6)} and group["total_cost_usd"] is None


def test_repeated_usage_is_counted_once(wire: Wire) -> None:
    """Agents that repeat the tokens of the models below them add nothing to sums, also when they are told later."""
    used: Json = {"gen_ai__usage__input_tokens": 100, "gen_ai__usage__output_tokens": 10}
    trace, alone = Trace("c"), Trace("c")
    agent = trace.agent("a", **used)
    trace.chat(agent, **used)
    alone.agent("a", **used)
    export(wire, alone, spans=[*alone.spans, *trace.spans[:1]])
    assert wire.post("/agents/query")["agents"][0]["total_input_tokens"] == 200
    export(wire, trace)
    [found] = wire.post("/agents/query", include_costs=True)["agents"]
    assert (found["span_count"], found["total_input_tokens"], found["total_output_tokens"]) == (3, 200, 20)
    by_trace = {"source": "field", "key": "input_tokens"}
    metric = {"alias": "tokens", "value_type": "number", "aggregations": ["sum", "max"], "value": by_trace}
    rows = wire.post("/agents/spans/stats", start=hour(-1), granularity=7200, metrics=[metric])["rows"]
    assert sum(row["sum_tokens"] for row in rows) == 200
    view = wire.post("/agents/traces/chat", trace_id=trace.trace_id)
    assert view["total_input_tokens"] == 100
    assert view["total_cost_usd"] == pytest.approx(found["total_cost_usd"]) == pytest.approx(0.00035)
    assert [span["input_tokens"] for span in spans(wire)] == [100, 100, 100]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_models_within_models_are_counted_once(wire: Wire, order: tuple[int, ...]) -> None:
    """A library and what it is built on may both report a request; in whatever order they are sent, it counts once."""
    used: Json = {"gen_ai__usage__input_tokens": 100, "gen_ai__usage__output_tokens": 10}
    trace = Trace()
    outer = trace.chat(trace.agent("a"), **used)
    trace.chat(outer, **used)
    for place in order:
        export(wire, spans=[trace.spans[place]])
    assert wire.post("/agents/query")["agents"][0]["total_input_tokens"] == 100


@pytest.mark.usefixtures("travel")
def test_agents_and_versions(wire: Wire) -> None:
    """Agents with what their spans used; the last seen first, sorted and filtered as asked."""
    other = Trace(start=time.time_ns())
    other.agent("writer")
    export(wire, other)
    answer = wire.post("/agents/query")
    assert answer["total_count"] == 2
    assert [agent["agent_name"] for agent in answer["agents"]] == ["writer", "planner"]
    planner = answer["agents"][1]
    assert (planner["span_count"], planner["invocation_count"], planner["error_count"]) == (4, 1, 1)
    assert (planner["total_input_tokens"], planner["total_output_tokens"]) == (300, 30)
    assert planner["total_duration_ms"] == 515
    assert planner["first_seen"] < planner["last_seen"]
    by_count = wire.post("/agents/query", sort_by=[{"field": "span_count"}], limit=1)
    assert [agent["agent_name"] for agent in by_count["agents"]] == ["planner"] and by_count["total_count"] == 2
    one = wire.post("/agents/query", filters={"agent_name": "writer"})
    assert one["total_count"] == 1 and one["agents"][0]["agent_name"] == "writer"
    versions = wire.post("/agents/agent-versions/query", agent_name="planner")
    assert [(item["agent_version"], item["span_count"]) for item in versions["versions"]] == [("2", 4)]
    assert wire.post("/agents/agent-versions/query", agent_name="nobody") == {"versions": [], "total_count": 0}


@pytest.mark.usefixtures("travel")
def test_groups(wire: Wire) -> None:
    """Sums of groups, asked figures, filters over them, order, and previews of conversations."""
    second = Trace("other", start=time.time_ns())
    agent = second.agent("planner", user="Second question")
    second.chat(agent, "Second question", "Second answer", gen_ai__usage__input_tokens=1)
    export(wire, second)
    answer = wire.post("/agents/spans/query", group_by=[{"source": "column", "key": "conversation_id"}])
    assert answer["spans"] == [] and answer["total_count"] == 2
    other, trip = answer["groups"]
    assert other["group_keys"] == {"conversation_id": "other"} and trip["group_keys"] == {"conversation_id": "trip"}
    assert (trip["span_count"], trip["error_count"], trip["total_input_tokens"]) == (4, 1, 300)
    assert trip["agent_names"] == ["planner"] and trip["request_models"] == ["gpt-4o"]
    assert trip["first_message"] == {"role": "user_message", "text": "Find a train"}
    assert trip["last_message"] == {"role": "assistant_message", "text": "Sorry"}
    assert other["last_message"]["text"] == "Second answer"
    slow = {"alias": "slowest", "aggregation": "max", "value": {"source": "derived", "key": "duration_ms"}}
    failed = {"alias": "failed", "aggregation": "count_true", "value": {"source": "derived", "key": "is_error"}}
    chats = {"alias": "chats", "aggregation": "count", "filter": eq("operation_name", "chat")}
    groups = wire.post(
        "/agents/spans/query",
        group_by=[{"key": "gen_ai.operation.name"}],
        measures=[slow, failed, chats],
        sort_by=[{"field": "chats"}, {"field": "operation_name", "direction": "asc"}],
    )["groups"]
    assert [group["group_keys"]["operation_name"] for group in groups] == ["chat", "execute_tool", "invoke_agent"]
    assert [group["metrics"] for group in groups] == [
        {"slowest": 5, "failed": 0, "chats": 3},
        {"slowest": 5, "failed": 1, "chats": 0},
        {"slowest": 500, "failed": 0, "chats": 0},
    ]
    filters = [{"measure": {"alias": "n", "aggregation": "count"}, "min": 3}]
    busy = wire.post("/agents/spans/query", group_by=[{"key": "operation_name"}], group_filters=filters)
    assert [group["group_keys"]["operation_name"] for group in busy["groups"]] == ["chat"]
    assert busy["total_count"] == 1


def test_distributions(wire: Wire) -> None:
    """Numbers in ranges, other values by how often they occur, per group."""
    trace = Trace("c")
    for number in range(10):
        trace.chat(size=number, colour="red" if number < 6 else f"c{number}", ok=number % 2 == 0)
    trace.chat()
    export(wire, trace)
    sizes = {"alias": "sizes", "value": {"source": "custom_attrs_int", "key": "size"}, "bins": 3}
    colours = {"alias": "colours", "value": {"source": "custom_attrs_string", "key": "colour"}, "top_n": 2}
    truths = {"alias": "truths", "value": {"source": "custom_attrs_bool", "key": "ok"}}
    [group] = wire.post(
        "/agents/spans/query",
        group_by=[{"key": "conversation_id"}],
        group_distributions=[sizes, colours, truths],
    )["groups"]
    found = group["distributions"]
    assert [(item["min"], item["max"], item["count"]) for item in found["sizes"]["bins"]] == [
        (0, 3, 3), (3, 6, 3), (6, 9, 4)
    ]  # fmt: skip
    assert (found["sizes"]["total_count"], found["sizes"]["missing_count"]) == (11, 1)
    assert found["colours"]["values"] == [{"value": "red", "count": 6}, {"value": "c6", "count": 1}]
    assert found["colours"]["other_count"] == 3 and found["colours"]["value_type"] == "string"
    assert found["truths"]["values"] == [{"value": "false", "count": 5}, {"value": "true", "count": 5}]


@pytest.mark.usefixtures("travel")
def test_custom_attribute_schema(wire: Wire) -> None:
    """Which custom attributes spans have, with their types; those of most spans first."""
    more = Trace()
    more.chat(team="b")
    export(wire, more)
    answer = wire.post("/agents/spans/custom-attrs/schema")
    assert answer["attributes"] == [
        {"source": "custom_attrs_string", "key": "team", "value_type": "string", "span_count": 2},
        {"source": "custom_attrs_int", "key": "retries", "value_type": "int", "span_count": 1},
        {"source": "custom_attrs_float", "key": "score", "value_type": "float", "span_count": 1},
    ]
    assert (answer["limit"], answer["offset"], answer["has_more"]) == (200, 0, False)
    page = wire.post("/agents/spans/custom-attrs/schema", limit=1, offset=1)
    assert [item["key"] for item in page["attributes"]] == ["retries"] and page["has_more"]
    some = wire.post("/agents/spans/custom-attrs/schema", query=eq("operation_name", "execute_tool"))
    assert [item["key"] for item in some["attributes"]] == ["retries"]


def test_signals(wire: Wire) -> None:
    """Spans by the tags and ratings of their span, their turn or their conversation."""
    traces = [Trace(f"conv {number}") for number in range(4)]
    for trace in traces:
        trace.chat()
    export(wire, *traces)
    by_span, by_turn, by_conversation = traces[0].spans[0]["spanId"], traces[1].trace_id, "conv%202"
    for kind, name, tags, rating in (
        ("agent_span", by_span, ["good"], 0.9),
        ("agent_turn", by_turn, ["good", "kind"], 0.2),
        ("agent_conversation", by_conversation, ["bad"], 0.1),
    ):
        wire.post(
            "/feedback/create",
            weave_ref=f"weave:///{wire.project}/{kind}/{name}",
            feedback_type="wandb.agent_user_feedback",
            payload={},
            scorer_tags=tags,
            scorer_ratings={"taste": rating},
        )

    def conversations(**signals: Json) -> list[str]:
        return sorted(span["conversation_id"] for span in spans(wire, signal_filters=signals))

    assert conversations(tags=["good"]) == ["conv 0", "conv 1"]
    assert conversations(tags=["bad", "kind"]) == ["conv 1", "conv 2"]
    low = {"scorer_key": "taste", "op": "lt", "value": 0.5}
    assert conversations(ratings=[low]) == ["conv 1", "conv 2"]
    assert conversations(tags=["good"], ratings=[low]) == ["conv 1"]
    assert conversations(tags=["unheard"]) == []
    assert conversations() == ["conv 0", "conv 1", "conv 2", "conv 3"]


def test_spans_that_wrap_around_an_agent(wire: Wire) -> None:
    """A span of an agent that names none is no invocation of the one below it; alone it is one of a nameless agent."""
    trace, nameless = Trace(), Trace()
    wrapper = trace.span("workflow", gen_ai__operation__name="invoke_agent")
    trace.agent("meteo", wrapper)
    nameless.span("workflow", gen_ai__operation__name="invoke_agent")
    export(wire, trace, nameless)
    [meteo] = wire.post("/agents/query")["agents"]
    assert (meteo["agent_name"], meteo["invocation_count"], meteo["span_count"]) == ("meteo", 1, 2)
    counted = {"alias": "n", "aggregation": "count_true", "value": {"source": "derived", "key": "is_invocation"}}
    grouped = wire.post("/agents/spans/query", group_by=[{"key": "agent_name"}], measures=[counted])["groups"]
    figures = {row["group_keys"]["agent_name"]: (row["invocation_count"], row["metrics"]["n"]) for row in grouped}
    assert figures == {"meteo": (1, 1), "": (1, 1)}
