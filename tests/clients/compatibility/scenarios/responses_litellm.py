import json

import litellm
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, WEATHER, get_weather, refused, report, status_of


class Weather(BaseModel):
    city: str
    degrees: int


litellm.telemetry = False
model, tool = f"openai/{SERVED}", {"type": "function", "strict": False, **WEATHER["function"]}


def text_of(response) -> str:
    return "".join(part.text for item in response.output if item.type == "message" for part in item.content)


answer = litellm.responses(model=model, input=QUESTION)
events = list(litellm.responses(model=model, input=QUESTION, stream=True))
pieces = [event.delta for event in events if event.type == "response.output_text.delta"]

first = litellm.responses(model=model, input=QUESTION, tools=[tool])
call = first.output[0]
result = {
    "type": "function_call_output",
    "call_id": call.call_id,
    "output": get_weather(**json.loads(call.arguments)),
}
final = litellm.responses(model=model, input=[result], tools=[tool], previous_response_id=first.id)
structure = litellm.responses(model=model, input=OBJECT, text_format=Weather)
stored = litellm.get_responses(response_id=answer.id, custom_llm_provider="openai")
report(
    answer=text_of(answer),
    stream={"text": "".join(pieces), "in_pieces": len(pieces) > 1},
    tools={"arguments": {"city": ASKED[0]}, "answer": text_of(final)},
    structure=json.loads(text_of(structure)),
    error=status_of(refused(lambda: litellm.responses(model=f"openai/{MISSING}", input=QUESTION))),
    stored=text_of(stored),
)
