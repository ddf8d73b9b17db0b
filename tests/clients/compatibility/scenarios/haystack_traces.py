from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from openinference.instrumentation import using_attributes
from openinference.instrumentation.haystack import HaystackInstrumentor
from weather import MISSING, MODEL, QUESTION, SYSTEM, THREAD, USER, finish, get_weather, refused, tracing

provider = tracing()
HaystackInstrumentor().instrument(tracer_provider=provider)
asked = [ChatMessage.from_user(QUESTION)]
with using_attributes(session_id=THREAD, user_id=USER):
    tools = [create_tool_from_function(get_weather)]
    Agent(chat_generator=OpenAIChatGenerator(model=MODEL), tools=tools, system_prompt=SYSTEM).run(messages=asked)
    refused(lambda: OpenAIChatGenerator(model=MISSING, max_retries=0).run(asked))
finish(provider)
