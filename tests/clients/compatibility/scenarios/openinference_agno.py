from agno.agent import Agent
from agno.models.openai import OpenAIChat
from openinference.instrumentation.agno import AgnoInstrumentor
from weather import MISSING, MODEL, QUESTION, SYSTEM, THREAD, USER, finish, get_weather, tracing

provider = tracing()
AgnoInstrumentor().instrument(tracer_provider=provider)
agent = Agent(name="forecaster", model=OpenAIChat(id=MODEL), instructions=SYSTEM, tools=[get_weather])
agent.run(QUESTION, session_id=THREAD, user_id=USER)
Agent(name="lost", model=OpenAIChat(id=MISSING)).run(QUESTION, session_id=THREAD, user_id=USER)
finish(provider)
