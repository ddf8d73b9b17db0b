import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, refused, report, status_of, streamed


class Weather(BaseModel):
    city: str
    degrees: int


def model(name: str, **options: object) -> OpenAILike:
    return OpenAILike(model=name, max_retries=0, reuse_client=False, **options)


async def agent() -> str:
    asked = FunctionAgent(tools=[get_weather], llm=model(SERVED, is_chat_model=True, is_function_calling_model=True))
    return str(await asked.run(QUESTION))


chat = model(SERVED, is_chat_model=True, should_use_structured_outputs=True)
report(
    answer=lambda: chat.complete(QUESTION).text,
    stream=lambda: streamed(piece.delta for piece in chat.stream_complete(QUESTION)),
    tools=lambda: {"answer": asyncio.run(agent()), "arguments": {"city": ASKED[0]}},
    structure=lambda: chat.structured_predict(Weather, PromptTemplate(OBJECT)).model_dump(),
    completion=lambda: model(SERVED).complete(QUESTION).text,
    error=lambda: status_of(refused(lambda: model(MISSING, is_chat_model=True).complete(QUESTION))),
)
