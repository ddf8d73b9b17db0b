"""Chat views, search and the spans of conversations over HTTP."""

import time
from typing import Any

import pytest

from tests.conftest import Wire
from tests.support.agents import MILLISECOND, Trace, export, messages

Json = Any


def chat(wire: Wire, trace: Trace, **body: Json) -> Json:
    """The chat view of a trace."""
    return wire.post("/agents/traces/chat", trace_id=trace.trace_id, **body)


def told(view: Json) -> list[tuple[str, str]]:
    """The type of every message, and what it says."""
    said = []
    for message in view["messages"]:
        payload = message[message["type"]]
        others = ("user_message", "assistant_message", "tool_call", "agent_start", "agent_handoff", "context_compacted")
        assert all(message[name] is None for name in others if name != message["type"])
        text = payload.get("text") or payload.get("tool_name") or message["agent_name"] or ""
        said.append((message["type"], text))
    return said


@pytest.fixture
def turn(wire: Wire) -> Trace:
    """A turn with a tool and an agent below the first one."""
    trace = Trace("talk")
    agent = trace.agent("boss", user="Weather?", gen_ai__system_instructions='[{"type":"text","content":"Be short"}]')
    trace.chat(agent, "Weather?", "Let me look", gen_ai__usage__input_tokens=10, gen_ai__usage__output_tokens=5)
    tool = trace.tool("weather", '{"city":"Bern"}', "rain", agent)
    helper = trace.agent("helper", tool)
    trace.chat(helper, answer="It rains", gen_ai__usage__output_tokens=7, gen_ai__agent__name="helper")
    history = messages(("user", "Weather?"), ("assistant", "Let me look"), ("user", "Shorter"))
    trace.chat(agent, answer="Rain.", gen_ai__input__messages=history)
    export(wire, trace)
    return trace


def test_a_turn(wire: Wire, turn: Trace) -> None:
    """The user speaks first, then agents start, models answer and tools run in order, each under its agent."""
    view = chat(wire, turn)
    assert told(view) == [
        ("user_message", "Weather?"),
        ("agent_start", "boss"),
        ("assistant_message", "Let me look"),
        ("tool_call", "weather"),
        ("agent_start", "helper"),
        ("assistant_message", "It rains"),
        ("user_message", "Shorter"),
        ("assistant_message", "Rain."),
    ]
    by_type = [(message["agent_name"], message["span_id"]) for message in view["messages"]]
    assert [name for name, _ in by_type] == ["User", "boss", "boss", "boss", "helper", "helper", "User", "boss"]
    tool = view["messages"][3]["tool_call"]
    assert (tool["tool_arguments"], tool["tool_result"], tool["duration_ms"]) == ('{"city":"Bern"}', "rain", 5)
    assert view["messages"][1]["agent_start"]["system_instructions"] == "Be short"
    answered = view["messages"][2]["assistant_message"]
    assert (answered["model"], answered["input_tokens"], answered["output_tokens"]) == ("gpt-4o", 10, 5)
    assert answered["total_cost_usd"] > 0
    assert (view["root_span_name"], view["agent_name"], view["total_duration_ms"]) == ("boss", "boss", 500)
    assert (view["total_input_tokens"], view["total_output_tokens"]) == (10, 12)
    assert view["feedback"] is None and view["trace_id"] == turn.trace_id


def test_spans_of_other_kinds_lie_between(wire: Wire) -> None:
    """What a program's own spans hold belongs to the agent above them, in its place and said once."""
    trace = Trace()
    request = trace.span("POST /ask")
    agent = trace.agent("clerk", request, user="Weather?", gen_ai__output__messages=messages(("assistant", "Rain.")))
    step = trace.span("attempt", trace.span("step", agent))
    trace.chat(step, "Weather?", "Let me look")
    trace.tool("weather", "{}", "rain", agent)
    trace.chat(trace.span("step", agent), answer="Rain.")
    export(wire, trace)
    view = chat(wire, trace)
    assert told(view) == [
        ("user_message", "Weather?"),
        ("agent_start", "clerk"),
        ("assistant_message", "Let me look"),
        ("tool_call", "weather"),
        ("assistant_message", "Rain."),
    ]
    assert [message["agent_name"] for message in view["messages"]] == ["User", *["clerk"] * 4]


def test_prompt_and_answer_of_an_agent(wire: Wire) -> None:
    """Where only the agent's span tells them they are shown; where a model below repeats the answer, it is not."""
    alone = Trace()
    agent = alone.agent("solo", user="Hi", gen_ai__output__messages=messages(("assistant", "Hello")))
    alone.chat(agent, gen_ai__usage__output_tokens=3)
    mirrored = Trace()
    agent = mirrored.agent("solo", user="Hi", gen_ai__output__messages=messages(("assistant", "Hello")))
    mirrored.chat(agent, answer="Hello")
    export(wire, alone, mirrored)
    assert told(chat(wire, alone)) == [("user_message", "Hi"), ("agent_start", "solo"), ("assistant_message", "Hello")]
    assert chat(wire, alone)["messages"][2]["assistant_message"]["output_tokens"] == 3
    view = chat(wire, mirrored)
    assert told(view) == [("user_message", "Hi"), ("agent_start", "solo"), ("assistant_message", "Hello")]
    assert view["messages"][2]["span_id"] == mirrored.spans[1]["spanId"]


def test_reasoning_compaction_and_orphans(wire: Wire) -> None:
    """A step that only thought is shown, so is a compaction; spans whose parent is missing hang on the trace."""
    trace = Trace()
    agent = trace.agent("a", weave__compaction__summary="shorter", weave__compaction__items_before=9)
    trace.chat(agent, weave__reasoning_content="hm")
    trace.chat("00000000000000ff", "lost?", "found")
    export(wire, trace)
    view = chat(wire, trace)
    assert [kind for kind, _ in told(view)] == [
        "agent_start", "context_compacted", "assistant_message", "user_message", "assistant_message"
    ]  # fmt: skip
    assert view["messages"][1]["context_compacted"]["compaction_items_before"] == 9
    assert view["messages"][2]["assistant_message"]["reasoning_content"] == "hm"


def test_spans_that_are_each_others_parents(wire: Wire) -> None:
    """A circle of spans is shown once, from its first span on."""
    trace = Trace()
    first = trace.chat(user="one", answer="1")
    second = trace.chat(first, answer="2")
    trace.spans[0]["parentSpanId"] = second
    export(wire, trace)
    said = sorted(text for _, text in told(chat(wire, trace)))
    assert said == ["1", "2", "one"]


def test_tool_calls_of_the_model(wire: Wire) -> None:
    """Tools that a model asked for and nobody ran are shown when they are asked for."""
    asked = '[{"role":"assistant","parts":[{"type":"tool_call","id":"t1","name":"add","arguments":{"a":1}},'
    asked += '{"type":"tool_call","id":"t2","name":"sub","arguments":{}}]}]'
    trace = Trace()
    root = trace.chat(user="go", gen_ai__output__messages=asked)
    trace.tool("add", "{}", "2", root, gen_ai__tool__call__id="t1")
    export(wire, trace)
    assert told(chat(wire, trace)) == [("user_message", "go"), ("tool_call", "add")]
    view = chat(wire, trace, include_model_tool_calls=True)
    assert told(view) == [("user_message", "go"), ("tool_call", "add"), ("tool_call", "sub")]
    assert view["messages"][2]["tool_call"]["tool_result"] is None


def test_conversation_in_pages(wire: Wire) -> None:
    """Turns oldest first within a page; the offset counts from the newest; pages make up the whole."""
    now = time.time_ns()
    turns = [Trace("long", start=now - (100 - number) * 1000 * MILLISECOND) for number in range(7)]
    for number, trace in enumerate(turns):
        trace.chat(trace.agent("a"), f"q{number}", f"a{number}", gen_ai__usage__input_tokens=1000)
    export(wire, *turns)
    page = wire.post("/agents/conversations/chat", conversation_id="long", limit=3)
    assert [turn["trace_id"] for turn in page["turns"]] == [trace.trace_id for trace in turns[4:]]
    assert (page["total_turns"], page["has_more"], page["limit"], page["offset"]) == (7, True, 3, 0)
    assert page["total_cost_usd"] == pytest.approx(sum(turn["total_cost_usd"] for turn in page["turns"]))
    assert told(page["turns"][0])[0] == ("user_message", "q4")
    pages = [wire.post("/agents/conversations/chat", conversation_id="long", limit=3, offset=n) for n in (0, 3, 6, 9)]
    found = [turn["trace_id"] for page in reversed(pages) for turn in page["turns"]]
    assert found == [trace.trace_id for trace in turns]
    assert [page["has_more"] for page in pages] == [True, True, False, False]
    nobody = wire.post("/agents/conversations/chat", conversation_id="nobody")
    assert (nobody["turns"], nobody["total_turns"], nobody["total_cost_usd"]) == ([], 0, None)


def test_feedback_in_chats(wire: Wire, turn: Trace) -> None:
    """On the conversation, on the turn and on each span, when it is asked for; in short beside conversations."""
    tool = turn.spans[2]["spanId"]
    for kind, name in (("agent_conversation", "talk"), ("agent_turn", turn.trace_id), ("agent_span", tool)):
        wire.post(
            "/feedback/create",
            weave_ref=f"weave:///{wire.project}/{kind}/{name}",
            feedback_type="wandb.agent_user_feedback",
            payload={"on": kind},
            scorer_tags=["nice"],
            scorer_ratings={"taste": 0.5},
            scorer_rating_reasons={"taste": "salt"},
        )
    view = wire.post("/agents/conversations/chat", conversation_id="talk", include_feedback=True)
    assert [row["payload"]["on"] for row in view["feedback"]] == ["agent_conversation"]
    [shown] = view["turns"]
    assert [row["payload"]["on"] for row in shown["feedback"]] == ["agent_turn"]
    noted = {message["span_id"]: message["feedback"] for message in shown["messages"] if message["feedback"]}
    assert list(noted) == [tool] and noted[tool][0]["weave_ref"].startswith(f"weave:///{wire.project}/agent_span/")
    assert chat(wire, turn)["messages"][3]["feedback"] is None
    [conversation] = wire.post("/agents/conversations/spans", conversation_ids=["talk"])["conversations"]
    assert [(item["trace_id"], item["tags"]) for item in conversation["spans_feedback"]] == [
        (None, ["nice"]),
        (turn.trace_id, ["nice"]),
    ]
    assert conversation["spans_feedback"][0]["ratings"] == [
        {"name": "taste", "value": 0.5, "reason": "salt", "confidence": None}
    ]


def test_spans_of_conversations(wire: Wire, turn: Trace) -> None:
    """In the asked order, unknown ones empty; at most the newest 200 spans of each, oldest first."""
    long = Trace("many", step=1)
    for _ in range(205):
        long.chat()
    export(wire, long)
    asked = ["nobody", "many", "talk"]
    found = wire.post("/agents/conversations/spans", conversation_ids=asked)["conversations"]
    assert [item["conversation_id"] for item in found] == asked
    nobody, many, talk = found
    assert nobody["spans"] == [] and nobody["spans_feedback"] == []
    assert [span["span_id"] for span in many["spans"]] == [span["spanId"] for span in long.spans[5:]]
    assert [span["operation_name"] for span in talk["spans"]][:3] == ["invoke_agent", "chat", "execute_tool"]
    assert talk["spans"][0] == {
        "operation_name": "invoke_agent", "trace_id": turn.trace_id, "span_id": turn.spans[0]["spanId"],
        "status": "UNSET", "duration_ms": 500,
    }  # fmt: skip
    assert wire.post("/agents/conversations/spans") == {"conversations": []}


def found(wire: Wire, **body: Json) -> list[tuple[str, str]]:
    """Role and text of every message that a search finds."""
    results = wire.post("/agents/search", **body)["results"]
    return [(item["role"], item["content_preview"]) for group in results for item in group["matched_messages"]]


def test_search(wire: Wire, turn: Trace) -> None:
    """Texts of every role, by role, agent, model, conversation and time; newest first, in pages."""
    later = Trace(start=time.time_ns())
    later.chat(user='He said "Rain." — naïve\nline', answer="Sun", model="other")
    export(wire, later)
    answer = wire.post("/agents/search", query="Rain.")
    assert answer["total_conversations"] == 2 and answer["x_search_complete"] and answer["x_spans_searched"] == 7
    newest, talk = answer["results"]
    assert newest["conversation_id"] == "__NO_CONVERSATION__"
    assert (talk["conversation_id"], talk["agent_name"]) == ("talk", "boss")
    [message] = talk["matched_messages"]
    assert (message["role"], message["content_preview"]) == ("assistant", "Rain.")
    assert message["trace_id"] == turn.trace_id and len(message["content_digest"]) == 32
    assert found(wire, query='"Rain." — naïve\nl') == [("user", 'He said "Rain." — naïve\nline')]
    assert found(wire, query="rain", roles=["tool"]) == [("tool_result", "rain")]
    assert found(wire, query="Bern", roles=["tool_call"]) == [("tool_call", '{"city":"Bern"}')]
    assert found(wire, query="Be short") == [("system", "Be short")]
    assert found(wire, query="Sun", request_model="gpt-4o") == []
    assert found(wire, query="Sun", request_model="other", provider_name="openai") == [("assistant", "Sun")]
    assert found(wire, agent_name="helper") == [("assistant", "It rains")]
    assert len(found(wire, trace_id=turn.trace_id, query="Weather")) == 3
    assert found(wire, query="nothing of this") == [] == found(wire, query="Rain.", limit=0)
    everything = found(wire, conversation_id="talk", limit=1000)
    paged = [found(wire, conversation_id="talk", limit=2, offset=offset) for offset in range(0, len(everything) + 2, 2)]
    assert [item for page in paged for item in page] == everything


def test_long_content_is_cut(wire: Wire) -> None:
    """The preview has 500 characters, unless the whole is asked for."""
    trace = Trace()
    trace.chat(user="x" * 2000)
    export(wire, trace)
    assert found(wire, query="xx") == [("user", "x" * 500)]
    assert found(wire, query="xx", truncate_content=False) == [("user", "x" * 2000)]


def test_steps_around_models(wire: Wire) -> None:
    """Chains, prompts and retrievals pass on what models were asked and answered: it is told once, in their words."""
    trace = Trace()
    chain = trace.span("chain", openinference__span__kind="CHAIN", input__value='{"q": "Hi"}', output__value="{}")
    trace.span("prompt", chain, openinference__span__kind="PROMPT", input__value="Hi", output__value="Be brief. Hi")
    trace.span("search", chain, openinference__span__kind="RETRIEVER", input__value="Hi", output__value="[a, b]")
    trace.span("embed", chain, openinference__span__kind="EMBEDDING", input__value="Hi")
    predict = trace.chat(chain, "prompt=Hi", "answer=Hello")
    trace.chat(predict, "Hi", "Hello", gen_ai__usage__input_tokens=10, gen_ai__usage__output_tokens=5)
    again = trace.chat(chain, "Hi", "Bye", gen_ai__usage__input_tokens=9, gen_ai__usage__output_tokens=2)
    trace.chat(again, "hi!", "bye!", gen_ai__usage__input_tokens=9, gen_ai__usage__output_tokens=2)
    export(wire, trace)
    view = chat(wire, trace)
    assert told(view) == [("user_message", "Hi"), ("assistant_message", "Hello"), ("assistant_message", "Bye")]
    assert (view["total_input_tokens"], view["total_output_tokens"]) == (19, 7)


def test_steps_that_alone_tell(wire: Wire) -> None:
    """Where models tell nothing, the outermost step does; a trace without models is told by all its spans."""
    quiet = Trace()
    chain = quiet.span("chain", openinference__span__kind="CHAIN", input__value="Hi", output__value="Hello")
    quiet.span("inner", chain, openinference__span__kind="CHAIN", input__value="Hi (inner)", output__value="Hello!")
    quiet.chat(chain, gen_ai__usage__input_tokens=10, gen_ai__usage__output_tokens=5)
    steps = Trace()
    outer = steps.span("a", openinference__span__kind="CHAIN", input__value="one")
    steps.span("b", outer, openinference__span__kind="CHAIN", output__value="two")
    export(wire, quiet, steps)
    view = chat(wire, quiet)
    assert told(view) == [("user_message", "Hi"), ("assistant_message", "Hello")]
    assert view["messages"][1]["assistant_message"]["output_tokens"] == 5
    assert told(chat(wire, steps)) == [("user_message", "one"), ("assistant_message", "two")]


def test_history_that_users_messages_repeat(wire: Wire) -> None:
    """A span whose history holds several messages of the user in a row tells only those that are new."""
    trace = Trace()
    trace.chat(user="Task", gen_ai__usage__output_tokens=1)
    trace.chat(gen_ai__input__messages=messages(("user", "Task"), ("user", "Result: 4")), answer="Four")
    export(wire, trace)
    assert told(chat(wire, trace)) == [
        ("user_message", "Task"), ("user_message", "Result: 4"), ("assistant_message", "Four")
    ]  # fmt: skip
