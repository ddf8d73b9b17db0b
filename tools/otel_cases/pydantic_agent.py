"""A pydantic-ai agent with a tool under Logfire: `pydantic_agent.py VERSION MODEL` (version of the format)."""

import os
import sys

import logfire
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pydantic_ai import Agent

agent = Agent(sys.argv[2], name="forecaster", instructions="Answer in one sentence.")


@agent.tool_plain
def get_weather(city: str) -> dict[str, int]:
    """The weather of a city."""
    return {"degrees": 18 if city == "Paris" else 20}


if __name__ == "__main__":
    exporter = BatchSpanProcessor(OTLPSpanExporter(os.environ["RECORDER"] + "/v1/traces"))
    logfire.configure(
        send_to_logfire=False, console=False, service_name="recorded", additional_span_processors=[exporter]
    )
    logfire.instrument_pydantic_ai(agent, version=int(sys.argv[1]))
    with logfire.span("answer {question}", question="How warm is it in Paris?"):
        agent.run_sync("How warm is it in Paris?")
    logfire.shutdown()
