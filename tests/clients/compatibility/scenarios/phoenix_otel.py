import os

from openai import OpenAI
from openinference.instrumentation import using_attributes
from phoenix.otel import register
from weather import PROJECT, THREAD, URL, USER, ask_openai, fail_openai, finish

os.environ.pop("OTEL_EXPORTER_OTLP_HEADERS")
provider = register(
    endpoint=f"{URL}/v1/traces",
    headers={"project_id": PROJECT},
    protocol="http/protobuf",
    auto_instrument=True,
    batch=True,
    verbose=False,
)
client = OpenAI(max_retries=0)
with using_attributes(session_id=THREAD, user_id=USER):
    with provider.get_tracer("program").start_as_current_span("weather"):
        ask_openai(client)
    fail_openai(client)
finish(provider)
