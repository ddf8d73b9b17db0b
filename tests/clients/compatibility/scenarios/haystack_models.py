import json

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, refused, report, status_of, streamed


class Weather(BaseModel):
    city: str
    degrees: int


asked, pieces = [ChatMessage.from_user(QUESTION)], []
model = OpenAIChatGenerator(model=SERVED, max_retries=0)
agent = Agent(chat_generator=model, tools=[create_tool_from_function(get_weather)])
model.run(asked, streaming_callback=lambda piece: pieces.append(piece.content))
typed = OpenAIChatGenerator(model=SERVED, generation_kwargs={"response_format": Weather})
report(
    answer=lambda: model.run(asked)["replies"][0].text,
    stream=lambda: streamed(pieces),
    tools=lambda: {"answer": agent.run(messages=asked)["messages"][-1].text, "arguments": {"city": ASKED[0]}},
    structure=lambda: json.loads(typed.run([ChatMessage.from_user(OBJECT)])["replies"][0].text),
    error=lambda: status_of(refused(lambda: OpenAIChatGenerator(model=MISSING, max_retries=0).run(asked))),
)
