"""What is stored of a span is enough to see it again as it was exported."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from heddle.auth import LOCAL
from heddle.trace.otel.export import Export, ProjectResolver
from heddle.trace.otel.reading import describe, from_dump
from heddle.trace.otel.signals import decode_spans
from heddle.trace.otel.span import OtelEvent, OtelLink, OtelSpan, expand, resource_dump, to_dump, to_span
from heddle.wire import refs
from heddle.wire.spans import AgentSpan

RECORDED = sorted((Path(__file__).parents[2] / "data" / "otel").glob("*"))
PROJECT = refs.internal_project("team/project")
MESSAGES = ("input_messages", "output_messages", "system_instructions", "tool_definitions")
MESSAGES += ("tool_call_arguments", "tool_call_result", "reasoning_content")


def packed(path: Path) -> tuple[list[AgentSpan], dict[str, Any]]:
    """The agent spans that an ingest of the recording writes, and the stored dumps by span id."""
    settings: Any = SimpleNamespace(large_field_bytes=2**30)
    projects = ProjectResolver(LOCAL, "team/project")
    calls, agents = Export(settings, cast(Any, None), cast(Any, None), projects).pack(
        path.read_bytes(), path.suffix == ".json"
    )
    assert calls.starts
    return agents, {start.id: orjson.loads(start.otel_dump or "") for start in calls.starts}


def shown(agent: AgentSpan, *without: str) -> dict[str, Any]:
    """The fields of an agent span; what only the ingest knows is left out."""
    names = set(AgentSpan.__dataclass_fields__) - {"wb_user_id", "raw_span_dump", *without}
    texts = {key: without_spaces(text) for key, text in agent.custom_attrs_string.items()}
    return {name: getattr(agent, name) for name in sorted(names)} | {"custom_attrs_string": texts}


def without_spaces(text: str) -> str:
    """JSON text as it is written here, other text as it is."""
    try:
        return orjson.dumps(orjson.loads(text)).decode()
    except orjson.JSONDecodeError:
        return text


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_recorded_span_is_described_the_same_from_its_dump(path: Path) -> None:
    """Every scalar of every instrumentation library, and messages wherever the span itself gives them."""
    agents, dumps = packed(path)
    for agent in agents:
        again = from_dump(PROJECT, dumps[agent.span_id])
        assert shown(again, *MESSAGES) == shown(agent, *MESSAGES)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_messages_are_read_from_the_dump_as_from_the_span(path: Path) -> None:
    groups = decode_spans(path.read_bytes(), is_json=path.suffix == ".json")
    spans = {span.span_id: span for group in groups for span in group.items}
    _, dumps = packed(path)
    for span_id, span in spans.items():
        first = describe(span, PROJECT)
        again = from_dump(PROJECT, dumps[span_id])
        for name in MESSAGES:
            assert getattr(again, name) == getattr(first, name), (span.name, name)


def test_a_span_survives_whole() -> None:
    """Keys, lists, JSON texts, events, links, scope and resource."""
    attributes = {"a.b": 1, "a.c": ["x", 2], "json": '{"k":{"0":[1]}}', "list": "[1,2]", "broken": "{no", "n.0.m": True}
    span = OtelSpan(
        name="work",
        trace_id="1" * 32,
        span_id="2" * 16,
        parent_id="3" * 16,
        start=1_795_204_029_885_327_000,
        end=1_795_204_030_885_327_000,
        kind=3,
        attributes=attributes,
        status_code=2,
        status_message="boom",
        events=[OtelEvent("exception", 5, {"exception.type": "E", "n": 1})],
        links=[OtelLink("4" * 32, "5" * 16, "", {"why": "x"})],
        scope="tests",
        scope_version="1",
        resource={"service.name": "svc"},
        resource_dropped=2,
    )
    tree, texts = expand(span.attributes)
    stored = to_dump(span, tree, texts, resource_dump(span.resource, 2))
    assert to_span(orjson.loads(orjson.dumps(stored))) == span


@pytest.mark.parametrize(
    "stored",
    [{}, {"attributes": 5, "events": {}, "context": []}, {"kind": "ODD", "status": None, "start_time": "soon"}],
    ids=str,
)
def test_a_dump_of_another_form_is_empty(stored: dict[str, Any]) -> None:
    """The public /call/start takes any object as otel_dump."""
    agent = from_dump(PROJECT, stored)
    assert (agent.project, agent.span_id, agent.input_messages) == (PROJECT, "", [])
