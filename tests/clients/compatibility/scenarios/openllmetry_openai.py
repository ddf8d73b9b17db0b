from openai import OpenAI
from opentelemetry.instrumentation.openai import OpenAIInstrumentor
from weather import ask_openai, fail_openai, finish, tracing

provider = tracing()
OpenAIInstrumentor().instrument(tracer_provider=provider)
client = OpenAI(max_retries=0)
with provider.get_tracer("program").start_as_current_span("weather"):
    ask_openai(client)
fail_openai(client)
finish(provider)
