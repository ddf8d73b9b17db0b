from openai import OpenAI
from openinference.instrumentation import using_attributes
from openinference.instrumentation.openai import OpenAIInstrumentor
from weather import THREAD, USER, ask_openai, fail_openai, finish, tracing

provider = tracing()
OpenAIInstrumentor().instrument(tracer_provider=provider)
client = OpenAI(max_retries=0)
with using_attributes(session_id=THREAD, user_id=USER):
    with provider.get_tracer("program").start_as_current_span("weather"):
        ask_openai(client)
    fail_openai(client)
finish(provider)
