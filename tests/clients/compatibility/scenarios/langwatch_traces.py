import os

import langwatch
from openai import OpenAI
from weather import THREAD, URL, USER, ask_openai, finish

langwatch.setup(api_key=os.environ["LANGSMITH_API_KEY"], endpoint_url=URL)
client = OpenAI(max_retries=0)


@langwatch.trace(name="forecast", metadata={"thread_id": THREAD, "user_id": USER})
def forecast() -> str:
    langwatch.get_current_trace().autotrack_openai_calls(client)
    return ask_openai(client)


forecast()
finish()
