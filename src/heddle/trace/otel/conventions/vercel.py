"""The Vercel AI SDK, versions 4 to 6: `ai.*`. Version 7 writes the GenAI conventions instead.

`ai.generateText` and its like are the whole run with all steps and are shown as an agent's. Inside,
`ai.generateText.doGenerate` is one request to the model and `ai.toolCall` one run of a tool. The GenAI attributes that
the SDK writes beside are fewer and name the provider with its API (`openai.chat`), so these are read first.

Tokens: `ai.usage.inputTokens` of version 6 and all counts of OpenAI's provider have cached tokens inside. Versions 4
and 5 hand on what Anthropic reports, cached tokens beside, and tell the cache in `ai.response.providerMetadata` alone:
those are added. The run's span repeats the sum (version 4: the last step) of its steps.
"""

from typing import Any

from heddle.trace.otel.conventions.bodies import answered, asked
from heddle.trace.otel.conventions.parts import call_part, message, messages_of, reasoning_part, simple, text_part
from heddle.trace.otel.conventions.values import (
    Scalar,
    as_list,
    as_object,
    as_text,
    count,
    fill,
    number,
    objects,
    offer,
    parsed,
    text,
    texts,
    told,
    whole,
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


def _provider(value: Any) -> str | None:
    """`openai.chat` is OpenAI's chat API."""
    found = text(value)
    return found.split(".", 1)[0] if found else None


SCALARS = (
    Scalar("ai.model.provider", "provider_name", _provider),
    Scalar("ai.model.id", "request_model", text),
    Scalar("ai.response.model", "response_model", text),
    Scalar("ai.response.id", "response_id", text),
    Scalar("ai.response.finishReason", "finish_reasons", texts),
    Scalar("ai.usage.inputTokens", "input_tokens", count),
    Scalar("ai.usage.promptTokens", "input_tokens", count),
    Scalar("ai.usage.tokens", "input_tokens", count),
    Scalar("ai.usage.outputTokens", "output_tokens", count),
    Scalar("ai.usage.completionTokens", "output_tokens", count),
    Scalar("ai.usage.outputTokenDetails.reasoningTokens", "reasoning_tokens", count),
    Scalar("ai.usage.reasoningTokens", "reasoning_tokens", count),
    Scalar("ai.usage.inputTokenDetails.cacheReadTokens", "cache_read_input_tokens", count),
    Scalar("ai.usage.cachedInputTokens", "cache_read_input_tokens", count),
    Scalar("ai.usage.inputTokenDetails.cacheWriteTokens", "cache_creation_input_tokens", count),
    Scalar("ai.settings.temperature", "request_temperature", number),
    Scalar("ai.settings.maxOutputTokens", "request_max_tokens", count),
    Scalar("ai.settings.maxTokens", "request_max_tokens", count),
    Scalar("ai.settings.topP", "request_top_p", number),
    Scalar("ai.settings.frequencyPenalty", "request_frequency_penalty", number),
    Scalar("ai.settings.presencePenalty", "request_presence_penalty", number),
    Scalar("ai.settings.seed", "request_seed", whole),
    Scalar("ai.settings.stopSequences", "request_stop_sequences", texts),
    Scalar("ai.toolCall.name", "tool_name", text),
    Scalar("ai.toolCall.id", "tool_call_id", text),
    *(Scalar(_METADATA + name, "conversation_id", text) for name in _CONVERSATION),
)
_METADATA_OF_PROVIDERS = "ai.response.providerMetadata"
_UNCACHED = "ai.usage.inputTokenDetails.noCacheTokens"
_READ = {
    "ai.prompt",
    "ai.prompt.messages",
    "ai.prompt.tools",
    "ai.value",
    "ai.values",
    "ai.response.text",
    "ai.response.reasoning",
    "ai.response.toolCalls",
    "ai.response.object",
    "ai.toolCall.args",
    "ai.toolCall.result",
    "ai.usage.totalTokens",
    _UNCACHED,
    "ai.usage.outputTokenDetails.textTokens",
    "ai.embedding",
    "ai.embeddings",
    _METADATA_OF_PROVIDERS,
}


class Vercel:
    """Attributes that begin with `ai.`."""

    name = "vercel"
    keys = frozenset(row.key for row in SCALARS) | _READ | {"ai.operationId", "ai.telemetry.functionId"}
    prefixes: tuple[str, ...] = ()
    shared: frozenset[str] = frozenset()

    def recognises(self, span: OtelSpan) -> bool:
        """True with any of the attributes."""
        return not self.keys.isdisjoint(span.attributes)

    def describe(self, span: OtelSpan, into: AgentSpan) -> None:
        """The operation, models, tokens, settings; the function's id is the agent's name."""
        values = span.attributes
        offer(into, "operation_name", OPERATIONS.get(str(values.get("ai.operationId", span.name.split(" ", 1)[0]))))
        fill(SCALARS, values, into)
        if into.operation_name == "invoke_agent":
            offer(into, "agent_name", text(values.get("ai.telemetry.functionId")))
        if _METADATA_OF_PROVIDERS in values and _UNCACHED not in values:
            _cached(as_object(values[_METADATA_OF_PROVIDERS]), into)

    def messages(self, span: OtelSpan, into: AgentSpan) -> None:
        """Prompt, answer and tools."""
        values = span.attributes
        if into.operation_name == "execute_tool":
            for key, field in (("ai.toolCall.args", "tool_call_arguments"), ("ai.toolCall.result", "tool_call_result")):
                offer(into, field, told(values.get(key)))
            return
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
