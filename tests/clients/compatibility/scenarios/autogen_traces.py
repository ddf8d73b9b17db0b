import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from openai import NotFoundError
from openinference.instrumentation import using_attributes
from openinference.instrumentation.openai import OpenAIInstrumentor
from weather import MISSING, MODEL, QUESTION, SYSTEM, THREAD, USER, finish, get_weather, tracing

provider = tracing()
OpenAIInstrumentor().instrument(tracer_provider=provider)
ABOUT = {"vision": False, "function_calling": True, "json_output": True, "family": "gpt-5", "structured_output": True}


def agent(name: str, model: str) -> AssistantAgent:
    client = OpenAIChatCompletionClient(model=model, model_info=ABOUT, max_retries=0)
    return AssistantAgent(name, client, tools=[get_weather], system_message=SYSTEM, reflect_on_tool_use=True)


async def ask() -> None:
    await agent("forecaster", MODEL).run(task=QUESTION)
    try:
        await agent("lost", MISSING).run(task=QUESTION)
    except NotFoundError:
        return
    raise SystemExit("the provider should have refused")


with using_attributes(session_id=THREAD, user_id=USER):
    asyncio.run(ask())
finish(provider)
