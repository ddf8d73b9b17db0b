import json
import os

from mistralai.client import Mistral
from pydantic import BaseModel
from weather import (
    ASKED,
    MISSING,
    OBJECT,
    QUESTION,
    SERVED,
    URL,
    WEATHER,
    get_weather,
    refused,
    report,
    status_of,
    streamed,
)


class Weather(BaseModel):
    city: str
    degrees: int


client = Mistral(api_key=os.environ["OPENAI_API_KEY"], server_url=URL)
asked = [{"role": "user", "content": QUESTION}]
first = client.chat.complete(model=SERVED, messages=asked, tools=[WEATHER]).choices[0].message
(call,) = first.tool_calls
result = {
    "role": "tool",
    "tool_call_id": call.id,
    "name": "get_weather",
    "content": get_weather(**json.loads(call.function.arguments)),
}
typed = client.chat.parse(model=SERVED, messages=[{"role": "user", "content": OBJECT}], response_format=Weather)
report(
    answer=lambda: client.chat.complete(model=SERVED, messages=asked).choices[0].message.content,
    stream=lambda: streamed(
        piece.data.choices[0].delta.content for piece in client.chat.stream(model=SERVED, messages=asked)
    ),
    tools=lambda: {
        "answer": client.chat.complete(model=SERVED, messages=[*asked, first, result], tools=[WEATHER])
        .choices[0]
        .message.content,
        "arguments": {"city": ASKED[0]},
    },
    structure=lambda: typed.choices[0].message.parsed.model_dump(),
    error=lambda: status_of(refused(lambda: client.chat.complete(model=MISSING, messages=asked))),
)
