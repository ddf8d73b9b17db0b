"""Spans of agents, models and tools in the one form of `AgentSpan`, at ingest and from stored calls."""

from heddle.trace.otel import conventions, dump
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan


def from_dump(project: str, stored: Json) -> AgentSpan:
    """The agent span of a call's parsed `otel_dump`, messages included; `project` is internal."""
    span = dump.from_dump(stored)
    agent = conventions.describe(span, project)
    conventions.messages(span, agent)
    return agent


def is_about_agents(agent: AgentSpan) -> bool:
    """True for what the agents reads show: spans of models, agents, tools and conversations."""
    known = agent.operation_name or agent.agent_name or agent.conversation_id or agent.tool_name
    return bool(known or agent.request_model or agent.response_model)
