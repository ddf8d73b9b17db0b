"""The instrumented program: an agent that knows OpenTelemetry only, exporting spans to heddle as to any collector."""

import json
import sys
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import Span, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

MODEL = "gpt-4o-mini"
_SYSTEM = "openai"


def _message(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def _span(tracer: Tracer, operation: str, name: str, **attributes: Any) -> AbstractContextManager[Span]:
    named = {f"gen_ai.{key.replace('__', '.')}": value for key, value in attributes.items()}
    found = {"gen_ai.operation.name": operation, **named}
    return tracer.start_as_current_span(f"{operation} {name}", attributes=found)  # type: ignore[return-value]


def main(address: str, project: str, thread: str) -> None:
    """One turn of an agent: it asks a model, uses a tool, asks again, and answers."""
    provider = TracerProvider()
    exporter = OTLPSpanExporter(f"{address}/otel/v1/traces", headers={"project_id": project})
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracer = provider.get_tracer("heddle.demo")
    model = {"provider__name": _SYSTEM, "request__model": MODEL, "response__model": MODEL}
    spanning = partial(_span, tracer, conversation__id=thread)
    question, answer = "Where is order 1001?", "Order 1001 arrives tomorrow."
    with spanning("invoke_agent", "shop", agent__name="shop", input__messages=_message("user", question)) as agent:
        with spanning("chat", MODEL, **model, input__messages=_message("user", question)) as chat:
            chat.set_attributes({"gen_ai.usage.input_tokens": 180, "gen_ai.usage.output_tokens": 20})
            chat.set_attribute("gen_ai.usage.cache_read.input_tokens", 128)
        with spanning("execute_tool", "find_order", tool__name="find_order") as tool:
            tool.set_attribute("gen_ai.tool.call.arguments", '{"number": 1001}')
            tool.set_attribute("gen_ai.tool.call.result", '{"arrives": "tomorrow"}')
        with spanning("chat", MODEL, **model, input__messages=_message("tool", "tomorrow")) as chat:
            chat.set_attributes({"gen_ai.usage.input_tokens": 210, "gen_ai.usage.output_tokens": 12})
            chat.set_attribute("gen_ai.output.messages", _message("assistant", answer))
        agent.set_attribute("gen_ai.output.messages", _message("assistant", answer))
    provider.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
