import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, refused, report, status_of


class Weather(BaseModel):
    city: str
    degrees: int


async def stream() -> list[str]:
    async with Agent(OpenAIResponsesModel(SERVED)).run_stream(QUESTION) as result:
        return [piece async for piece in result.stream_text(delta=True, debounce_by=None)]


answer = Agent(OpenAIResponsesModel(SERVED)).run_sync(QUESTION).output
pieces = asyncio.run(stream())
final = Agent(OpenAIResponsesModel(SERVED), tools=[get_weather]).run_sync(QUESTION).output
structure = Agent(OpenAIResponsesModel(SERVED), output_type=Weather).run_sync(OBJECT).output
report(
    answer=answer,
    stream={"text": "".join(pieces), "in_pieces": len(pieces) > 1},
    tools={"arguments": {"city": ASKED[0]}, "answer": final},
    structure=structure.model_dump(),
    error=status_of(refused(lambda: Agent(OpenAIResponsesModel(MISSING)).run_sync(QUESTION))),
)
