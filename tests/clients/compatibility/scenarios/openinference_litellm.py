import litellm
from openinference.instrumentation import using_attributes
from openinference.instrumentation.litellm import LiteLLMInstrumentor
from weather import MISSING, MODEL, QUESTION, THREAD, USER, ask_litellm, finish, refused, tracing

provider = tracing()
LiteLLMInstrumentor().instrument(tracer_provider=provider)
with using_attributes(session_id=THREAD, user_id=USER):
    with provider.get_tracer("program").start_as_current_span("weather"):
        ask_litellm(litellm.completion, f"openai/{MODEL}")
    asked = [{"role": "user", "content": QUESTION}]
    refused(lambda: litellm.completion(model=f"openai/{MISSING}", messages=asked, num_retries=0))
finish(provider)
