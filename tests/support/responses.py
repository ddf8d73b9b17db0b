"""A plain HTTP caller of the Responses interface."""

import json
from typing import Any

import httpx

from heddle.inference.served_model import TINY
from tests.support.chat import API_KEY, until

Json = dict[str, Any]
CITY: Json = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Lima"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Responses:
    """The routes of one server, for one project."""

    def __init__(self, url: str, project: str | None = None, bearer: str = API_KEY) -> None:
        headers = {"authorization": f"Bearer {bearer}"}
        headers |= {"openai-project": project} if project is not None else {}
        self.client = httpx.Client(base_url=url, headers=headers, timeout=600)

    def __enter__(self) -> "Responses":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def body(self, **fields: Any) -> Json:
        """A request: a short greedy answer with these fields over it."""
        return {"model": TINY, "input": "Say something.", "temperature": 0, "max_output_tokens": 4, **fields}

    def ask(self, **fields: Any) -> httpx.Response:
        """The raw answer of one request."""
        return self.client.post("/v1/responses", json=self.body(**fields))

    def create(self, **fields: Any) -> Json:
        """The response to a request that must succeed."""
        answer = self.ask(**fields)
        assert answer.status_code == 200, f"{answer.status_code} {answer.text[:2000]}"
        return dict(answer.json())

    def refused(self, status: int, **fields: Any) -> Json:
        """The error of a request that must be refused with that status."""
        answer = self.ask(**fields)
        assert answer.status_code == status, f"{answer.status_code} {answer.text[:2000]}"
        return error_of(answer)

    def stream(self, **fields: Any) -> list[Json]:
        """The events of a stream that must succeed."""
        answer = self.ask(**fields, stream=True)
        assert answer.status_code == 200, f"{answer.status_code} {answer.text[:2000]}"
        return events_of(answer)

    def get(self, path: str, **params: Any) -> Json:
        """What is read below /v1, which must be there."""
        answer = self.client.get(f"/v1/{path}", params=params)
        assert answer.status_code == 200, f"{answer.status_code} {answer.text[:2000]}"
        return dict(answer.json())

    def ended(self, response_id: str) -> Json:
        """A response of the background, when it has ended."""
        until(lambda: self.get(f"responses/{response_id}")["usage"] is not None, "the response has ended")
        return self.get(f"responses/{response_id}")

    def items(self, response_id: str, **params: Any) -> list[Json]:
        """Its input items, in order."""
        listed = self.get(f"responses/{response_id}/input_items", order="asc", **params)
        return list(listed["data"])


def error_of(answer: httpx.Response) -> Json:
    """The error object of a refusal in the shape of this interface."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"], error
    assert error["code"] is None or isinstance(error["code"], str), error
    return dict(error)


def events_of(answer: httpx.Response) -> list[Json]:
    """Every event of a stream: numbered from 0 without gaps, named by its type, `[DONE]` behind the last."""
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.headers
    blocks = answer.text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""], blocks[-2:]
    events = []
    for block in blocks[:-2]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}", block
        events.append(event)
    first = events[0]["sequence_number"]
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    return events


def text_of(response: Json) -> str:
    """The text of all messages of a response."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in messages for part in item["content"])


def gathered(events: list[Json]) -> list[Json]:
    """The output that the deltas of a stream add up to, checked against the events that end its parts."""
    output: list[Json] = []
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] == len(output)
            output.append({"text": "", "id": event["item"]["id"], "done": None})
        elif kind.endswith(".delta"):
            assert output[event["output_index"]]["id"] == event["item_id"]
            output[event["output_index"]]["text"] += event["delta"]
        elif kind.endswith(("_text.done", "arguments.done")):
            whole = event["arguments"] if "arguments" in event else event["text"]
            assert whole == output[event["output_index"]]["text"]
        elif kind == "response.output_item.done":
            output[event["output_index"]]["done"] = event["item"]
    return output
