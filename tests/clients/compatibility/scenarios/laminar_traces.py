import os
from urllib.parse import urlsplit

from lmnr import Laminar, observe
from openai import OpenAI
from weather import THREAD, URL, USER, ask_openai, fail_openai, finish

address = urlsplit(URL)
Laminar.initialize(
    project_api_key=os.environ["LANGSMITH_API_KEY"],
    base_url=f"http://{address.hostname}",
    http_port=address.port,
    force_http=True,
)
client = OpenAI(max_retries=0)


@observe(session_id=THREAD, user_id=USER)
def weather() -> str:
    return ask_openai(client)


@observe(session_id=THREAD, user_id=USER)
def lost() -> None:
    fail_openai(client)


weather()
lost()
Laminar.flush()
finish()
