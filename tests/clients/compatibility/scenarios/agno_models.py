import os

from agno.agent import Agent
from agno.models.openai import OpenAILike
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, report, streamed


class Weather(BaseModel):
    city: str
    degrees: int


def agent(model: str = SERVED, **options: object) -> Agent:
    return Agent(model=OpenAILike(id=model, base_url=os.environ["OPENAI_BASE_URL"]), **options)


pieces = [event.content for event in agent().run(QUESTION, stream=True) if event.event == "RunContent"]
report(
    answer=lambda: agent().run(QUESTION).content,
    stream=lambda: streamed(pieces),
    tools=lambda: {"answer": agent(tools=[get_weather]).run(QUESTION).content, "arguments": {"city": ASKED[0]}},
    structure=lambda: agent(output_schema=Weather).run(OBJECT).content.model_dump(),
    error=lambda: str(agent(MISSING).run(QUESTION).status),
)
