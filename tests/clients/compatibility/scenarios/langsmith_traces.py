import os

os.environ |= {"LANGSMITH_TRACING": "true", "LANGSMITH_OTEL_ENABLED": "true", "LANGSMITH_OTEL_ONLY": "true"}
from langsmith import Client, traceable, tracing_context
from langsmith.wrappers import wrap_openai
from openai import OpenAI
from weather import THREAD, USER, ask_openai, finish

client = wrap_openai(OpenAI(max_retries=0))
about = {"session_id": THREAD, "user_id": USER}
with tracing_context(metadata=about):
    traceable(name="weather")(lambda: ask_openai(client))()
Client().flush()
finish()
