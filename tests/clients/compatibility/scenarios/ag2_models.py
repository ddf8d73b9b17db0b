import asyncio
import os

from ag2 import Agent, AgentReply
from ag2.config import OpenAIConfig
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, report, status_of


class Weather(BaseModel):
    city: str
    degrees: int


async def ask(question: str = QUESTION, model: str = SERVED, **options: object) -> AgentReply:
    config = OpenAIConfig(model, base_url=os.environ["OPENAI_BASE_URL"], max_retries=0)
    return await Agent("forecaster", config=config, **options).ask(question)


async def main() -> None:
    answer = (await ask()).body
    used = (await ask(tools=[get_weather])).body
    typed = await (await ask(OBJECT, response_schema=Weather)).content()
    try:
        await ask(model=MISSING)
    except Exception as problem:
        error = status_of(problem)
    report(
        answer=answer,
        tools={"answer": used, "arguments": {"city": ASKED[0]}},
        structure=typed.model_dump(),
        error=error,
    )


asyncio.run(main())
