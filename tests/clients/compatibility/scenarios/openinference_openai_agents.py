from agents import Agent, Runner, function_tool
from openinference.instrumentation import using_attributes
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor
from weather import MISSING, MODEL, QUESTION, SYSTEM, THREAD, USER, finish, get_weather, refused, tracing

provider = tracing()
OpenAIAgentsInstrumentor().instrument(tracer_provider=provider)
with using_attributes(session_id=THREAD, user_id=USER):
    agent = Agent(name="forecaster", instructions=SYSTEM, tools=[function_tool(get_weather)], model=MODEL)
    Runner.run_sync(agent, QUESTION)
    refused(lambda: Runner.run_sync(Agent(name="lost", model=MISSING), QUESTION))
finish(provider)
