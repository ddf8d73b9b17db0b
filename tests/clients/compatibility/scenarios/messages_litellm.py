import json
import os

import litellm
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, WEATHER, get_weather, refused, report, status_of


class Weather(BaseModel):
    city: str
    degrees: int


os.environ["ANTHROPIC_API_BASE"] = os.environ["ANTHROPIC_BASE_URL"]
litellm.telemetry = False
model, asked = f"anthropic/{SERVED}", [{"role": "user", "content": QUESTION}]
answer = litellm.completion(model, asked).choices[0].message.content
pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(model, asked, stream=True)]

called = litellm.completion(model, asked, tools=[WEATHER]).choices[0].message
call = called.tool_calls[0]
result = {"role": "tool", "tool_call_id": call.id, "content": get_weather(**json.loads(call.function.arguments))}
final = litellm.completion(model, [*asked, called.model_dump(), result], tools=[WEATHER]).choices[0].message.content

wanted = [{"role": "user", "content": OBJECT}]
parsed = litellm.completion(model, wanted, response_format=Weather).choices[0].message.content
report(
    answer=answer,
    stream={"text": "".join(pieces), "in_pieces": len([piece for piece in pieces if piece]) > 1},
    tools={"arguments": {"city": ASKED[0]}, "answer": final},
    structure=json.loads(parsed),
    error=status_of(refused(lambda: litellm.completion(f"anthropic/{MISSING}", asked))),
)
