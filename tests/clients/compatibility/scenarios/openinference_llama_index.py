import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI
from openinference.instrumentation import using_attributes
from openinference.instrumentation.llama_index import LlamaIndexInstrumentor
from weather import MODEL, QUESTION, SYSTEM, THREAD, USER, finish, get_weather, tracing

provider = tracing()
LlamaIndexInstrumentor().instrument(tracer_provider=provider)


async def ask() -> None:
    llm = OpenAI(model=MODEL, max_retries=0)
    await FunctionAgent(tools=[get_weather], llm=llm, system_prompt=SYSTEM, streaming=False).run(QUESTION)


with using_attributes(session_id=THREAD, user_id=USER):
    asyncio.run(ask())
finish(provider)
