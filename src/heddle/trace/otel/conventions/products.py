"""Products that trace: OpenInference (Arize Phoenix), Logfire, MLflow, LangSmith (and LangChain with it), Langfuse."""

from collections.abc import Callable
from typing import Any

from heddle.trace.otel.conventions.convention import (
    OPERATIONS,
    PARAMETERS,
    Convention,
    fill_from,
    nest_attributes,
    offer,
    offer_details,
    offer_name,
    to_count,
    to_json_text,
    to_text,
)
from heddle.trace.otel.conventions.genai import read_events
from heddle.trace.otel.span import FAILED, OtelSpan, status_name
from heddle.wire.conversation.messages import join_calls, message, messages_of, read_answer, read_request, text_message
from heddle.wire.conversation.parts import as_list, as_object, as_text, call_part, objects, parse_json, result_part
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

KIND = "openinference.span.kind"
_NAMING = ("openinference.instrumentation.langchain", "openinference.instrumentation.crewai")
"""Libraries whose spans of agents have the agents' names."""
_RUNS = frozenset(("run", "arun", "kickoff", "_execute_core"))
_OI_INPUT, _OI_OUTPUT, _OI_MODEL = "input.value", "output.value", "llm.model_name"
_OI_SETTINGS = ("llm.invocation_parameters", "embedding.invocation_parameters")
_ROLES = {"input": "user", "output": "assistant"}
_FIRST = ("llm.input_messages.0.message.role", "llm.output_messages.0.message.role")


def _derive_openinference(span: OtelSpan, into: AgentSpan) -> None:
    """The kind as an operation, models, parameters."""
    values = span.attributes
    kind = values.get(KIND)
    if isinstance(kind, str):
        offer(into, "operation_name", OPERATIONS.get(kind.lower(), kind.lower() or None))
    elif _OI_MODEL in values or not values.keys().isdisjoint(_FIRST):
        offer(into, "operation_name", "chat")
    if into.agent_name is None and into.operation_name == "invoke_agent":
        # LangChain, CrewAI, Smolagents and Agno say which agent it is in the span's name only.
        name, dot, method = span.name.rpartition(".")
        named = span.name if span.scope.startswith(_NAMING) else None
        offer(into, "agent_name", name if dot and method in _RUNS else named)
    for key in _OI_SETTINGS:
        if key in values:
            settings = as_object(values[key])
            fill_from(PARAMETERS, settings, into)
            offer(into, "request_model", to_text(settings.get("model")))
    if (model := to_text(values.get(_OI_MODEL))) is not None:
        # The model that read_answer, when the library knows it, else the one read_request for.
        offer(into, "response_model", model)
        offer(into, "request_model", model)


def _messages_openinference(span: OtelSpan, into: AgentSpan) -> None:
    """Numbered messages; without them what the span says of its input and output."""
    values = span.attributes
    offer(into, "tool_definitions", read_numbered_tools(values, "llm.tools."))
    came, went = (read_numbered(values, f"llm.{kind}_messages.", role) for kind, role in _ROLES.items())
    offer(into, "input_messages", _fill_empty(came, lambda: read_request(values.get(_OI_INPUT))))
    offer(into, "output_messages", _fill_empty(went, lambda: read_answer(values.get(_OI_OUTPUT))))
    if into.operation_name == "execute_tool":
        offer(into, "tool_call_arguments", to_json_text(values.get(_OI_INPUT, values.get("tool.parameters"))))
        offer(into, "tool_call_result", to_json_text(values.get(_OI_OUTPUT)))
        return
    if not into.input_messages:
        found = _prompts(values, "llm.prompts.", "prompt", "user") or _embedded(values)
        into.input_messages = found or read_request(values.get(_OI_INPUT))
    if not into.output_messages:
        found = _prompts(values, "llm.choices.", "completion", "assistant") or _documents(values)
        text_of = None if into.operation_name == "embeddings" else values.get(_OI_OUTPUT)
        into.output_messages = found or read_answer(text_of)


def read_numbered_tools(values: Json, prefix: str) -> str | None:
    """The definitions of tools at numbered keys below a prefix, such as `llm.tools.0.tool.json_schema`."""
    tools = _inner(nest_attributes(values, prefix), "tool")
    found = [parse_json(one["json_schema"]) for one in tools if "json_schema" in one]
    return as_text(found) if found else None


def read_numbered(values: Json, prefix: str, role: str) -> list[Json]:
    """Messages at numbered keys below a prefix, such as `llm.input_messages.0.message.content`."""
    records = [one for one in objects(nest_attributes(values, prefix)) if isinstance(one.get("message"), dict)]
    return join_calls([_message(one, role) for one in records])


def _fill_empty(numbered: list[Json], read: Callable[[], list[Json]]) -> list[Json]:
    """The messages; one without parts is what the whole body says: Mistral's calls of tools are not numbered."""
    if all(one["parts"] for one in numbered):
        return numbered
    whole = read()
    if len(whole) != len(numbered):
        return numbered
    return [one if one["parts"] else said for one, said in zip(numbered, whole, strict=True)]


def _message(numbered: Json, role: str) -> Json:
    record = numbered["message"]
    if results := objects(numbered.get("function")):
        # AutoGen's results of tools stand beside an empty message.
        parts = [result_part(one.get("call_id"), one.get("content")) for one in results]
        return {"role": "tool", "parts": parts}
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
    found = objects(nest_attributes(values, prefix))
    inner = [one.get(name, one) for one in found]
    return [text_message(role, one.get("text", "")) for one in inner if isinstance(one, dict)]


def _embedded(values: Json) -> list[Json]:
    found = _inner(nest_attributes(values, "embedding.embeddings."), "embedding")
    return [text_message("user", one["text"]) for one in found if one.get("text")]


def _documents(values: Json) -> list[Json]:
    for prefix in ("retrieval.documents.", "reranker.output_documents."):
        if documents := _inner(nest_attributes(values, prefix), "document"):
            parts = [
                {"type": "text", "content": as_text(one.get("content", ""))}
                | {key: one[key] for key in ("id", "score") if key in one}
                for one in documents
            ]
            return [{"role": "tool", "parts": parts}]
    return []


OPENINFERENCE = Convention(
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
        *(KIND, _OI_MODEL, _OI_INPUT, _OI_OUTPUT, *_FIRST, *_OI_SETTINGS),
        *("input.mime_type", "output.mime_type", "llm.token_count.total", "tool.parameters"),
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
    context={"user": ("user.id",), "tags": ("tag.tags",), "metadata": ("metadata",)},
    derive=_derive_openinference,
    messages=_messages_openinference,
)
"""OpenInference (Arize Phoenix): `openinference.span.kind`, `llm.*`, `input.value`, `output.value`.

Messages are numbered (`llm.input_messages.0.message.content`), their parts too (`...message.contents.0.
message_content.text`), and so are tools, documents and embeddings. A span without messages tells its input and output
as text or JSON (`input.mime_type`).

Tokens: `llm.token_count.prompt` counts cached tokens inside, also for Anthropic, whose three counts the library adds
up.
"""


_ALL = ("pydantic_ai.all_messages", "all_messages_events")
_TOOL = (("tool_arguments", "tool_call_arguments"), ("tool_response", "tool_call_result"))
_RUN = frozenset((*_ALL, "final_result"))
_PARAMETERS, _RAW_USAGE = "model_request_parameters", "gen_ai.usage.raw"


def _derive_logfire(span: OtelSpan, into: AgentSpan) -> None:
    """The agent's run and the tool's, where no operation is named; what a request used, as its provider counted."""
    values = span.attributes
    if _RAW_USAGE in values:
        offer_details(into, as_object(values[_RAW_USAGE]))
    if "gen_ai.operation.name" not in values:
        if "tool_arguments" in values or span.name == "running tool":
            offer(into, "operation_name", "execute_tool")
        elif not _RUN.isdisjoint(values) or span.name == "agent run":
            offer(into, "operation_name", "invoke_agent")


def _messages_logfire(span: OtelSpan, into: AgentSpan) -> None:
    """Event records, the messages of a whole run, tools."""
    values = span.attributes
    for key, field in _TOOL:
        offer(into, field, to_json_text(values.get(key)))
    if (events := objects(parse_json(values.get("events")))) and "event.name" in events[0]:
        read_events(events, into)
    for key in _ALL:
        if key in values:
            _whole_run(messages_of(values[key], "user"), into)
    if values.get("final_result") is not None:
        offer(into, "output_messages", [text_message("assistant", values["final_result"])])
    if "gen_ai.tool.definitions" not in values:
        tools = as_list(as_object(values.get(_PARAMETERS)).get("function_tools"))
        offer(into, "tool_definitions", as_text(tools) if tools else None)


def _whole_run(told: list[Json], into: AgentSpan) -> None:
    end = len(told)
    while end and told[end - 1]["role"] == "assistant":
        end -= 1
    offer(into, "input_messages", told[:end])
    offer(into, "output_messages", told[end:])


LOGFIRE = Convention(
    "logfire",
    {"agent_name": ("agent_name",), "request_model": ("model_name",)},
    more=(
        *_RUN,
        "logfire.json_schema",
        "logfire.metrics",
        "events",
        _RAW_USAGE,
        _PARAMETERS,
        "tool_arguments",
        "tool_response",
    ),
    # `agent_name` and `events` alone could be anybody's.
    marks=_RUN | {"logfire.msg", "logfire.span_type", "logfire.msg_template"},
    context={"display_name": ("logfire.msg",), "tags": ("logfire.tags",)},
    scopes=("pydantic-ai", "logfire"),
    derive=_derive_logfire,
    messages=_messages_logfire,
)
"""Logfire and pydantic-ai, all versions of its format.

Version 1 writes messages as event records (`events`, on the agent's span `all_messages_events`), a tool's arguments as
`tool_arguments` and `tool_response`; later ones the GenAI attributes, and `pydantic_ai.all_messages` on the agent's
span. The messages that end an agent's span, after the last that is not the assistant's, are its answer.

Tokens: as the GenAI conventions have them, cached tokens inside. The agent's span of older versions repeats the sum of
the requests below it.
"""


_MLFLOW_TYPE, _MLFLOW_INPUT, _MLFLOW_OUTPUT = "mlflow.spanType", "mlflow.spanInputs", "mlflow.spanOutputs"
_MLFLOW_USAGE, _MLFLOW_MODEL, _PROVIDER = "mlflow.chat.tokenUsage", "mlflow.llm.model", "mlflow.llm.provider"
_TOOLS, _SESSION = "mlflow.chat.tools", "mlflow.trace.session"
_TOKENS = {
    field: (field,)
    for field in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
}


def _derive_mlflow(span: OtelSpan, into: AgentSpan) -> None:
    """The span's type, model and tokens; parameters out of a model's request."""
    values = span.attributes
    offer(into, "operation_name", OPERATIONS.get(str(parse_json(values.get(_MLFLOW_TYPE))).lower()))
    for field, key in (("provider_name", _PROVIDER), ("conversation_id", _SESSION), ("response_model", _MLFLOW_MODEL)):
        offer(into, field, to_text(parse_json(values.get(key))))
    fill_from(_TOKENS, as_object(values.get(_MLFLOW_USAGE)), into)
    if into.operation_name in ("chat", "embeddings"):
        body = as_object(values.get(_MLFLOW_INPUT))
        fill_from(PARAMETERS, body, into)
        offer(into, "request_model", to_text(body.get("model")) or into.response_model)
        _answer(as_object(values.get(_MLFLOW_OUTPUT)), into)
    offer_name(into, span.name)


def _answer(body: Json, into: AgentSpan) -> None:
    """What only the answer's body tells: its id, why it ended, reasoning tokens."""
    offer(into, "response_id", to_text(body.get("id")))
    reasons = [to_text(one.get("finish_reason")) for one in objects(body.get("choices"))]
    offer(into, "finish_reasons", [reason for reason in reasons if reason])
    usage = as_object(body.get("usage"))
    for details in ("completion_tokens_details", "output_tokens_details"):
        offer(into, "reasoning_tokens", to_count(as_object(usage.get(details)).get("reasoning_tokens")))


def _messages_mlflow(span: OtelSpan, into: AgentSpan) -> None:
    """Messages out of the bodies."""
    given, came = span.attributes.get(_MLFLOW_INPUT), span.attributes.get(_MLFLOW_OUTPUT)
    offer(into, "tool_definitions", to_json_text(span.attributes.get(_TOOLS)))
    offer(into, "input_messages", read_request(given) if given else None)
    offer(into, "output_messages", read_answer(came) if came and into.operation_name != "embeddings" else None)


MLFLOW = Convention(
    "mlflow",
    {},
    more=(_MLFLOW_TYPE, _MLFLOW_USAGE, _MLFLOW_MODEL, _PROVIDER, _TOOLS, _SESSION, "mlflow.traceRequestId"),
    context={"user": ("mlflow.trace.user",), "metadata": ("mlflow.trace.metadata", "mlflow.trace.metadata.")},
    tool=(_MLFLOW_INPUT, _MLFLOW_OUTPUT),
    derive=_derive_mlflow,
    messages=_messages_mlflow,
)
"""MLflow tracing: `mlflow.*`, every value as JSON text, whole request and answer bodies.

Tokens: `mlflow.chat.tokenUsage` counts cached tokens inside; MLflow adds up Anthropic's itself.
"""


_KIND, _METADATA = "langsmith.span.kind", "langsmith.metadata."
_AGENT, _USAGE = _METADATA + "lc_agent_name", _METADATA + "usage_metadata"
_SESSIONS = ("session_id", "thread_id", "conversation_id")


def _derive(span: OtelSpan, into: AgentSpan) -> None:
    """The operation by the kind, cached and reasoning tokens; the outermost step of an agent has the agent's name."""
    values = span.attributes
    if values.get(_AGENT) == span.name and values.get(_KIND) == "chain":
        offer(into, "operation_name", "invoke_agent")
        offer(into, "agent_name", span.name)
    offer(into, "operation_name", OPERATIONS.get(str(values.get(_KIND))))
    if into.operation_name == "execute_tool":
        offer(into, "tool_name", span.name)
    usage = as_object(values.get(_USAGE))
    given, came = as_object(usage.get("input_token_details")), as_object(usage.get("output_token_details"))
    offer(into, "cache_read_input_tokens", to_count(given.get("cache_read")))
    offer(into, "cache_creation_input_tokens", to_count(given.get("cache_creation")))
    offer(into, "reasoning_tokens", to_count(came.get("reasoning")))
    failure = next((event.attributes for event in span.events if event.name == "exception"), None)
    if failure is not None and "gen_ai.completion" not in values and span.status_code != FAILED:
        # The package of npm sends every run as one that went well.
        into.status_code = status_name(FAILED)
        into.status_message = to_text(failure.get("exception.message"))


LANGSMITH = Convention(
    "langsmith",
    {"conversation_id": tuple(_METADATA + name for name in _SESSIONS)},
    more=(_KIND, _AGENT, _USAGE, "langsmith.span.tags", "langsmith.trace.name", "langsmith.trace.session_name"),
    marks=frozenset({_KIND}),
    context={
        "user": (_METADATA + "user_id", _METADATA + "userId"),
        "tags": ("langsmith.span.tags",),
        "metadata": (_METADATA,),
    },
    tool=("gen_ai.prompt", "gen_ai.completion"),
    derive=_derive,
)
"""The langsmith SDK over OpenTelemetry: `langsmith.*` beside a few GenAI names.

`gen_ai.prompt` and `gen_ai.completion` are the inputs and outputs of a run as JSON text, those of LangChain's models
with its own messages and generations. `gen_ai.operation.name` is the kind of the run, not an operation.

Tokens: `usage_metadata` counts cached tokens inside.
"""


_BASE, _TRACE, _INTERNAL = "langfuse.observation.", "langfuse.trace.", "langfuse.internal."
_TYPE, _INPUT, _OUTPUT = _BASE + "type", _BASE + "input", _BASE + "output"
_MODEL, _LF_USAGE, _SETTINGS = _BASE + "model.name", _BASE + "usage_details", _BASE + "model.parameters"
_LEVEL, _MESSAGE = _BASE + "level", _BASE + "status_message"
_LF_SESSION, _CALL_ID = _BASE + "metadata.langfuse_session_id", _BASE + "metadata.tool_call_id"
"""What LangChain's handler tells as metadata."""
_CONVERSING = frozenset(("generation", "agent"))
"""Types of observations whose input and output are messages."""
_COUNTS = {
    "cache_read_input_tokens": ("input_cached_tokens", "input_cache_read", "cache_read_input_tokens"),
    "cache_creation_input_tokens": ("input_cache_creation", "cache_creation_input_tokens"),
    "reasoning_tokens": ("output_reasoning_tokens", "output_reasoning"),
}


def _derive_langfuse(span: OtelSpan, into: AgentSpan) -> None:
    """The observation's type, settings, tokens and failure; its name is the tool's or the agent's."""
    values = span.attributes
    offer(into, "operation_name", OPERATIONS.get(str(values.get(_TYPE))))
    fill_from(PARAMETERS, as_object(values.get(_SETTINGS)), into)
    _tokens_langfuse(as_object(values.get(_LF_USAGE)), into)
    offer_name(into, span.name)
    for field, key in (("conversation_id", _LF_SESSION), ("tool_call_id", _CALL_ID)):
        offer(into, field, to_text(parse_json(values.get(key))))
    if values.get(_LEVEL) == "ERROR" and span.status_code != FAILED:
        into.status_code = status_name(FAILED)
        into.status_message = to_text(values.get(_MESSAGE))


def _tokens_langfuse(usage: Json, into: AgentSpan) -> None:
    offer_details(into, usage)
    counts = {key: found for key, value in usage.items() if (found := to_count(value)) is not None}
    given = [number for key, number in counts.items() if key.startswith(("input", "prompt_tokens", "cache"))]
    came = [number for key, number in counts.items() if key.startswith(("output", "completion_tokens"))]
    offer(into, "input_tokens", sum(given) if given else None)
    offer(into, "output_tokens", sum(came) if came else None)
    fill_from(_COUNTS, counts, into)


def _messages_langfuse(span: OtelSpan, into: AgentSpan) -> None:
    """Input and output of a model or an agent as messages."""
    values = span.attributes
    if str(values.get(_TYPE, "generation")) not in _CONVERSING:
        return
    given, came = parse_json(values.get(_INPUT)), values.get(_OUTPUT)
    tools = as_list(as_object(given).get("tools"))
    if isinstance(given, list):
        # LangChain's handler tells the tools as messages.
        tools = [one["content"] for one in objects(given) if _is_definition(one)]
        given = [one for one in given if not _is_definition(one)]
    offer(into, "tool_definitions", as_text(tools) if tools else None)
    offer(into, "input_messages", read_request(given) if given else None)
    offer(into, "output_messages", read_answer(came) if came else None)


def _is_definition(message: Any) -> bool:
    told = as_object(message)
    return told.get("role") == "tool" and "function" in as_object(told.get("content"))


LANGFUSE = Convention(
    "langfuse",
    {"conversation_id": ("langfuse.session.id",), "request_model": (_MODEL,)},
    more=(_TYPE, _SETTINGS, _LF_USAGE, _LF_SESSION, _CALL_ID),
    shared=frozenset({"session.id"}),
    context={
        "user": ("langfuse.user.id", _BASE + "metadata.langfuse_user_id"),
        "tags": (_TRACE + "tags", _BASE + "metadata.langfuse_tags"),
        "metadata": (_BASE + "metadata", _BASE + "metadata.", _TRACE + "metadata", _TRACE + "metadata."),
    },
    details={
        "level": (_LEVEL,),
        "status_message": (_MESSAGE,),
        "model_parameters": (_SETTINGS,),
        "completion_start_time": (_BASE + "completion_start_time",),
        "cost_details": (_BASE + "cost_details",),
        "prompt": (_BASE + "prompt",),
        "trace_name": (_TRACE + "name",),
        "trace_input": (_TRACE + "input",),
        "trace_output": (_TRACE + "output",),
        "is_public": (_TRACE + "public",),
        "environment": ("langfuse.environment",),
        "release": ("langfuse.release",),
        "version": ("langfuse.version",),
        "experiment": ("langfuse.experiment",),
    },
    roots=frozenset({"langfuse"}),
    outermost=(_INTERNAL + "is_app_root", _INTERNAL + "as_root"),
    trace_name=_TRACE + "name",
    tool=(_INPUT, _OUTPUT),
    derive=_derive_langfuse,
    messages=_messages_langfuse,
)
"""The SDKs of Langfuse: `langfuse.observation.*` of a span, `langfuse.trace.*` of its trace on each span of it.

Input and output of a model or an agent are messages; of everything else they are the values that went in and out. A
span whose parent is not exported is marked as the outermost.

Tokens: `usage_details` is one count per kind, each priced by itself, so `input` has cached tokens beside: all counts
whose names begin with `input` are added up for the input, likewise for the output. Counts as OpenAI sends them, with
`prompt_tokens_details` nested, have cached tokens and thoughts inside.
"""
