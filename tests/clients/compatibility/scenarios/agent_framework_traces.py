import asyncio

from agent_framework import Agent
from agent_framework.observability import enable_instrumentation
from agent_framework.openai import OpenAIChatClient
from weather import MISSING, MODEL, QUESTION, SYSTEM, finish, get_weather, tracing

provider = tracing()
enable_instrumentation(enable_sensitive_data=True)


async def ask() -> None:
    await Agent(OpenAIChatClient(MODEL), instructions=SYSTEM, name="forecaster", tools=[get_weather]).run(QUESTION)
    try:
        await Agent(OpenAIChatClient(MISSING), name="lost").run(QUESTION)
    except Exception:
        return
    raise SystemExit("the provider should have refused")


asyncio.run(ask())
finish(provider)
