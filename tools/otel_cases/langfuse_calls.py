"""Spans of the langfuse SDK, which writes attributes of its own."""

import os

from langfuse import Langfuse, propagate_attributes
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

if __name__ == "__main__":
    client = Langfuse(
        public_key="pk-recorded",
        secret_key="sk-recorded",
        base_url=os.environ["RECORDER"],
        span_exporter=OTLPSpanExporter(os.environ["RECORDER"] + "/v1/traces"),
    )
    question = [{"role": "user", "content": "How warm is it in Paris?"}]
    with (
        client.start_as_current_observation(name="answer", as_type="agent", input={"question": "Paris"}) as root,
        propagate_attributes(session_id="session-1", user_id="user-1"),
    ):
        with client.start_as_current_observation(
            name="ask", as_type="generation", model="gpt-5-mini", input=question, model_parameters={"temperature": 0.5}
        ) as generation:
            generation.update(
                output={"role": "assistant", "content": "It is 18 degrees in Paris."},
                usage_details={"input": 56, "output": 30, "input_cached_tokens": 64, "total": 150},
            )
        with client.start_as_current_observation(name="get_weather", as_type="tool", input={"city": "Paris"}) as tool:
            tool.update(output={"degrees": 18})
        root.update(output="It is 18 degrees in Paris.")
    client.shutdown()
