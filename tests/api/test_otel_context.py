"""Users, tags, metadata, sessions and names of spans, as each convention writes them: shown, and found by filters."""

import json
from typing import Any

import httpx
import pytest

from tests.support.otlp import Exporter, request, span
from tests.support.server import HeddleProcess

OPENINFERENCE = {
    "openinference.span.kind": "LLM",
    "user.id": "ada",
    "session.id": "s1",
    "tag.tags": ["blue", "green"],
    "metadata": '{"plan": "pro", "n": 3}',
}
LOGFIRE = {"logfire.msg": "Weather for Paris", "logfire.span_type": "span", "logfire.tags": ["blue"]}
TRACELOOP = {
    "traceloop.span.kind": "workflow",
    "traceloop.association.properties.user_id": "ada",
    "traceloop.association.properties.session_id": "s1",
    "traceloop.association.properties.plan": "pro",
}
LANGSMITH = {
    "langsmith.span.kind": "chain",
    "langsmith.span.tags": "blue, green",
    "langsmith.metadata.user_id": "ada",
    "langsmith.metadata.session_id": "s1",
    "langsmith.metadata.plan": "pro",
}
VERCEL = {
    "ai.operationId": "ai.generateText",
    "operation.name": "ai.generateText bot",
    "ai.telemetry.metadata.userId": "ada",
    "ai.telemetry.metadata.sessionId": "s1",
    "ai.telemetry.metadata.tags": ["blue"],
    "ai.telemetry.metadata.plan": "pro",
}
LANGFUSE = {
    "langfuse.observation.type": "span",
    "langfuse.user.id": "ada",
    "langfuse.session.id": "s1",
    "langfuse.trace.tags": ["blue"],
    "langfuse.trace.metadata.plan": "pro",
}
MLFLOW = {
    "mlflow.spanType": "CHAIN",
    "mlflow.trace.user": "ada",
    "mlflow.trace.session": "s1",
    "mlflow.trace.metadata.plan": "pro",
}
BOTH = {"user_id": "ada", "session_id": "s1", "plan": "pro"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "openinference": (OPENINFERENCE, {"tags": ["blue", "green"], "metadata": {"plan": "pro", "n": 3}}),
    "logfire": (
        LOGFIRE,
        {"wb_user_id": None, "thread_id": None, "display_name": "Weather for Paris", "metadata": None},
    ),
    "traceloop": (TRACELOOP, {"tags": None, "metadata": BOTH}),
    "langsmith": (LANGSMITH, {"tags": ["blue", "green"], "metadata": BOTH}),
    "vercel": (
        VERCEL,
        {"display_name": "ai.generateText bot"}
        | {"metadata": {"userId": "ada", "sessionId": "s1", "tags": ["blue"], "plan": "pro"}},
    ),
    "langfuse": (LANGFUSE, {}),
    "mlflow": (MLFLOW, {"tags": None}),
    "any": ({"user.id": "ada", "session.id": "s1"}, {"tags": None, "metadata": None, "thread_id": None}),
}
USUAL = {"wb_user_id": "ada", "thread_id": "s1", "display_name": None, "tags": ["blue"], "metadata": {"plan": "pro"}}


def found(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    """The calls that match."""
    answer = client.post("/calls/stream_query", json=body)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize("name", CASES)
def test_what_a_span_says_of_itself(server: HeddleProcess, project: str, name: str) -> None:
    attributes, more = CASES[name]
    exporter = Exporter(server.url, project)
    assert not exporter.export(request(span(attributes=attributes), span(2))).HasField("partial_success")
    plain, call = sorted(found(exporter.client, project_id=project), key=lambda call: call["id"], reverse=True)
    expected = USUAL | more
    if expected["wb_user_id"] is None:
        expected["wb_user_id"] = plain["wb_user_id"]
    held = call["attributes"]
    assert {key: held.get(key) if key in ("tags", "metadata") else call[key] for key in expected} == expected
    for path, value in (("attributes.metadata.plan", "pro"), ("attributes.tags", "blue")):
        key = path.split(".")[1]
        part = {"input": {"$getField": path}, "substr": {"$literal": value}}
        matched = found(exporter.client, project_id=project, query={"$expr": {"$contains": part}})
        assert [one["id"] for one in matched] == ([call["id"]] if expected[key] else []), path
    users = {"wb_user_ids": [expected["wb_user_id"]]}
    assert call["id"] in [one["id"] for one in found(exporter.client, project_id=project, filter=users)]
    assert len(held["otel_span"]["attributes"]) > 0


def test_agents_of_langchain_and_crewai(server: HeddleProcess, project: str) -> None:
    exporter = Exporter(server.url, project)
    agent = {"openinference.span.kind": "AGENT"}
    langchain = request(
        span(1, attributes=agent, name="weather_agent"), scope="openinference.instrumentation.langchain"
    )
    named = {"attributes": agent, "name": "Reporter._execute_core"}
    crewai = request(span(2, 2, **named), scope="openinference.instrumentation.crewai")
    langsmith = {"langsmith.span.kind": "chain", "langsmith.metadata.lc_agent_name": "planner"}
    for message in (langchain, crewai, request(span(3, 3, attributes=langsmith, name="planner"), scope="langsmith")):
        assert not exporter.export(message).HasField("partial_success")
    answer = exporter.client.post("/agents/query", json={"project_id": project})
    assert answer.status_code == 200, answer.text
    assert {one["agent_name"] for one in answer.json()["agents"]} == {"weather_agent", "Reporter", "planner"}


@pytest.mark.parametrize(
    ("attributes", "output"),
    [
        ({"traceloop.span.kind": "task", "traceloop.entity.output": '"it\'s \\"warm\\""'}, 'it\'s "warm"'),
        ({"mlflow.spanType": "CHAIN", "mlflow.spanOutputs": '"warm"'}, "warm"),
        ({"mlflow.spanType": "CHAIN", "mlflow.spanOutputs": "18.5"}, 18.5),
        (
            {"openinference.span.kind": "CHAIN", "output.value": '"warm"', "output.mime_type": "application/json"},
            "warm",
        ),
        ({"openinference.span.kind": "CHAIN", "output.value": '"warm"', "output.mime_type": "text/plain"}, '"warm"'),
        ({"openinference.span.kind": "CHAIN", "output.value": '"warm" she said'}, '"warm" she said'),
    ],
)
def test_texts_in_json_are_read(server: HeddleProcess, project: str, attributes: Any, output: Any) -> None:
    exporter = Exporter(server.url, project)
    assert not exporter.export(request(span(attributes=attributes))).HasField("partial_success")
    (call,) = found(exporter.client, project_id=project)
    assert list(call["output"].values()) == [output]


def test_messages_are_shown_for_serialised_objects(server: HeddleProcess, project: str) -> None:
    serialised = {"messages": [[{"lc": 1, "id": ["langchain", "HumanMessage"], "kwargs": {"content": "Hi"}}]]}
    attributes = {
        "openinference.span.kind": "LLM",
        "input.value": json.dumps(serialised),
        "output.value": '{"generations": []}',
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Hi",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "Yo",
    }
    exporter = Exporter(server.url, project)
    assert not exporter.export(request(span(attributes=attributes))).HasField("partial_success")
    (call,) = found(exporter.client, project_id=project)
    said, answered = ([{"type": "text", "content": text}] for text in ("Hi", "Yo"))
    assert call["inputs"] == {"gen_ai.input.messages": [{"role": "user", "parts": said}]}
    assert call["output"] == {"gen_ai.output.messages": [{"role": "assistant", "parts": answered}]}
    assert call["attributes"]["otel_span"]["attributes"]["input"]["value"] == serialised
