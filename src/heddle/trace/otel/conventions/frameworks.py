"""Frameworks with own conventions: Vercel AI SDK, Mastra, LiveKit, Pipecat, AG2, VoltAgent, Spring AI, and others."""

from heddle.trace.otel.conventions.convention import OPERATIONS, Convention, offer, to_count, to_json_text, to_text
from heddle.trace.otel.span import OtelSpan
from heddle.wire.conversation.messages import message, messages_of, read_answer, read_request, text_message
from heddle.wire.conversation.parts import (
    as_list,
    as_object,
    as_text,
    call_part,
    first_of,
    objects,
    parse_json,
    reasoning_part,
    text_part,
)
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_RUNS = ("ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject")
_VERCEL_OPERATIONS = {
    **dict.fromkeys(_RUNS, "invoke_agent"),
    **{run + step: "chat" for run in _RUNS for step in (".doGenerate", ".doStream")},
    **{name + step: "embeddings" for name in ("ai.embed", "ai.embedMany") for step in ("", ".doEmbed")},
    "ai.rerank": "rerank",
    "ai.rerank.doRerank": "rerank",
    "ai.toolCall": "execute_tool",
}
_METADATA = ("ai.telemetry.metadata.", "ai.settings.context.")
"""Versions 4 to 6, and version 7."""
_CONVERSATION = ("sessionId", "session_id", "threadId", "thread_id", "conversationId", "conversation_id", "chatId")
_METADATA_OF_PROVIDERS = "ai.response.providerMetadata"
_UNCACHED = "ai.usage.inputTokenDetails.noCacheTokens"


def _derive_vercel(span: OtelSpan, into: AgentSpan) -> None:
    """The operation and the provider; the function's id is the agent's name."""
    values = span.attributes
    offer(into, "operation_name", _VERCEL_OPERATIONS.get(str(values.get("ai.operationId", span.name.split(" ", 1)[0]))))
    if provider := to_text(values.get("ai.model.provider")):
        # `openai.chat` is OpenAI's chat API.
        offer(into, "provider_name", provider.split(".", 1)[0])
    if into.operation_name == "invoke_agent":
        offer(into, "agent_name", to_text(values.get("ai.telemetry.functionId")))
    if _METADATA_OF_PROVIDERS in values and _UNCACHED not in values:
        _cached(as_object(values[_METADATA_OF_PROVIDERS]), into)


def _messages_vercel(span: OtelSpan, into: AgentSpan) -> None:
    """Prompt, answer and tools."""
    values = span.attributes
    if tools := as_list(values.get("ai.prompt.tools")):
        offer(into, "tool_definitions", as_text([parse_json(tool) for tool in tools]))
    offer(into, "input_messages", messages_of(values.get("ai.prompt.messages"), "user"))
    if "ai.prompt" in values:
        offer(into, "input_messages", read_request(values["ai.prompt"]))
    embedded = values.get("ai.values", values.get("ai.value"))
    if embedded is not None:
        several = embedded if isinstance(embedded, list) else [embedded]
        offer(into, "input_messages", [text_message("user", parse_json(one)) for one in several])
    offer(into, "output_messages", _answer(values))


def _cached(providers: Json, into: AgentSpan) -> None:
    openai, anthropic = as_object(providers.get("openai")), as_object(providers.get("anthropic"))
    offer(into, "cache_read_input_tokens", to_count(openai.get("cachedPromptTokens")))
    offer(into, "reasoning_tokens", to_count(openai.get("reasoningTokens")))
    usage = as_object(anthropic.get("usage"))
    read = to_count(anthropic.get("cacheReadInputTokens", usage.get("cache_read_input_tokens")))
    written = to_count(anthropic.get("cacheCreationInputTokens", usage.get("cache_creation_input_tokens")))
    if read is not None or written is not None:
        offer(into, "cache_read_input_tokens", read)
        offer(into, "cache_creation_input_tokens", written)
        if into.input_tokens is not None:
            into.input_tokens += (read or 0) + (written or 0)


def _parts(answer: Json, prefix: str = "") -> list[Json]:
    """Parts of what `generateText` and its like return: thoughts, text, object and calls of tools."""
    thought, said, made = (answer.get(prefix + name) for name in ("reasoning", "text", "object"))
    parts = [reasoning_part(as_text(thought))] if thought else []
    parts += [text_part(said)] if isinstance(said, str) and said else []
    parts += [text_part(as_text(made))] if made else []
    for call in objects(as_list(answer.get(prefix + "toolCalls"))):
        arguments = call.get("input", call.get("args"))
        parts.append(call_part(call.get("toolCallId"), call.get("toolName"), arguments))
    return parts


def _answer(values: Json) -> list[Json]:
    parts = _parts(values, "ai.response.")
    if not parts:
        return read_answer(values["ai.response"]) if values.get("ai.response") else []
    told: Json = {"role": "assistant", "parts": parts}
    reason = to_text(values.get("ai.response.finishReason"))
    return [message({**told, "finish_reason": reason}, "assistant")]


VERCEL = Convention(
    "vercel",
    {
        "request_model": ("ai.model.id",),
        "response_model": ("ai.response.model",),
        "response_id": ("ai.response.id",),
        "finish_reasons": ("ai.response.finishReason",),
        "input_tokens": ("ai.usage.inputTokens", "ai.usage.promptTokens", "ai.usage.tokens"),
        "output_tokens": ("ai.usage.outputTokens", "ai.usage.completionTokens"),
        "reasoning_tokens": ("ai.usage.outputTokenDetails.reasoningTokens", "ai.usage.reasoningTokens"),
        "cache_read_input_tokens": ("ai.usage.inputTokenDetails.cacheReadTokens", "ai.usage.cachedInputTokens"),
        "cache_creation_input_tokens": ("ai.usage.inputTokenDetails.cacheWriteTokens",),
        "request_temperature": ("ai.settings.temperature",),
        "request_max_tokens": ("ai.settings.maxOutputTokens", "ai.settings.maxTokens"),
        "request_top_p": ("ai.settings.topP",),
        "request_frequency_penalty": ("ai.settings.frequencyPenalty",),
        "request_presence_penalty": ("ai.settings.presencePenalty",),
        "request_seed": ("ai.settings.seed",),
        "request_stop_sequences": ("ai.settings.stopSequences",),
        "tool_name": ("ai.toolCall.name",),
        "tool_call_id": ("ai.toolCall.id",),
        "conversation_id": tuple(place + name for place in _METADATA for name in _CONVERSATION),
    },
    more=(
        *("ai.operationId", "ai.telemetry.functionId", "ai.model.provider", _METADATA_OF_PROVIDERS, _UNCACHED),
        *("ai.prompt", "ai.prompt.messages", "ai.prompt.tools", "ai.value", "ai.values"),
        *("ai.response.text", "ai.response.reasoning", "ai.response.toolCalls", "ai.response.object"),
        *("ai.usage.totalTokens", "ai.usage.outputTokenDetails.textTokens", "ai.embedding", "ai.embeddings"),
    ),
    context={
        "user": tuple(place + name for place in _METADATA for name in ("userId", "user_id", "user")),
        "tags": tuple(place + "tags" for place in _METADATA),
        "metadata": _METADATA,
        "display_name": ("operation.name",),
    },
    tool=("ai.toolCall.args", "ai.toolCall.result"),
    derive=_derive_vercel,
    messages=_messages_vercel,
)
"""The Vercel AI SDK, versions 4 to 6: `ai.*`. Version 7 writes the GenAI conventions instead, and of these attributes
only what its options `runtimeContext`, `usage` and `providerMetadata` ask for.

`ai.generateText` and its like are the whole run with all steps and are shown as an agent's. Inside,
`ai.generateText.doGenerate` is one request to the model and `ai.toolCall` one run of a tool. The GenAI attributes that
the SDK writes beside are fewer and name the provider with its API (`openai.chat`), so these are read first.

Tokens: `ai.usage.inputTokens` of version 6 and all counts of OpenAI's provider have cached tokens inside. Versions 4
and 5 hand on what Anthropic reports, cached tokens beside, and tell the cache in `ai.response.providerMetadata` alone:
those are added. The run's span repeats the sum (version 4: the last step) of its steps.
"""


_MASTRA = "mastra."
_OF_MODELS = ("agent_run", "model_generation", "model_step")
_STEPS = (
    *("workflow_run", "workflow_step", "workflow_conditional", "workflow_conditional_eval", "workflow_parallel"),
    *("workflow_loop", "workflow_sleep", "workflow_wait_event", "mapping", "generic", "graph_action", "agent_signal"),
    *("model_chunk", "processor_run", "memory_operation", "client_tool_call", "mcp_server_request"),
    *("rag_action", "rag_embedding", "rag_ingestion", "rag_vector_operation", "workspace_action"),
    *("scorer_run", "scorer_step", "classifier_evaluation", "skill_action", "skill_resolution"),
)


def _derive_mastra(span: OtelSpan, into: AgentSpan) -> None:
    """The loop of a model's calls and tools is a step, as each of its turns."""
    if span.attributes.get("gen_ai.operation.name") == "model_generation":
        offer(into, "operation_name", "agent_step")


def _messages_mastra(span: OtelSpan, into: AgentSpan) -> None:
    """What agents, loops and their turns were asked and answered."""
    for kind in _OF_MODELS:
        asked, answered = (span.attributes.get(f"{_MASTRA}{kind}.{end}") for end in ("input", "output"))
        if asked is not None:
            offer(into, "input_messages", read_request(asked))
        if parts := _parts(as_object(answered)):
            offer(into, "output_messages", [{"role": "assistant", "parts": parts}])


def _both(kinds: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((f"{_MASTRA}{kind}.input", f"{_MASTRA}{kind}.output") for kind in kinds)


MASTRA = Convention(
    "mastra",
    {"conversation_id": tuple(f"{_MASTRA}metadata.{name}" for name in _CONVERSATION)},
    more=("mastra.span.type", *(name for pair in _both(_OF_MODELS) for name in pair)),
    context={
        "user": tuple(f"{_MASTRA}metadata.{name}" for name in ("userId", "user_id", "user", "resourceId")),
        "tags": (_MASTRA + "tags",),
        "metadata": (_MASTRA + "metadata.",),
    },
    steps=_both(_STEPS),
    derive=_derive_mastra,
    messages=_messages_mastra,
)
"""Mastra: `mastra.*` beside the GenAI conventions, which it writes for requests to models and for tools alone.

An agent's run, its loop (`model_generation`) and the loop's turns (`model_step`) have what the AI SDK was given and
gave as JSON text; all other steps have any value.

Tokens: those of the GenAI conventions, on the spans of requests.
"""


_LK = ("lk.pii.", "lk.")
"""Since the release that marks what is personal, and before it."""
_ASKED, _CONTEXT, _SAID, _CALLED, _SPOKEN, _HEARD = (
    tuple(place + name for place in _LK)
    for name in ("user_input", "chat_ctx", "response.text", "response.function_calls", "input_text", "user_transcript")
)
_TOOL = tuple(f"{place}function_tool.{name}" for place in _LK for name in ("arguments", "output"))
_ITEMS = ("message", "function_call", "function_call_output")


def _derive_livekit(span: OtelSpan, into: AgentSpan) -> None:
    """A tool's run, which older releases do not name."""
    if not span.attributes.keys().isdisjoint(_TOOL):
        offer(into, "operation_name", "execute_tool")


def _messages_livekit(span: OtelSpan, into: AgentSpan) -> None:
    """What a turn or a node for the model was given and gave, and a tool."""
    values = span.attributes
    given = [one for one in objects(as_object(first_of(values, _CONTEXT)).get("items")) if one.get("type") in _ITEMS]
    offer(into, "input_messages", messages_of([_bare(one) for one in given], "user"))
    offer(into, "input_messages", messages_of(first_of(values, _ASKED), "user"))
    said, called = first_of(values, _SAID), objects(as_list(first_of(values, _CALLED)))
    parts = [text_part(said)] if isinstance(said, str) and said else []
    parts += [call_part(one.get("call_id"), one.get("name"), one.get("arguments")) for one in called]
    offer(into, "output_messages", [{"role": "assistant", "parts": parts}] if parts else None)
    for field, names in (("tool_call_arguments", _TOOL[::2]), ("tool_call_result", _TOOL[1::2])):
        offer(into, field, to_json_text(first_of(values, names)))


def _bare(item: Json) -> Json:
    """An item without what only marks a place in it."""
    content = item.get("content")
    if not isinstance(content, list):
        return item
    return {**item, "content": [one for one in content if as_object(one).get("type") != "cache_breakpoint"]}


LIVEKIT = Convention(
    "livekit",
    {
        "tool_name": ("lk.function_tool.name",),
        "tool_call_id": ("lk.function_tool.id",),
    },
    more=(*_ASKED, *_CONTEXT, *_SAID, *_CALLED, *_TOOL),
    steps=tuple((place + "input_text", place + "user_transcript") for place in _LK),
    derive=_derive_livekit,
    messages=_messages_livekit,
)
"""LiveKit Agents: `lk.*` of turns, of nodes and of tools, beside the GenAI conventions for requests to models.

Tokens: those of the GenAI conventions, on the spans of requests; cached tokens inside.
"""


_HELD, _GAVE, _OFFERED = "input", "output", "tools"


def _messages_pipecat(span: OtelSpan, into: AgentSpan) -> None:
    """What a model was asked, answered and offered."""
    values = span.attributes
    if into.operation_name == "chat":
        offer(into, "tool_definitions", to_json_text(values.get(_OFFERED)))
        offer(into, "input_messages", read_request(values[_HELD]) if values.get(_HELD) else None)
        offer(into, "output_messages", read_answer(values[_GAVE]) if values.get(_GAVE) else None)


PIPECAT = Convention(
    "pipecat",
    {"conversation_id": ("conversation.id",)},
    more=(_HELD, _GAVE, _OFFERED),
    # All of its attributes could be anybody's.
    marks=frozenset({"turn.was_interrupted"}),
    scopes=("pipecat",),
    context={"user": ("user_id",)},
    steps=(("text", "transcript"),),
    messages=_messages_pipecat,
)
"""Pipecat: the GenAI conventions, messages in attributes of general names; speech has a text, hearing a transcript.

Tokens: those of the GenAI conventions, cached tokens inside.
"""


_AG2_TYPE, _AG2_USAGE = "ag2.span.type", "ag2.usage.kind"
_AG2_HUMAN = ("ag2.human_input.prompt", "ag2.human_input.response")


def _derive_ag2(span: OtelSpan, into: AgentSpan) -> None:
    """A record of usage names a model, but asks none."""
    if span.attributes.get(_AG2_TYPE) == "usage":
        offer(into, "operation_name", "record_usage")


AG2 = Convention(
    "ag2",
    {},
    more=(_AG2_TYPE, _AG2_USAGE),
    repeated=(_AG2_USAGE, "model_call"),
    steps=(_AG2_HUMAN,),
    derive=_derive_ag2,
)
"""AG2: the GenAI conventions, and what it asked a person.

Tokens: those of the GenAI conventions, cached tokens inside; `record_usage` repeats those of the request beside it. Its
other kinds (history compaction, a subtask's sum) may be the only record of what they count.
"""


_VOLT_TYPE, _VOLT_ENTITY = "span.type", "entity.type"
_VOLT_MESSAGES = "llm.messages"
_VOLT_OPERATIONS = {**OPERATIONS, "scorer": "evaluator", "workflow-step": "agent_step"}


def _derive_voltagent(span: OtelSpan, into: AgentSpan) -> None:
    """The operation; spans below the run of an agent or a workflow repeat what they are part of."""
    kind = span.attributes.get(_VOLT_TYPE) or span.attributes.get(_VOLT_ENTITY)
    offer(into, "operation_name", _VOLT_OPERATIONS.get(str(kind)))
    if into.operation_name == "invoke_agent":
        offer(into, "agent_name", to_text(span.attributes.get("entity.name")))


def _messages_voltagent(span: OtelSpan, into: AgentSpan) -> None:
    """What a model was asked, and what an agent was asked and answered."""
    values = span.attributes
    if into.operation_name == "chat":
        asked = parse_json(values.get(_VOLT_MESSAGES))
        # A stored span has the numbered messages beside `llm.messages.count`.
        listed = objects(list(asked.values()) if isinstance(asked, dict) else asked)
        offer(into, "input_messages", messages_of(listed, "user"))
    elif into.operation_name == "invoke_agent":
        offer(into, "input_messages", read_request(values.get(_HELD)))
        offer(into, "output_messages", read_answer(values.get(_GAVE)))


VOLTAGENT = Convention(
    "voltagent",
    {
        "request_model": ("llm.model", "ai.model.name"),
        "provider_name": ("llm.provider", "ai.model.provider"),
        "request_temperature": ("llm.temperature", "ai.model.temperature"),
        "request_max_tokens": ("llm.max_output_tokens", "ai.model.max_tokens"),
        "request_top_p": ("llm.top_p", "ai.model.top_p"),
        "input_tokens": ("llm.usage.prompt_tokens",),
        "output_tokens": ("llm.usage.completion_tokens",),
        "cache_read_input_tokens": ("llm.usage.cached_tokens",),
        "reasoning_tokens": ("llm.usage.reasoning_tokens",),
        "finish_reasons": ("llm.finish_reason", "ai.response.finish_reason"),
        "conversation_id": ("conversation.id",),
        "system_instructions": ("agent.instructions",),
        "tool_name": ("tool.name",),
        "tool_call_id": ("tool.call.id",),
        "tool_description": ("tool.description",),
    },
    more=(_VOLT_TYPE, _VOLT_ENTITY, _VOLT_MESSAGES),
    # All of its attributes could be anybody's.
    marks=frozenset({"voltagent.operation_id"}),
    scopes=("@voltagent/",),
    context={"display_name": ("span.label",)},
    tool=(_HELD, _GAVE),
    derive=_derive_voltagent,
    messages=_messages_voltagent,
)
"""VoltAgent: attributes of general names; its spans of requests have no answer.

Tokens: those of requests, cached tokens inside; of a run with tools its one span has only those of the last step.
"""


_SPRING_KIND, _SPRING_TOOL = "spring.ai.kind", "spring.ai.tool."
_SPRING_OPERATIONS = {"chat_client": "invoke_workflow", "advisor": "agent_step", "tool_call": "execute_tool"}
_QUERY, _REQUESTED, _RESPONDED = "db.vector.query.", "gen_ai.request.model", "gen_ai.response.model"


def _derive_spring(span: OtelSpan, into: AgentSpan) -> None:
    """The operation, which is always named `framework`; the model of a request without a response, named `none`."""
    values = span.attributes
    kind = values.get(_SPRING_KIND)
    found = "retrieval" if values.get("db.operation.name") == "query" else _SPRING_OPERATIONS.get(str(kind))
    offer(into, "operation_name", found if kind else None)
    if values.get(_RESPONDED) == "none":
        offer(into, "response_model", to_text(values.get(_REQUESTED)))


SPRING_AI = Convention(
    "spring_ai",
    {
        "conversation_id": ("spring.ai.chat.client.conversation.id",),
        "tool_name": (_SPRING_TOOL + "definition.name",),
        "tool_description": (_SPRING_TOOL + "definition.description",),
    },
    more=(_SPRING_KIND,),
    scopes=("org.springframework.",),
    context={"display_name": (_SPRING_TOOL + "definition.name",)},
    tool=(_SPRING_TOOL + "call.arguments", _SPRING_TOOL + "call.result"),
    steps=((_QUERY + "content", _QUERY + "response.documents"),),
    derive=_derive_spring,
)
"""Spring AI: the GenAI conventions for requests to models, whose messages it does not send; every value is a text.

Tokens: those of the GenAI conventions; cached tokens are not told.
"""


_TURN, _PROMPT = "interaction.sequence", "user_prompt"
_ANSWER_EVENT, _OUTPUT_EVENT = "claude_code.assistant_response", "tool.output"
_REDACTED = "<REDACTED>"


def _derive_claude_code(span: OtelSpan, into: AgentSpan) -> None:
    """The agent, which its spans do not name."""
    if _TURN in span.attributes:
        offer(into, "agent_name", "Claude Code")


def _messages_claude_code(span: OtelSpan, into: AgentSpan) -> None:
    """The prompt, the last answer (in a log record that joined the span), and what a tool gave."""
    said = {event.name: event.attributes for event in span.events}
    asked, answered = span.attributes.get(_PROMPT), said.get(_ANSWER_EVENT, {}).get("response")
    if asked != _REDACTED:
        offer(into, "input_messages", messages_of(asked, "user"))
    if answered != _REDACTED:
        offer(into, "output_messages", messages_of(answered, "assistant"))
    if into.operation_name == "execute_tool":
        offer(into, "tool_call_result", to_json_text(said.get(_OUTPUT_EVENT, {}).get("output")))


CLAUDE_CODE = Convention(
    "claude_code",
    {},
    more=(_PROMPT,),
    # All of its attributes could be anybody's.
    marks=frozenset({_TURN}),
    scopes=("com.anthropic.claude_code",),
    derive=_derive_claude_code,
    messages=_messages_claude_code,
)
"""Claude Code and the Claude Agent SDK, which runs it: the GenAI conventions, its texts beside them and in events.

Tokens: those of the GenAI conventions, cached tokens inside.
"""


_NEMO_OPERATIONS = {
    "guardrails.request": "invoke_workflow",
    "guardrails.rail": "guardrail",
    "guardrails.action": "agent_step",
}
_NEMO_SAID = (
    ("input_messages", "user", "guardrails.request.input", "guardrails.utterance.user.finished"),
    ("output_messages", "assistant", "guardrails.request.output", "guardrails.utterance.bot.started"),
)


def _derive_nemo(span: OtelSpan, into: AgentSpan) -> None:
    """The operation, by the name of the span."""
    offer(into, "operation_name", _NEMO_OPERATIONS.get(span.name))


def _messages_nemo(span: OtelSpan, into: AgentSpan) -> None:
    """What the program was asked and answered, in attributes or in events."""
    if into.operation_name == "invoke_workflow":
        told = {event.name: event.attributes.get("content") for event in span.events}
        for field, role, name, event in _NEMO_SAID:
            offer(into, field, messages_of(span.attributes.get(name, told.get(event)), role))


NEMO_GUARDRAILS = Convention(
    "nemo_guardrails",
    {},
    scopes=("nemo_guardrails",),
    context={"display_name": ("rail.name", "action.name")},
    steps=(("guardrails.rail.input", "guardrails.rail.reason"),),
    derive=_derive_nemo,
    messages=_messages_nemo,
)
"""NeMo Guardrails: requests, rails and actions by their names, beside the GenAI conventions of requests to models.

Tokens: those of the GenAI conventions.
"""
