"""OpenInference (Arize Phoenix): `openinference.span.kind`, `llm.*`, `input.value`, `output.value`.

Messages are numbered (`llm.input_messages.0.message.content`), their parts too (`...message.contents.0.
message_content.text`), and so are tools, documents and embeddings. A span without messages tells its input and output
as text or JSON (`input.mime_type`).

Tokens: `llm.token_count.prompt` counts cached tokens inside, also for Anthropic, whose three counts the library adds
up.
"""

from typing import Any

from heddle.trace.otel.conventions.convention import (
    PARAMETERS,
    Convention,
    as_object,
    as_text,
    branch,
    fill_from,
    objects,
    offer,
    parsed,
    text,
    told,
)
from heddle.trace.otel.conventions.messages import answered, asked, call_part, joined, message, simple
from heddle.trace.otel.span import OtelSpan
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

KIND = "openinference.span.kind"
OPERATIONS = {
    "LLM": "chat",
    "EMBEDDING": "embeddings",
    "TOOL": "execute_tool",
    "AGENT": "invoke_agent",
    "RETRIEVER": "retrieval",
    "RERANKER": "rerank",
    "CHAIN": "invoke_workflow",
    "GUARDRAIL": "guardrail",
    "EVALUATOR": "evaluator",
}
_RUNS = frozenset(("run", "arun"))
_INPUT, _OUTPUT, _MODEL = "input.value", "output.value", "llm.model_name"
_SETTINGS = ("llm.invocation_parameters", "embedding.invocation_parameters")
_FIRST = ("llm.input_messages.0.message.role", "llm.output_messages.0.message.role")


def _derive(span: OtelSpan, into: AgentSpan) -> None:
    """The kind as an operation, models, parameters."""
    values = span.attributes
    kind = values.get(KIND)
    if isinstance(kind, str):
        offer(into, "operation_name", OPERATIONS.get(kind.upper(), kind.lower() or None))
    elif _MODEL in values or not values.keys().isdisjoint(_FIRST):
        offer(into, "operation_name", "chat")
    if into.agent_name is None and into.operation_name == "invoke_agent":
        # Smolagents and Agno say which agent it is in the span's name only.
        name, dot, method = span.name.rpartition(".")
        offer(into, "agent_name", name if dot and method in _RUNS else None)
    for key in _SETTINGS:
        if key in values:
            settings = as_object(values[key])
            fill_from(PARAMETERS, settings, into)
            offer(into, "request_model", text(settings.get("model")))
    if (model := text(values.get(_MODEL))) is not None:
        # The model that answered, when the library knows it, else the one asked for.
        offer(into, "response_model", model)
        offer(into, "request_model", model)


def _messages(span: OtelSpan, into: AgentSpan) -> None:
    """Numbered messages; without them what the span says of its input and output."""
    values = span.attributes
    if tools := _inner(branch(values, "llm.tools."), "tool"):
        found = [parsed(one["json_schema"]) for one in tools if "json_schema" in one]
        offer(into, "tool_definitions", as_text(found) if found else None)
    offer(into, "input_messages", _numbered(values, "llm.input_messages.", "user"))
    offer(into, "output_messages", _numbered(values, "llm.output_messages.", "assistant"))
    if into.operation_name == "execute_tool":
        offer(into, "tool_call_arguments", told(values.get(_INPUT, values.get("tool.parameters"))))
        offer(into, "tool_call_result", told(values.get(_OUTPUT)))
        return
    if not into.input_messages:
        found = _prompts(values, "llm.prompts.", "prompt", "user") or _embedded(values)
        into.input_messages = found or asked(values.get(_INPUT))
    if not into.output_messages:
        found = _prompts(values, "llm.choices.", "completion", "assistant") or _documents(values)
        text_of = None if into.operation_name == "embeddings" else values.get(_OUTPUT)
        into.output_messages = found or answered(text_of)


def _numbered(values: Json, prefix: str, role: str) -> list[Json]:
    return joined([_message(one, role) for one in _inner(branch(values, prefix), "message")])


def _message(record: Json, role: str) -> Json:
    calls = _inner(record.get("tool_calls"), "tool_call")
    parts = [_part(one) for one in objects(record.get("contents"))]
    inside = [part.get("id") for part in parts if part.get("type") == "tool_call"]
    beside = [call for call in calls if call.get("id") is None or call.get("id") not in inside]
    if name := record.get("function_call_name"):
        beside.append({"function": {"name": name, "arguments": record.get("function_call_arguments_json")}})
    content = parts if parts else record.get("content")
    kept: Json = {key: record[key] for key in ("name", "tool_call_id") if key in record}
    return message({**kept, "role": record.get("role") or role, "content": content, "tool_calls": beside}, role)


def _inner(records: Any, name: str) -> list[Json]:
    return [one[name] for one in objects(records) if isinstance(one.get(name), dict)]


def _part(record: Json) -> Json:
    if isinstance(call := record.get("tool_call"), dict):
        function = as_object(call.get("function"))
        return call_part(call.get("id"), function.get("name"), function.get("arguments"))
    inner = as_object(record.get("message_content"))
    if inner.get("type") == "image" and isinstance(image := inner.get("image"), dict):
        place = image.get("image", image)
        return {"type": "uri", "modality": "image", "uri": place.get("url", "") if isinstance(place, dict) else place}
    return {key: value for key, value in inner.items() if key in ("type", "text")} if "text" in inner else inner


def _prompts(values: Json, prefix: str, name: str, role: str) -> list[Json]:
    found = objects(branch(values, prefix))
    inner = [one.get(name, one) for one in found]
    return [simple(role, one.get("text", "")) for one in inner if isinstance(one, dict)]


def _embedded(values: Json) -> list[Json]:
    found = _inner(branch(values, "embedding.embeddings."), "embedding")
    return [simple("user", one["text"]) for one in found if one.get("text")]


def _documents(values: Json) -> list[Json]:
    for prefix in ("retrieval.documents.", "reranker.output_documents."):
        if documents := _inner(branch(values, prefix), "document"):
            parts = [
                {"type": "text", "content": as_text(one.get("content", ""))}
                | {key: one[key] for key in ("id", "score") if key in one}
                for one in documents
            ]
            return [{"role": "tool", "parts": parts}]
    return []


CONVENTION = Convention(
    "openinference",
    {
        "provider_name": ("llm.provider", "llm.system"),
        "request_model": ("llm.request.model_name", "embedding.model_name", "reranker.model_name"),
        "response_model": ("llm.response.model_name",),
        "input_tokens": ("llm.token_count.prompt",),
        "output_tokens": ("llm.token_count.completion",),
        "reasoning_tokens": ("llm.token_count.completion_details.reasoning",),
        "cache_read_input_tokens": (
            "llm.token_count.prompt_details.cache_read",
            "llm.token_count.prompt_details.cache_input",
        ),
        "cache_creation_input_tokens": ("llm.token_count.prompt_details.cache_write",),
        "finish_reasons": ("llm.finish_reason",),
        "conversation_id": ("session.id",),
        "agent_name": ("agent.name",),
        "tool_name": ("tool.name",),
        "tool_call_id": ("tool.id", "tool_call.id"),
        "tool_description": ("tool.description",),
    },
    more=(
        *(KIND, _MODEL, _INPUT, _OUTPUT, "input.mime_type", "output.mime_type", *_FIRST, *_SETTINGS),
        *("llm.token_count.total", "tool.parameters"),
    ),
    prefixes=(
        "llm.input_messages.",
        "llm.output_messages.",
        "llm.tools.",
        "llm.prompts.",
        "llm.choices.",
        "embedding.embeddings.",
        "retrieval.documents.",
        "reranker.",
    ),
    shared=frozenset({"session.id"}),
    derive=_derive,
    messages=_messages,
)
