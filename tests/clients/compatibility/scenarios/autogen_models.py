import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, report, status_of, streamed

ABOUT = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown", "structured_output": True}


class Weather(BaseModel):
    city: str
    degrees: int


def client(model: str) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(model=model, model_info=ABOUT, max_retries=0)


async def main() -> None:
    asked, model = [UserMessage(content=QUESTION, source="user")], client(SERVED)
    agent = AssistantAgent("forecaster", model, tools=[get_weather], reflect_on_tool_use=True)
    typed = await model.create([UserMessage(content=OBJECT, source="user")], json_output=Weather)
    try:
        await client(MISSING).create(asked)
    except Exception as problem:
        error = status_of(problem)
    report(
        answer=(await model.create(asked)).content,
        stream=streamed([piece async for piece in model.create_stream(asked) if isinstance(piece, str)]),
        tools={"answer": (await agent.run(task=QUESTION)).messages[-1].content, "arguments": {"city": ASKED[0]}},
        structure=Weather.model_validate_json(typed.content).model_dump(),
        error=error,
    )


asyncio.run(main())
