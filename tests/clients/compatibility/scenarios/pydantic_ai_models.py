from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, refused, report, status_of, streamed


class Weather(BaseModel):
    city: str
    degrees: int


model = f"openai-chat:{SERVED}"
plain = Agent(model)
with_tool = Agent(model, tools=[get_weather])
report(
    answer=lambda: plain.run_sync(QUESTION).output,
    stream=lambda: streamed(plain.run_stream_sync(QUESTION).stream_text(delta=True, debounce_by=None)),
    tools=lambda: {"answer": with_tool.run_sync(QUESTION).output, "arguments": {"city": ASKED[0]}},
    structure=lambda: Agent(model, output_type=NativeOutput(Weather)).run_sync(OBJECT).output.model_dump(),
    by_tool=lambda: Agent(model, output_type=Weather).run_sync(OBJECT).output.model_dump(),
    responses=lambda: Agent(f"openai-responses:{SERVED}").run_sync(QUESTION).output,
    error=lambda: status_of(refused(lambda: Agent(f"openai-chat:{MISSING}").run_sync(QUESTION))),
)
