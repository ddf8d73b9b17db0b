from openinference.instrumentation import using_attributes
from openinference.instrumentation.pydantic_ai import OpenInferenceSpanProcessor
from pydantic_ai import Agent
from weather import MISSING, MODEL, QUESTION, SYSTEM, THREAD, USER, finish, get_weather, refused, tracing

provider = tracing(OpenInferenceSpanProcessor())
Agent.instrument_all()
with using_attributes(session_id=THREAD, user_id=USER):
    Agent(f"openai-chat:{MODEL}", name="forecaster", instructions=SYSTEM, tools=[get_weather]).run_sync(
        QUESTION, conversation_id=THREAD
    )
    refused(lambda: Agent(f"openai-chat:{MISSING}", name="lost").run_sync(QUESTION, conversation_id=THREAD))
finish(provider)
