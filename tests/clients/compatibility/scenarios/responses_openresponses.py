"""The cases of the Open Responses specification for models that read text, checked with its published types."""

import json
import os
import urllib.request
from typing import Any

import openresponses_types.types as types
from weather import QUESTION, SERVED, WEATHER, report

EVENTS = {
    next(iter(model.model_fields["type"].annotation)).value: model
    for name, model in vars(types).items()
    if name.endswith("StreamingEvent")
}
TOOL = {"type": "function", **WEATHER["function"]}
FORCED = {"type": "function", "name": "get_weather"}


def send(**fields: Any) -> str:
    """The text that a request is answered with."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    body = json.dumps({"model": SERVED, **fields}).encode()
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/responses", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def create(*wanted: str, **fields: Any) -> dict[str, Any]:
    """A response that the specification knows, completed, with an item of each wanted type."""
    return checked(json.loads(send(**fields)), wanted)


def checked(response: dict[str, Any], wanted: tuple[str, ...]) -> dict[str, Any]:
    types.ResponseResource.model_validate(response)
    assert response["status"] == "completed" and response["output"], response
    assert set(wanted) <= {item["type"] for item in response["output"]}, response["output"]
    return response


def stream(*wanted: str, **fields: Any) -> list[str]:
    """The types of the events of a stream, each of which the specification knows."""
    *blocks, done, end = send(**fields, stream=True).split("\n\n")
    assert (done, end) == ("data: [DONE]", ""), (done, end)
    events = []
    for number, block in enumerate(blocks):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}" and event["sequence_number"] == number, block
        EVENTS[event["type"]].model_validate(event)
        events.append(event)
    checked(events[-1]["response"], wanted)
    return [event["type"] for event in events]


def message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


create("message", input=[message("user", "Say hello in three words.")])
text_events = stream("message", input=[message("user", "Count from 1 to 5.")])
create("message", input=[message("system", "You are a pirate."), message("user", "Say hello.")])
create("function_call", input=[message("user", QUESTION)], tools=[TOOL])
call_events = stream("function_call", input=[message("user", QUESTION)], tools=[TOOL])
said = [message("user", "I am Ann."), message("assistant", "Hello Ann!"), message("user", "Who am I?")]
create("message", input=said)
first = create("message", input="Remember: papaya.")
create("message", input="What was it?", previous_response_id=first["id"])
called = create("function_call", input=QUESTION, tools=[TOOL], tool_choice=FORCED)
result = {"type": "function_call_output", "call_id": called["output"][0]["call_id"], "output": "18 degrees"}
create("message", input=[result], previous_response_id=called["id"])
report(
    cases=10,
    text_events=len(set(text_events)),
    call_events=[kind for kind in dict.fromkeys(call_events) if "function_call" in kind],
)
