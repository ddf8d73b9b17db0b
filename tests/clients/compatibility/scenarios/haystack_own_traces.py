import os

os.environ["HAYSTACK_CONTENT_TRACING_ENABLED"] = "true"

from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.tracing import enable_tracing
from haystack_integrations.tracing.opentelemetry import OpenTelemetryTracer
from weather import MISSING, MODEL, QUESTION, SYSTEM, finish, get_weather, refused, tracing

provider = tracing()
enable_tracing(OpenTelemetryTracer(provider.get_tracer("program")))


def generator(model: str) -> OpenAIChatGenerator:
    return OpenAIChatGenerator(model=model, max_retries=0)


asked = {"messages": [ChatMessage.from_user(QUESTION)]}
tools = [create_tool_from_function(get_weather)]
pipeline, lost = Pipeline(), Pipeline()
pipeline.add_component("agent", Agent(chat_generator=generator(MODEL), tools=tools, system_prompt=SYSTEM))
lost.add_component("llm", generator(MISSING))
pipeline.run({"agent": asked})
refused(lambda: lost.run({"llm": asked}))
finish(provider)
