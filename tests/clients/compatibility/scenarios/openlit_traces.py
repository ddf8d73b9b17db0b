import openlit
from openai import OpenAI
from opentelemetry import trace
from weather import ask_openai, fail_openai, finish

openlit.init(application_name="program", disable_metrics=True)
client = OpenAI(max_retries=0)
with trace.get_tracer("program").start_as_current_span("weather"):
    ask_openai(client)
fail_openai(client)
finish(trace.get_tracer_provider())
