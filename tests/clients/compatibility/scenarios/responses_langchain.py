from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, get_weather, refused, report, status_of


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


model = ChatOpenAI(model=SERVED, max_retries=0, use_responses_api=True)
answer = model.invoke(QUESTION)
pieces = [chunk.text for chunk in model.stream(QUESTION)]

with_tools = model.bind_tools([tool(get_weather)])
messages = [HumanMessage(QUESTION)]
messages.append(with_tools.invoke(messages))
call = messages[-1].tool_calls[0]
messages.append(ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"]))
final = with_tools.invoke(messages)

structure = model.with_structured_output(Weather, method="json_schema").invoke(OBJECT)
usage = answer.usage_metadata
report(
    answer=answer.text,
    stream={"text": "".join(pieces), "in_pieces": len([piece for piece in pieces if piece]) > 1},
    tools={"arguments": {"city": ASKED[0]}, "answer": final.text},
    structure=structure.model_dump(),
    error=status_of(refused(lambda: ChatOpenAI(model=MISSING, max_retries=0, use_responses_api=True).invoke(QUESTION))),
    counted=usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0,
)
