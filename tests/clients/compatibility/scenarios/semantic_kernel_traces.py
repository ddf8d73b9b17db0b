import asyncio
import os

os.environ["SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS_SENSITIVE"] = "true"
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function
from weather import MISSING, MODEL, QUESTION, SYSTEM, finish, get_weather, logging, tracing

provider, logs = tracing(), logging()


class Weather:
    get_weather = staticmethod(kernel_function(get_weather))


async def ask() -> None:
    service = OpenAIChatCompletion(ai_model_id=MODEL)
    agent = ChatCompletionAgent(service=service, name="forecaster", instructions=SYSTEM, plugins=[Weather()])
    await agent.get_response(QUESTION)
    try:
        await ChatCompletionAgent(service=OpenAIChatCompletion(ai_model_id=MISSING), name="lost").get_response(QUESTION)
    except Exception:
        return
    raise SystemExit("the provider should have refused")


asyncio.run(ask())
finish(provider, logs)
