import os

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, refused, report, status_of


class Weather(BaseModel):
    city: str
    degrees: int


def llm(model: str = SERVED) -> LLM:
    return LLM(model, provider="openai", base_url=os.environ["OPENAI_BASE_URL"])


def crew() -> Crew:
    agent = Agent(role="forecaster", goal="Tell the weather.", backstory="None.", llm=llm())
    task = Task(description=QUESTION, expected_output="One sentence.", agent=agent, tools=[tool(get_weather)])
    return Crew(agents=[agent], tasks=[task])


report(
    answer=lambda: llm().call(QUESTION),
    tools=lambda: {"answer": crew().kickoff().raw, "arguments": {"city": ASKED[0]}},
    structure=lambda: llm().call(OBJECT, response_model=Weather).model_dump(),
    error=lambda: status_of(refused(lambda: llm(MISSING).call(QUESTION))),
)
