import asyncio
import os

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
from llama_index.observability.otel import LlamaIndexOpenTelemetry
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from weather import MISSING, MODEL, QUESTION, SYSTEM, finish, get_weather

LlamaIndexOpenTelemetry(
    span_exporter=OTLPSpanExporter(), service_name_or_resource="program", span_processor="simple"
).start_registering()


def asked(model: str) -> OpenAILike:
    address, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
    return OpenAILike(
        model=model,
        api_base=address,
        api_key=key,
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
    )


async def main() -> None:
    await FunctionAgent(tools=[get_weather], llm=asked(MODEL), system_prompt=SYSTEM, streaming=False).run(QUESTION)
    try:
        await asked(MISSING).achat([ChatMessage(QUESTION)])
    except Exception:
        finish()


asyncio.run(main())
