import asyncio

from google.adk.agents import Agent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from weather import MODEL, QUESTION, SYSTEM, THREAD, USER, finish, get_weather, tracing

provider = tracing()


async def ask(name: str, model: str) -> None:
    agent = Agent(name=name, model=LiteLlm(f"openai/{model}"), instruction=SYSTEM, tools=[get_weather])
    runner = InMemoryRunner(agent, app_name="program")
    await runner.session_service.create_session(app_name="program", user_id=USER, session_id=THREAD)
    said = types.Content(role="user", parts=[types.Part(text=QUESTION)])
    async for _ in runner.run_async(user_id=USER, session_id=THREAD, new_message=said):
        pass


asyncio.run(ask("forecaster", MODEL))
finish(provider)
