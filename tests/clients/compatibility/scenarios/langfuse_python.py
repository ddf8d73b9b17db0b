from langfuse import get_client, observe, propagate_attributes
from langfuse.openai import OpenAI
from weather import THREAD, USER, ask_openai, fail_openai, finish

client = OpenAI(max_retries=0)
with propagate_attributes(session_id=THREAD, user_id=USER):
    observe(name="weather", capture_input=False, capture_output=False)(lambda: ask_openai(client))()
    fail_openai(client)
get_client().flush()
finish()
