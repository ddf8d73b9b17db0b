"""Shared by the scenarios: the questions, the tool, and the ends of a program. Needs nothing but Python itself."""

import json
import os
from typing import Any

MODEL = "gpt-5-mini"
CLAUDE = "claude-sonnet-4-5"
MISSING = "model-missing"
SERVED = "heddle-tiny"
SYSTEM = "Answer in one sentence."
QUESTION = "How warm is it in Paris?"
OBJECT = "Paris and its temperature as an object."
THREAD, USER = "thread-1", "user-1"
URL = os.environ.get("HEDDLE_URL", "")
PROJECT = os.environ.get("SCENARIO_PROJECT", "")
ASKED: list[str] = []
"""The cities that the tool was asked for."""
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: The name of the city.
    """
    ASKED.append(city)
    return "18 degrees"


def tracing(*processors: Any) -> Any:
    """A tracer provider that exports to the address in the environment."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    for processor in (*processors, BatchSpanProcessor(OTLPSpanExporter())):
        provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    return provider


def logging() -> Any:
    """A logger provider that exports to the address in the environment."""
    from opentelemetry._logs import set_logger_provider
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

    provider = LoggerProvider()
    provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    set_logger_provider(provider)
    return provider


def ask_openai(client: Any) -> str:
    """The question, the tool, the answer, with the `openai` package alone."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    first = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER]).choices[0].message
    call = first.tool_calls[0]
    result = get_weather(**json.loads(call.function.arguments))
    messages += [first.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": result}]
    return client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER]).choices[0].message.content


def fail_openai(client: Any) -> None:
    """Ask a model that does not exist."""
    refused(lambda: client.chat.completions.create(model=MISSING, messages=[{"role": "user", "content": QUESTION}]))


def ask_litellm(completion: Any, model: str, **options: Any) -> str:
    """The same with LiteLLM."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    first = completion(model=model, messages=messages, tools=[WEATHER], **options).choices[0].message
    call = first.tool_calls[0]
    result = get_weather(**json.loads(call.function.arguments))
    messages += [first.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": result}]
    return completion(model=model, messages=messages, tools=[WEATHER], **options).choices[0].message.content


def ask_anthropic(client: Any, model: str = CLAUDE) -> str:
    """The same with the `anthropic` package."""
    function = WEATHER["function"]
    tool = {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    about = {"model": model, "max_tokens": 1000, "system": SYSTEM, "tools": [tool], "messages": messages}
    first = client.messages.create(**about)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    answered = {"type": "tool_result", "tool_use_id": call.id, "content": get_weather(**call.input)}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [answered]}]
    return "".join(block.text for block in client.messages.create(**about).content if block.type == "text")


def fail_anthropic(client: Any) -> None:
    """Ask a model that does not exist."""
    asked = [{"role": "user", "content": QUESTION}]
    refused(lambda: client.messages.create(model=MISSING, max_tokens=1000, messages=asked))


def refused(ask: Any) -> Any:
    """The error of a request that must fail."""
    try:
        ask()
    except Exception as error:
        return error
    raise SystemExit("the provider should have refused")


def status_of(error: Any) -> int | None:
    """The status that an error tells, itself or the one that caused it."""
    while error is not None:
        for holder in (error, getattr(error, "response", None)):
            for name in ("status_code", "status", "code"):
                if isinstance(found := getattr(holder, name, None), int):
                    return found
        error = error.__cause__ or error.__context__
    return None


def streamed(pieces: Any) -> dict[str, Any]:
    """The text of a stream, and whether it came in pieces."""
    texts = [piece for piece in pieces if piece]
    return {"text": "".join(texts), "in_pieces": len(texts) > 1}


def report(**values: Any) -> None:
    """Hand what the client saw to the test; where a value is made by a function that fails, it is the failure."""
    print("RESULT " + json.dumps({name: _value(made) for name, made in values.items()}, default=str), flush=True)


def _value(made: Any) -> Any:
    try:
        return made() if callable(made) else made
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def finish(*providers: Any) -> None:
    """Send what is held, and report nothing."""
    for provider in providers:
        provider.force_flush()
        provider.shutdown()
    report()
