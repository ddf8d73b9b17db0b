"""The `openai` package under one of its instrumentations: `openai_client.py LIBRARY CASE`."""

import json
import sys
from typing import Any

import openai
from exporter import finish, tracing

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
PROMPT: list[Any] = [
    {"role": "system", "content": "Answer in one sentence."},
    {"role": "user", "content": "How warm is it in Paris?"},
]


def instrument(library: str, provider: Any) -> None:
    """Patch the client as the library's users do."""
    if library == "genai":
        from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

        OpenAIInstrumentor().instrument(tracer_provider=provider)
    elif library == "genai-v2":
        from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor as GenAIV2

        GenAIV2().instrument(tracer_provider=provider)
    elif library == "openinference":
        from openinference.instrumentation.openai import OpenAIInstrumentor as OpenInference

        OpenInference().instrument(tracer_provider=provider)
    else:
        from opentelemetry.instrumentation.openai import OpenAIInstrumentor as OpenLLMetry

        OpenLLMetry().instrument(tracer_provider=provider)


def tools(client: openai.OpenAI) -> None:
    """A question, the model's call of a tool, its result, the answer."""
    first = client.chat.completions.create(
        model="gpt-5-mini", messages=PROMPT, tools=[WEATHER], temperature=0.5, max_completion_tokens=200, seed=7
    )
    call = first.choices[0].message.tool_calls[0]
    turns = [
        *PROMPT,
        first.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"degrees": 18})},
    ]
    client.chat.completions.create(model="gpt-5-mini", messages=turns, tools=[WEATHER], stop=["END"])


def stream(client: openai.OpenAI) -> None:
    """A streamed answer."""
    chunks = client.chat.completions.create(
        model="gpt-5-mini", messages=PROMPT, stream=True, stream_options={"include_usage": True}
    )
    for _ in chunks:
        pass


def error(client: openai.OpenAI) -> None:
    """A model that the provider does not have."""
    try:
        client.chat.completions.create(model="model-missing", messages=PROMPT)
    except openai.NotFoundError:
        return
    raise SystemExit("the provider should have refused")


def responses(client: openai.OpenAI) -> None:
    """The Responses API, with a reasoning summary."""
    tool = {"type": "function", **WEATHER["function"]}
    client.responses.create(
        model="gpt-5-mini", instructions="Answer in one sentence.", input="How warm is it in Paris?", tools=[tool]
    )
    client.responses.create(
        model="gpt-5-mini",
        input=[
            {"role": "user", "content": "How warm is it in Paris?"},
            {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Paris"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": '{"degrees": 18}'},
        ],
        tools=[tool],
    )


def embeddings(client: openai.OpenAI) -> None:
    """One text as a vector."""
    client.embeddings.create(model="text-embedding-3-small", input="the weather in Paris")


if __name__ == "__main__":
    provider = tracing()
    instrument(sys.argv[1], provider)
    globals()[sys.argv[2]](openai.OpenAI(api_key="none", max_retries=0))
    finish(provider)
