"""The `anthropic` package under OpenInference or OpenLLMetry: `anthropic_client.py LIBRARY`."""

import sys
from typing import Any

import anthropic
from exporter import finish, tracing

WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def instrument(library: str, provider: Any) -> None:
    """Patch the client as the library's users do."""
    if library == "openinference":
        from openinference.instrumentation.anthropic import AnthropicInstrumentor

        AnthropicInstrumentor().instrument(tracer_provider=provider)
    else:
        from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor as OpenLLMetry

        OpenLLMetry().instrument(tracer_provider=provider)


def tools(client: anthropic.Anthropic) -> None:
    """A question, the model's call of a tool, its result, the answer."""
    turns: list[Any] = [{"role": "user", "content": "How warm is it in Paris?"}]
    settings: Any = {
        "model": "claude-sonnet-4-5",
        "max_tokens": 2000,
        "system": "Answer in one sentence.",
        "tools": [WEATHER],
    }
    first = client.messages.create(messages=turns, **settings)
    turns.append({"role": "assistant", "content": [block.model_dump() for block in first.content]})
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": '{"degrees": 18}'}
    turns.append({"role": "user", "content": [result]})
    client.messages.create(messages=turns, **settings)


if __name__ == "__main__":
    provider = tracing()
    instrument(sys.argv[1], provider)
    tools(anthropic.Anthropic(api_key="none", max_retries=0))
    finish(provider)
