from pydantic import BaseModel
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, refused, report, status_of


class Weather(BaseModel):
    city: str
    degrees: int


def agent(model: str = SERVED, **options: object) -> Agent:
    return Agent(OpenAIModel(model_id=model), callback_handler=None, **options)


report(
    answer=lambda: str(agent()(QUESTION)).strip(),
    tools=lambda: {"answer": str(agent(tools=[tool(get_weather)])(QUESTION)).strip(), "arguments": {"city": ASKED[0]}},
    by_tool=lambda: agent()(OBJECT, structured_output_model=Weather).structured_output.model_dump(),
    error=lambda: status_of(refused(lambda: agent(MISSING)(QUESTION))),
)
