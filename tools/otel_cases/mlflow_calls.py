"""The `openai` package under MLflow tracing, exported over OTLP."""

import os

os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = os.environ["RECORDER"] + "/v1/traces"
os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"

import mlflow
import openai
from openai_client import PROMPT, WEATHER
from opentelemetry import trace

if __name__ == "__main__":
    mlflow.openai.autolog()
    with mlflow.start_span("forecaster", span_type="AGENT") as root:
        root.set_inputs({"question": "How warm is it in Paris?"})
        client = openai.OpenAI(api_key="none", max_retries=0)
        client.chat.completions.create(model="gpt-5-mini", messages=PROMPT, tools=[WEATHER], temperature=0.5)
        with mlflow.start_span("get_weather", span_type="TOOL") as tool:
            tool.set_inputs({"city": "Paris"})
            tool.set_outputs({"degrees": 18})
        root.set_outputs("It is 18 degrees in Paris.")
    mlflow.flush_trace_async_logging()
    provider = trace.get_tracer_provider()
    if hasattr(provider, "force_flush"):
        provider.force_flush()
