import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, report, status_of, streamed


class Weather(BaseModel):
    city: str
    degrees: int


async def main() -> None:
    client = OpenAIChatCompletionClient(SERVED)
    typed = await Agent(client).run(OBJECT, options={"response_format": Weather})
    try:
        await Agent(OpenAIChatCompletionClient(MISSING)).run(QUESTION)
    except Exception as problem:
        error = status_of(problem)
    report(
        answer=(await Agent(client).run(QUESTION)).text,
        stream=streamed([piece.text async for piece in Agent(client).run(QUESTION, stream=True)]),
        tools={
            "answer": (await Agent(client, tools=[get_weather]).run(QUESTION)).text,
            "arguments": {"city": ASKED[0]},
        },
        structure=typed.value.model_dump(),
        responses=(await Agent(OpenAIChatClient(SERVED)).run(QUESTION)).text,
        error=error,
    )


asyncio.run(main())
