from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from openinference.instrumentation import using_attributes
from openinference.instrumentation.crewai import CrewAIInstrumentor
from weather import MISSING, MODEL, QUESTION, THREAD, USER, finish, get_weather, refused, tracing

provider = tracing()
CrewAIInstrumentor().instrument(tracer_provider=provider)


def crew(model: str) -> Crew:
    agent = Agent(role="forecaster", goal="Tell the weather.", backstory="None.", llm=LLM(model, provider="openai"))
    task = Task(description=QUESTION, expected_output="One sentence.", agent=agent, tools=[tool(get_weather)])
    return Crew(agents=[agent], tasks=[task])


with using_attributes(session_id=THREAD, user_id=USER):
    crew(MODEL).kickoff()
    refused(crew(MISSING).kickoff)
finish(provider)
