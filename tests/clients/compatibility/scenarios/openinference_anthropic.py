import os

os.environ["ANTHROPIC_OPEN_TELEMETRY"] = "false"  # its own spans of the same requests
from anthropic import Anthropic
from openinference.instrumentation import using_attributes
from openinference.instrumentation.anthropic import AnthropicInstrumentor
from weather import THREAD, USER, ask_anthropic, fail_anthropic, finish, tracing

provider = tracing()
AnthropicInstrumentor().instrument(tracer_provider=provider)
client = Anthropic(max_retries=0)
with using_attributes(session_id=THREAD, user_id=USER):
    with provider.get_tracer("program").start_as_current_span("weather"):
        ask_anthropic(client)
    fail_anthropic(client)
finish(provider)
