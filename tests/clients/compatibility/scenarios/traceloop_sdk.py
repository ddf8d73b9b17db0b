import os

from weather import THREAD, USER, ask_openai, fail_openai, finish

os.environ["TRACELOOP_BASE_URL"] = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
os.environ["TRACELOOP_HEADERS"] = os.environ["OTEL_EXPORTER_OTLP_HEADERS"]
os.environ["TRACELOOP_TELEMETRY"] = "false"

from openai import OpenAI
from opentelemetry import metrics, trace
from traceloop.sdk import Traceloop

Traceloop.init(app_name="program", disable_batch=False)
Traceloop.set_association_properties({"session_id": THREAD, "user_id": USER})
client = OpenAI(max_retries=0)
with trace.get_tracer("program").start_as_current_span("weather"):
    ask_openai(client)
fail_openai(client)
metrics.get_meter_provider().force_flush()
finish(trace.get_tracer_provider())
