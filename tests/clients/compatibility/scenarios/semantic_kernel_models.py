import asyncio

from pydantic import BaseModel
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.functions import KernelArguments, kernel_function
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, report, status_of, streamed


class Weather(BaseModel):
    city: str
    degrees: int


class Plugin:
    get_weather = staticmethod(kernel_function(get_weather))


def agent(model: str = SERVED, **options: object) -> ChatCompletionAgent:
    return ChatCompletionAgent(service=OpenAIChatCompletion(ai_model_id=model), name="forecaster", **options)


async def main() -> None:
    settings = OpenAIChatPromptExecutionSettings(response_format=Weather)
    typed = await agent(arguments=KernelArguments(settings=settings)).get_response(OBJECT)
    try:
        await agent(MISSING).get_response(QUESTION)
    except Exception as problem:
        error = status_of(problem)
    report(
        answer=str(await agent().get_response(QUESTION)),
        stream=streamed([str(piece) async for piece in agent().invoke_stream(QUESTION)]),
        tools={"answer": str(await agent(plugins=[Plugin()]).get_response(QUESTION)), "arguments": {"city": ASKED[0]}},
        structure=Weather.model_validate_json(str(typed)).model_dump(),
        error=error,
    )


asyncio.run(main())
