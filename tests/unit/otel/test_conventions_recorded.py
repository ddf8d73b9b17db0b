"""What a person sees of the exports that real libraries made (`tools/record_otel.py`), one line for every span.

Every library was asked the same and got the same answers. Columns: name; kind; provider and model asked for > model
that answered; tokens: input (cached ones inside) output reasoning cache-read cache-written; messages in > out; reasons
to finish; and what else there is. `-` is nothing. Messages are LETTERS, each an exact part of a message.
"""

from dataclasses import asdict
from typing import Any

import orjson
import pytest

from heddle.trace.otel.reading import KINDS, from_dump
from heddle.trace.otel.span import expand, to_dump
from heddle.wire import jsontext
from heddle.wire.conversation.parts import parse_json
from heddle.wire.spans import AgentSpan
from tests.support.otel import RECORDINGS, recorded, seen

LETTERS: dict[str, tuple[Any, ...]] = {
    "S": ("system", {"type": "text", "content": "Answer in one sentence."}),
    "U": ("user", {"type": "text", "content": "How warm is it in Paris?"}),
    "C": ("assistant", {"type": "tool_call", "id": "call_1", "name": "get_weather", "arguments": {"city": "Paris"}}),
    "R": ("tool", {"type": "tool_call_response", "id": "call_1", "response": {"degrees": 18}}),
    "r": ("user", {"type": "tool_call_response", "id": "call_1", "response": {"degrees": 18}}),
    "A": ("assistant", {"type": "text", "content": "It is 18 degrees in Paris."}),
    "T": ("assistant", {"type": "reasoning", "content": "The user wants the weather in Paris."}),
    "E": ("user", {"type": "text", "content": "the weather in Paris"}),
    "X": ("assistant", {"type": "tool_call_response", "id": "call_1", "response": {"degrees": 18}}),
    "P": ("user", {"type": "text", "content": '{"question":"Paris"}'}),
    "Q": ("user", {"type": "text", "content": '{"question":"How warm is it in Paris?"}'}),
}
SAME = {"toolu_1": "call_1", "fc_1": "call_1", "getWeather": "get_weather"}
"""Other ids of the same call, and the tool's name in JavaScript."""

SEEN = """
genai-embeddings.bin
    embeddings text-embedding-3-small | embedding | openai text-embedding-3-small > text-embedding-3-small | 5 - - - - | - > - | -
genai-error.bin
    chat model-missing | llm | openai model-missing > - | - - - - - | SU > - | - | error openai.NotFoundError: Error code: 404 - no such model: model-missing
genai-responses.bin
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | U > C | tool_calls
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | UCR > A | stop
genai-stream.bin
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SU > A | stop
genai-tools.bin
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SU > C | tool_calls
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SUCR > A | stop
langfuse.bin
    ask | llm | - gpt-5-mini > - | 120 30 - 64 - | U > A | - | thread session-1
    get_weather | tool | - - > - | - - - - - | - > - | - | tool get_weather {"city":"Paris"} > {"degrees":18} | thread session-1
    answer | agent | - - > - | - - - - - | P > A | - | agent answer | thread session-1
logfire-2.bin
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | U > C | tool_call | agent forecaster | thread of its own
    running tool | tool | - - > - | - - - - - | - > - | - | agent forecaster | tool get_weather {"city":"Paris"} > {"degrees":18} | thread of its own
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | UCr > A | stop | agent forecaster | thread of its own
    agent run | agent | - gpt-5-mini > - | - - - - - | UCr > A | - | agent forecaster | thread of its own
    answer {question} | - | - - > - | - - - - - | - > - | -
logfire-6.bin
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | U > C | tool_call | agent forecaster | thread of its own
    execute_tool get_weather | tool | - - > - | - - - - - | - > - | - | agent forecaster | tool get_weather {"city":"Paris"} > {"degrees":18} | thread of its own
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | UCR > A | stop | agent forecaster | thread of its own
    invoke_agent forecaster | agent | - gpt-5-mini > - | - - - - - | UCR > A | - | agent forecaster | thread of its own
    answer {question} | - | - - > - | - - - - - | - > - | -
logfire-anthropic.bin
    anthropic.messages.create | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | - > - | - | agent forecaster | thread of its own
    anthropic.messages.create | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | - > - | - | agent forecaster | thread of its own
    chat claude-sonnet-4-5 | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | U > TC | tool_call | agent forecaster | thread of its own
    execute_tool get_weather | tool | - - > - | - - - - - | - > - | - | agent forecaster | tool get_weather {"city":"Paris"} > {"degrees":18} | thread of its own
    chat claude-sonnet-4-5 | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | UTCR > TA | stop | agent forecaster | thread of its own
    invoke_agent forecaster | agent | - claude-sonnet-4-5 > - | - - - - - | UTCR > TA | - | agent forecaster | thread of its own
    answer {question} | - | - - > - | - - - - - | - > - | -
mlflow.bin
    Completions | llm | - gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SU > C | tool_calls
    get_weather | tool | - - > - | - - - - - | - > - | - | tool get_weather {"city":"Paris"} > {"degrees":18}
    forecaster | agent | - - > - | - - - - - | Q > A | - | agent forecaster
old-genai-tools.bin
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 - - - | - > - | tool_calls
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 - - - | - > - | stop
old-logfire-1.bin
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 - - | SU > C | -
    running tool | tool | - - > - | - - - - - | - > - | - | tool get_weather {"city":"Paris"} > {"degrees":18}
    running tools | - | - - > - | - - - - - | - > - | -
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 - - | SUCR > A | -
    agent run | agent | - gpt-5-mini > - | 240 60 24 - - | SUCR > A | - | agent forecaster
    answer {question} | - | - - > - | - - - - - | - > - | -
old-openllmetry-anthropic.bin
    anthropic.chat | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | SU > TC | tool_use
    anthropic.chat | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | SUTCr > TA | end_turn
old-openllmetry-stream.bin
    openai.chat | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 - 64 - | SU > A | stop
old-openllmetry-tools.bin
    openai.chat | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 - 64 - | SU > C | tool_calls
    openai.chat | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 - 64 - | SUCR > A | stop
openinference-anthropic.bin
    anthropic.messages.create | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | - > - | -
    anthropic.messages.create | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | - > - | -
    messages.create | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | SU > TC | tool_use
    messages.create | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | SUTCR > TA | end_turn
openinference-embeddings.bin
    CreateEmbeddings | embedding | openai text-embedding-3-small > - | 5 - - - - | E > - | -
openinference-error.bin
    ChatCompletion | llm | openai model-missing > - | - - - - - | SU > - | - | error openai.NotFoundError: NotFoundError: Error code: 404 - no such model: model-missing
openinference-responses.bin
    Response | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 0 | SU > TC | -
    Response | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 0 | UCR > TA | -
openinference-stream.bin
    ChatCompletion | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SU > A | stop
openinference-tools.bin
    ChatCompletion | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SU > C | tool_calls
    ChatCompletion | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SUCR > A | stop
openllmetry-anthropic.bin
    anthropic.messages.create | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | - > - | -
    anthropic.messages.create | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | - > - | -
    anthropic.chat | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | U > TC | tool_call
    anthropic.chat | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | UTCr > TA | stop
openllmetry-embeddings.bin
    openai.embeddings | embedding | openai text-embedding-3-small > text-embedding-3-small | 5 - - 0 - | E > - | -
openllmetry-error.bin
    openai.chat | llm | openai model-missing > - | - - - - - | SU > - | - | error NotFoundError: Error code: 404 - no such model: model-missing
openllmetry-responses.bin
    openai.response | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SU > TC | tool_call
    openai.response | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | UCR > AT | stop
openllmetry-stream.bin
    openai.chat | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 - 64 - | SU > A | stop
openllmetry-tools.bin
    openai.chat | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SU > C | tool_call
    openai.chat | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SUCR > A | stop
vercel4-anthropic.bin
    ai.generateText.doGenerate | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | SU > A | stop | thread session-1
    ai.generateText | agent | anthropic claude-sonnet-4-5 > - | 100 30 - 64 16 | SU > A | stop | agent forecast | thread session-1
vercel4-embeddings.bin
    ai.embed.doEmbed | embedding | openai text-embedding-3-small > - | 5 - - - - | E > - | - | thread session-1
    ai.embed | embedding | openai text-embedding-3-small > - | 5 - - - - | E > - | - | thread session-1
vercel4-error.bin
    ai.generateText.doGenerate | llm | openai model-missing > - | - - - - - | SU > - | - | thread session-1 | error AI_APICallError: no such model: model-missing
    ai.generateText | agent | openai model-missing > - | - - - - - | SU > - | - | agent forecast | thread session-1 | error AI_APICallError: no such model: model-missing
vercel4-stream.bin
    ai.streamText.doStream | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SU > A | stop | thread session-1
    ai.streamText | agent | openai gpt-5-mini > - | 120 30 12 64 - | SU > A | stop | agent forecast | thread session-1
vercel4-tools.bin
    ai.generateText.doGenerate | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SU > C | tool-calls | thread session-1
    ai.toolCall | tool | - - > - | - - - - - | - > - | - | tool getWeather {"city":"Paris"} > {"degrees":18}
    ai.generateText.doGenerate | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SUCR > A | stop | thread session-1
    ai.generateText | agent | openai gpt-5-mini > - | 120 30 12 64 - | SU > A | stop | agent forecast | thread session-1
vercel5-anthropic.bin
    ai.generateText.doGenerate | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | SU > A | stop | thread session-1
    ai.generateText | agent | anthropic claude-sonnet-4-5 > - | 100 30 - 64 16 | SU > A | stop | agent forecast | thread session-1
vercel6-anthropic.json
    ai.generateText.doGenerate | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | SU > TA | stop | thread session-1
    ai.generateText | agent | anthropic claude-sonnet-4-5 > - | 100 30 - 64 16 | SU > TA | stop | agent forecast | thread session-1
vercel6-embeddings.json
    ai.embed.doEmbed | embedding | openai text-embedding-3-small > - | 5 - - - - | E > - | - | thread session-1
    ai.embed | embedding | openai text-embedding-3-small > - | 5 - - - - | E > - | - | thread session-1
vercel6-error.json
    ai.generateText.doGenerate | llm | openai model-missing > - | - - - - - | SU > - | - | thread session-1 | error AI_APICallError: no such model: model-missing
    ai.generateText | agent | openai model-missing > - | - - - - - | SU > - | - | agent forecast | thread session-1 | error AI_APICallError: no such model: model-missing
vercel6-stream.json
    ai.streamText.doStream | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SU > A | stop | thread session-1
    ai.streamText | agent | openai gpt-5-mini > - | 120 30 12 64 - | SU > A | stop | agent forecast | thread session-1
vercel6-tools.json
    ai.generateText.doGenerate | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SU > C | tool-calls | thread session-1
    ai.toolCall | tool | - - > - | - - - - - | - > - | - | tool getWeather {"city":"Paris"} > {"degrees":18} | thread session-1
    ai.generateText.doGenerate | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 12 64 - | SUCR > A | stop | thread session-1
    ai.generateText | agent | openai gpt-5-mini > - | 240 60 24 128 - | SU > A | stop | agent forecast | thread session-1
vercel7-anthropic.bin
    chat claude-sonnet-4-5 | llm | anthropic claude-sonnet-4-5 > claude-sonnet-4-5 | 100 30 - 64 16 | U > TA | stop
    step 1 | workflow | - - > - | - - - - - | - > - | -
    invoke_agent claude-sonnet-4-5 | agent | anthropic claude-sonnet-4-5 > - | 100 30 - 64 16 | U > TA | stop | agent forecast
vercel7-embeddings.bin
    embeddings text-embedding-3-small | embedding | openai text-embedding-3-small > - | 5 - - - - | - > - | -
    embeddings text-embedding-3-small | embedding | openai text-embedding-3-small > - | - - - - - | - > - | -
vercel7-error.bin
    chat model-missing | llm | openai model-missing > - | - - - - - | U > - | - | error AI_APICallError: no such model: model-missing
    step 1 | workflow | - - > - | - - - - - | - > - | - | error AI_APICallError: no such model: model-missing
    invoke_agent model-missing | agent | openai model-missing > - | - - - - - | U > - | - | agent forecast | error AI_APICallError: no such model: model-missing
vercel7-stream.bin
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 - 64 - | U > A | stop
    step 1 | workflow | - - > - | - - - - - | - > - | -
    invoke_agent gpt-5-mini | agent | openai gpt-5-mini > - | 120 30 - 64 - | U > A | stop | agent forecast
vercel7-tools.bin
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 - 64 - | U > C | tool-calls
    execute_tool getWeather | tool | - - > - | - - - - - | - > - | - | tool getWeather {"city":"Paris"} > {"degrees":18}
    step 1 | workflow | - - > - | - - - - - | - > - | -
    chat gpt-5-mini | llm | openai gpt-5-mini > gpt-5-mini-2026-01-01 | 120 30 - 64 - | UCR > A | stop
    step 2 | workflow | - - > - | - - - - - | - > - | -
    invoke_agent gpt-5-mini | agent | openai gpt-5-mini > - | 240 60 - 128 - | U > ACX | stop | agent forecast
"""  # noqa: E501


def letters(messages: list[dict[str, Any]]) -> str:
    """The parts of messages as letters; an unknown part as it is."""
    found = []
    for one in messages:
        for part in one["parts"]:
            same = {key: SAME.get(value, value) if isinstance(value, str) else value for key, value in part.items()}
            letter = next((name for name, known in LETTERS.items() if known == (one["role"], same)), None)
            found.append(letter or f"{one['role']}: {part}")
    return "".join(found) or "-"


def line(agent: AgentSpan) -> str:
    """One span as a line of the table."""
    counts = (
        agent.input_tokens,
        agent.output_tokens,
        agent.reasoning_tokens,
        agent.cache_read_input_tokens,
        agent.cache_creation_input_tokens,
    )
    models = f"{agent.provider_name or '-'} {agent.request_model or '-'} > {agent.response_model or '-'}"
    more = {
        "agent": agent.agent_name,
        "tool": agent.tool_name and f"{agent.tool_name} {agent.tool_call_arguments} > {agent.tool_call_result}",
        "thread": agent.conversation_id and ("session-1" if agent.conversation_id == "session-1" else "of its own"),
        "error": agent.status_code == "ERROR" and f"{agent.error_type}: {agent.status_message}",
    }
    columns = (
        agent.span_name,
        KINDS.get(agent.operation_name or "") or "-",
        models,
        " ".join("-" if one is None else str(one) for one in counts),
        f"{letters(agent.input_messages)} > {letters(agent.output_messages)}",
        ",".join(agent.finish_reasons) or "-",
        *(f"{name} {value}" for name, value in more.items() if value),
    )
    return " | ".join(columns)


def expected() -> dict[str, list[str]]:
    """The table by recording."""
    found: dict[str, list[str]] = {}
    name = ""
    for row in SEEN.strip().splitlines():
        if row.startswith("    "):
            found[name].append(row.strip())
        else:
            name = row.strip()
            found[name] = []
    return found


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_person_sees_of_every_recorded_span(name: str) -> None:
    assert [line(seen(span)) for span in recorded(name)] == expected()[name]


def test_every_line_of_the_table_has_its_recording() -> None:
    assert sorted(expected()) == RECORDINGS


def same(agent: AgentSpan) -> dict[str, Any]:
    """An agent span whose custom attributes are JSON values, however their texts are spelt."""
    return {**asdict(agent), "custom": {key: parse_json(value) for key, value in agent.custom_attrs_string.items()}} | {
        "custom_attrs_string": None
    }


@pytest.mark.parametrize("name", RECORDINGS)
def test_what_is_stored_gives_the_same_when_it_is_read(name: str) -> None:
    for span in recorded(name):
        tree, texts = expand(span.attributes)
        stored = jsontext.dumps(to_dump(span, tree, texts, orjson.Fragment("{}")))
        assert same(from_dump("project", orjson.loads(stored))) == same(seen(span))
