from pydantic_ai import Agent
from weather import MISSING, MODEL, QUESTION, SYSTEM, THREAD, finish, get_weather, refused, tracing

provider = tracing()
Agent.instrument_all()
agent = Agent(f"openai-chat:{MODEL}", name="forecaster", instructions=SYSTEM, tools=[get_weather])
agent.run_sync(QUESTION, conversation_id=THREAD)
refused(lambda: Agent(f"openai-chat:{MISSING}", name="lost").run_sync(QUESTION, conversation_id=THREAD))
finish(provider)
