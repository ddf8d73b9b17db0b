from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, refused, report, status_of, streamed


class Weather(BaseModel):
    city: str
    degrees: int


model = ChatOpenAI(model=SERVED, max_retries=0)
report(
    answer=lambda: model.invoke(QUESTION).text,
    stream=lambda: streamed(piece.text for piece in model.stream(QUESTION)),
    tools=lambda: {
        "answer": create_agent(model, [get_weather]).invoke({"messages": [("user", QUESTION)]})["messages"][-1].text,
        "arguments": {"city": ASKED[0]},
    },
    structure=lambda: model.with_structured_output(Weather).invoke(OBJECT).model_dump(),
    responses=lambda: ChatOpenAI(model=SERVED, max_retries=0, use_responses_api=True).invoke(QUESTION).text,
    error=lambda: status_of(refused(lambda: ChatOpenAI(model=MISSING, max_retries=0).invoke(QUESTION))),
)
