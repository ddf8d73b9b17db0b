import json

from openai import OpenAI
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, WEATHER, get_weather, refused, report, status_of, streamed


class Weather(BaseModel):
    city: str
    degrees: int


client = OpenAI(max_retries=0)
chat, asked = client.chat.completions, [{"role": "user", "content": QUESTION}]


def ask(messages: list, **options: object) -> object:
    return chat.create(model=SERVED, messages=messages, **options).choices[0].message


def use_tool() -> str:
    called = ask(asked, tools=[WEATHER])
    (call,) = called.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": get_weather(**json.loads(call.function.arguments))}
    return ask([*asked, called, result], tools=[WEATHER]).content


def parse() -> Weather:
    wanted = [{"role": "user", "content": OBJECT}]
    return chat.parse(model=SERVED, messages=wanted, response_format=Weather).choices[0].message.parsed


report(
    answer=lambda: ask(asked).content,
    stream=lambda: streamed(
        piece.choices[0].delta.content for piece in chat.create(model=SERVED, messages=asked, stream=True)
    ),
    tools=lambda: {"answer": use_tool(), "arguments": {"city": ASKED[0]}},
    structure=lambda: parse().model_dump(),
    responses=lambda: client.responses.create(model=SERVED, input=QUESTION).output_text,
    completion=lambda: client.completions.create(model=SERVED, prompt=QUESTION).choices[0].text,
    embedding=lambda: len(client.embeddings.create(model=SERVED, input=[QUESTION]).data),
    error=lambda: status_of(refused(lambda: chat.create(model=MISSING, messages=asked))),
)
