import time

from openai import NotFoundError, OpenAI
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, WEATHER, get_weather, refused, report, status_of


class Weather(BaseModel):
    city: str
    degrees: int


client = OpenAI(max_retries=0)
responses = client.responses
tool = {"type": "function", "strict": False, **WEATHER["function"]}
answer = responses.create(model=SERVED, input=QUESTION, metadata={"a": "b"})
with responses.stream(model=SERVED, input=QUESTION) as stream:
    events = [event.type for event in stream]
    streamed = stream.get_final_response()

(call,) = responses.create(model=SERVED, input=QUESTION, tools=[tool]).output
result = {"type": "function_call_output", "call_id": call.call_id, "output": get_weather(city="Paris")}
asked = [{"role": "user", "content": QUESTION}, call, result]
final = responses.create(model=SERVED, input=asked, tools=[tool], store=False)
parsed = responses.parse(model=SERVED, input=OBJECT, text_format=Weather).output_parsed

following = responses.create(model=SERVED, input=QUESTION, previous_response_id=answer.id)
listed = responses.input_items.list(following.id, order="asc")
working = responses.create(model=SERVED, input=QUESTION, background=True)
while working.status in ("queued", "in_progress"):
    time.sleep(0.05)
    working = responses.retrieve(working.id)
conversation = client.conversations.create(items=[{"role": "user", "content": QUESTION, "type": "message"}])
told = responses.create(model=SERVED, input=QUESTION, conversation=conversation.id)
kept = client.conversations.items.list(conversation.id, order="asc")
responses.delete(answer.id)
gone = refused(lambda: responses.retrieve(answer.id))
report(
    answer=answer.output_text,
    stream={
        "text": streamed.output_text,
        "in_pieces": events.count("response.output_text.delta") > 1 and events[-1] == "response.completed",
    },
    tools={"arguments": {"city": ASKED[0]}, "answer": final.output_text},
    structure=parsed.model_dump(),
    error=status_of(refused(lambda: responses.create(model=MISSING, input=QUESTION))),
    items=[item.type for item in listed],
    background=(working.status, working.output_text),
    conversation=[item.role for item in kept] if told.conversation.id == conversation.id else None,
    counted=responses.input_tokens.count(model=SERVED, input=QUESTION).input_tokens == answer.usage.input_tokens,
    deleted=isinstance(gone, NotFoundError),
)
