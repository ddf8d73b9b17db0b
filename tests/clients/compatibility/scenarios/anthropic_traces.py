import os

os.environ["ANTHROPIC_OPEN_TELEMETRY_TRACES_CONTENT_MODE"] = "content"
from anthropic import Anthropic
from weather import ask_anthropic, fail_anthropic, finish, tracing

provider = tracing()
client = Anthropic(max_retries=0)
with provider.get_tracer("program").start_as_current_span("weather"):
    ask_anthropic(client)
fail_anthropic(client)
finish(provider)
