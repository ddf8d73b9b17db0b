"""The Vercel AI SDK, versions 4 to 6: `ai.*`. Version 7 writes the GenAI conventions instead.

`ai.generateText` and its like are the whole run with all steps and are shown as an agent's. Inside,
`ai.generateText.doGenerate` is one request to the model and `ai.toolCall` one run of a tool. The GenAI attributes that
the SDK writes beside are fewer and name the provider with its API (`openai.chat`), so these are read first.

Tokens: `ai.usage.inputTokens` of version 6 and all counts of OpenAI's provider have cached tokens inside. Versions 4
and 5 hand on what Anthropic reports, cached tokens beside, and tell the cache in `ai.response.providerMetadata` alone:
those are added. The run's span repeats the sum (version 4: the last step) of its steps.
"""

from heddle.trace.otel.conventions.convention import (
    Convention,
    as_list,
    as_object,
    as_text,
    count,
    objects,
    offer,
    parsed,
    text,
)
from heddle.trace.otel.conventions.messages import (
    answered,
    asked,
    call_part,
    message,
    messages_of,
    reasoning_part,
    simple,
    text_part,
)
from heddle.trace.otel.span import OtelSpan
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_RUNS = ("ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject")
OPERATIONS = {
    **dict.fromkeys(_RUNS, "invoke_agent"),
    **{run + step: "chat" for run in _RUNS for step in (".doGenerate", ".doStream")},
    **{name + step: "embeddings" for name in ("ai.embed", "ai.embedMany") for step in ("", ".doEmbed")},
    "ai.rerank": "rerank",
    "ai.rerank.doRerank": "rerank",
    "ai.toolCall": "execute_tool",
}
_METADATA = "ai.telemetry.metadata."
_CONVERSATION = ("sessionId", "session_id", "threadId", "thread_id", "conversationId", "conversation_id", "chatId")
_METADATA_OF_PROVIDERS = "ai.response.providerMetadata"
_UNCACHED = "ai.usage.inputTokenDetails.noCacheTokens"


def _derive(span: OtelSpan, into: AgentSpan) -> None:
    """The operation and the provider; the function's id is the agent's name."""
    values = span.attributes
    offer(into, "operation_name", OPERATIONS.get(str(values.get("ai.operationId", span.name.split(" ", 1)[0]))))
    if provider := text(values.get("ai.model.provider")):
        # `openai.chat` is OpenAI's chat API.
        offer(into, "provider_name", provider.split(".", 1)[0])
    if into.operation_name == "invoke_agent":
        offer(into, "agent_name", text(values.get("ai.telemetry.functionId")))
    if _METADATA_OF_PROVIDERS in values and _UNCACHED not in values:
        _cached(as_object(values[_METADATA_OF_PROVIDERS]), into)


def _messages(span: OtelSpan, into: AgentSpan) -> None:
    """Prompt, answer and tools."""
    values = span.attributes
    if tools := as_list(values.get("ai.prompt.tools")):
        offer(into, "tool_definitions", as_text([parsed(tool) for tool in tools]))
    offer(into, "input_messages", messages_of(values.get("ai.prompt.messages"), "user"))
    if "ai.prompt" in values:
        offer(into, "input_messages", asked(values["ai.prompt"]))
    embedded = values.get("ai.values", values.get("ai.value"))
    if embedded is not None:
        several = embedded if isinstance(embedded, list) else [embedded]
        offer(into, "input_messages", [simple("user", parsed(one)) for one in several])
    offer(into, "output_messages", _answer(values))


def _cached(providers: Json, into: AgentSpan) -> None:
    openai, anthropic = as_object(providers.get("openai")), as_object(providers.get("anthropic"))
    offer(into, "cache_read_input_tokens", count(openai.get("cachedPromptTokens")))
    offer(into, "reasoning_tokens", count(openai.get("reasoningTokens")))
    usage = as_object(anthropic.get("usage"))
    read = count(anthropic.get("cacheReadInputTokens", usage.get("cache_read_input_tokens")))
    written = count(anthropic.get("cacheCreationInputTokens", usage.get("cache_creation_input_tokens")))
    if read is not None or written is not None:
        offer(into, "cache_read_input_tokens", read)
        offer(into, "cache_creation_input_tokens", written)
        if into.input_tokens is not None:
            into.input_tokens += (read or 0) + (written or 0)


def _answer(values: Json) -> list[Json]:
    thought, said, made = (values.get("ai.response." + name) for name in ("reasoning", "text", "object"))
    parts = [reasoning_part(as_text(thought))] if thought else []
    parts += [text_part(said)] if isinstance(said, str) and said else []
    parts += [text_part(as_text(made))] if made else []
    for call in objects(as_list(values.get("ai.response.toolCalls"))):
        arguments = call.get("input", call.get("args"))
        parts.append(call_part(call.get("toolCallId"), call.get("toolName"), arguments))
    if not parts:
        return answered(values["ai.response"]) if values.get("ai.response") else []
    told: Json = {"role": "assistant", "parts": parts}
    reason = text(values.get("ai.response.finishReason"))
    return [message({**told, "finish_reason": reason}, "assistant")]


CONVENTION = Convention(
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
        "conversation_id": tuple(_METADATA + name for name in _CONVERSATION),
    },
    more=(
        *("ai.operationId", "ai.telemetry.functionId", "ai.model.provider", _METADATA_OF_PROVIDERS, _UNCACHED),
        *("ai.prompt", "ai.prompt.messages", "ai.prompt.tools", "ai.value", "ai.values"),
        *("ai.response.text", "ai.response.reasoning", "ai.response.toolCalls", "ai.response.object"),
        *("ai.usage.totalTokens", "ai.usage.outputTokenDetails.textTokens", "ai.embedding", "ai.embeddings"),
    ),
    tool=("ai.toolCall.args", "ai.toolCall.result"),
    derive=_derive,
    messages=_messages,
)
