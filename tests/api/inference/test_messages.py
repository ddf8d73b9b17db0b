"""POST /v1/messages on the shipped model: blocks, events, tools, thoughts, usage, refusals; and the trace of it."""

import json
from typing import Any

import httpx
import pytest

from heddle.inference.prompt.opaque_reasoning import ReasoningDecoder
from tests.api.inference.test_fields_tools import call_of
from tests.support.chat import TINY, USER, Chat

Json = dict[str, Any]
WEATHER = {
    "name": "f",
    "description": "Does f.",
    "input_schema": {
        "type": "object",
        "properties": {"x": {"enum": [1]}},
        "required": ["x"],
        "additionalProperties": False,
    },
}
THOUGHT = {"grammar": 'start: <think> "so 17" </think> "\\n\\nBlue."'}


def body(**fields: Any) -> Json:
    """A short greedy request."""
    return {"model": TINY, "messages": USER, "max_tokens": 60, "temperature": 0, **fields}


def ask(chat: Chat, **fields: Any) -> Json:
    """The message of a request that must succeed."""
    answer = chat.client.post("/v1/messages", json=body(**fields))
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def events(chat: Chat, **fields: Any) -> list[Json]:
    """The events of a stream that must succeed, each under its own name."""
    answer = chat.client.post("/v1/messages", json=body(**fields, stream=True))
    assert answer.status_code == 200, answer.text
    found = []
    for event in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def gathered(found: list[Json]) -> Json:
    """The message that the events of a stream make up; their order is checked here."""
    assert [event["type"] for event in found[:2]] == ["message_start", "ping"]
    message = found[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    open_block: Json | None = None
    for event in found[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert open_block is None and event["index"] == len(message["content"])
                open_block = {**event["content_block"], "partial": ""}
                message["content"].append(open_block)
            case "content_block_delta":
                assert open_block is not None and event["index"] == len(message["content"]) - 1
                delta = event["delta"]
                kind, key = {
                    "text_delta": ("text", "text"),
                    "thinking_delta": ("thinking", "thinking"),
                    "signature_delta": ("thinking", "signature"),
                    "input_json_delta": ("tool_use", "partial"),
                }[delta["type"]]
                assert open_block["type"] == kind
                open_block[key] += delta["partial_json" if key == "partial" else key]
            case _:
                assert event == {"type": "content_block_stop", "index": len(message["content"]) - 1}
                open_block = None
    assert open_block is None
    for block in message["content"]:
        partial = block.pop("partial")
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = json.loads(partial)
    assert [event["type"] for event in found[-2:]] == ["message_delta", "message_stop"]
    return {**message, **found[-2]["delta"], "usage": found[-2]["usage"]}


def plain(message: Json) -> Json:
    """A message without what differs from one answer to the next: ids, and what the cache holds."""
    content = [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]
    usage = dict(message["usage"])
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    return {**message, "id": None, "content": content, "usage": usage}


def both(chat: Chat, **fields: Any) -> Json:
    """The message, which is the same whole and streamed."""
    whole, streamed = ask(chat, **fields), gathered(events(chat, **fields))
    assert plain(whole) == plain(streamed)
    return whole


def refused(chat: Chat, status: int, path: str = "/v1/messages", **fields: Any) -> str:
    """The message of a refusal, whose shape is checked here."""
    answer = chat.client.post(path, json=body(**fields), headers={"anthropic-version": "2023-06-01"})
    assert answer.status_code == status, answer.text
    found = answer.json()
    assert set(found) == {"type", "error", "request_id"} and found["type"] == "error"
    assert found["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
    assert found["error"]["type"] == kinds[status]
    return str(found["error"]["message"])


def test_a_text(chat: Chat) -> None:
    message = both(chat)
    (block,) = message["content"]
    assert block == {"type": "text", "text": chat.content(max_tokens=60)}
    assert message["id"].startswith("msg_") and message["model"] == TINY and message["role"] == "assistant"
    assert (message["stop_reason"], message["stop_sequence"], message["stop_details"]) == ("end_turn", None, None)
    counted = chat.answer(max_tokens=60)["usage"]
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted["prompt_tokens"]
    assert (usage["output_tokens"], usage["cache_creation_input_tokens"]) == (counted["completion_tokens"], 0)


def test_why_an_answer_ends(chat: Chat) -> None:
    assert both(chat, max_tokens=3)["stop_reason"] == "max_tokens"
    stopped = both(chat, stop_sequences=["very"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "very")
    limit = chat.client.get(f"/v1/models/{TINY}").json()["max_model_len"]
    long = both(chat, max_tokens=10**6, structured_outputs={"choice": ["yes"]})
    assert long["stop_reason"] == "end_turn" and limit < 10**6


def test_the_cache_is_told(chat: Chat) -> None:
    words = [{"role": "user", "content": " ".join(["a long prompt of its own"] * 40)}]
    first, second = (ask(chat, messages=words, max_tokens=1)["usage"] for _ in range(2))
    assert first["cache_read_input_tokens"] == 0 < second["cache_read_input_tokens"]
    assert first["input_tokens"] == second["input_tokens"] + second["cache_read_input_tokens"]


def test_tools(chat: Chat) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "f"}):
        message = both(chat, tools=[WEATHER], tool_choice={**choice, "disable_parallel_tool_use": True})
        (block,) = message["content"]
        assert (block["type"], block["name"], block["input"]) == ("tool_use", "f", {"x": 1})
        assert message["stop_reason"] == "tool_use"
    none = both(chat, tools=[WEATHER], tool_choice={"type": "none"})
    assert [block["type"] for block in none["content"]] == ["text"]


def test_a_text_before_two_calls(chat: Chat) -> None:
    calls = " ".join(['"Let me see. "', call_of("f", x=1), r'"\n"', call_of("f", x=1)])
    fields = {"structured_outputs": {"grammar": f"start: {calls}"}, "max_tokens": 200, "tools": [WEATHER]}
    message = both(chat, **fields)
    assert [block["type"] for block in message["content"]] == ["text", "tool_use", "tool_use"]
    assert message["content"][0]["text"].strip() == "Let me see."
    assert len({block["id"] for block in message["content"][1:]}) == 2


def test_a_round_trip(chat: Chat) -> None:
    message = ask(chat, tools=[WEATHER], tool_choice={"type": "tool", "name": "f"})
    result = {"type": "tool_result", "tool_use_id": message["content"][0]["id"], "content": "done 17"}
    turns = [*USER, {"role": "assistant", "content": message["content"]}, {"role": "user", "content": [result]}]
    assert both(chat, messages=turns, tools=[WEATHER])["role"] == "assistant"


def test_thoughts(chat: Chat) -> None:
    """The shipped model thinks where its template opens a block."""
    fields = {"structured_outputs": {"choice": ["Blue."]}, "thinking": {"type": "adaptive"}, "max_tokens": 200}
    message = both(chat, **fields)
    thought, text = message["content"]
    assert thought["type"] == "thinking" and len(thought["thinking"]) > 3 and thought["signature"]
    assert text == {"type": "text", "text": "Blue."}
    assert 0 < message["usage"]["output_tokens_details"]["thinking_tokens"] < message["usage"]["output_tokens"]
    sealed = both(chat, **fields | {"thinking": {"type": "adaptive", "display": "omitted"}})
    assert sealed["content"][0]["thinking"] == ""
    assert ReasoningDecoder(1 << 20).decode(sealed["content"][0]["signature"], "x") == thought["thinking"]
    hidden = both(chat, structured_outputs=THOUGHT)
    assert hidden["content"] == [{"type": "text", "text": "Blue."}]


def test_a_prompt_is_continued(chat: Chat) -> None:
    turns = [*USER, {"role": "assistant", "content": "I am a very"}]
    message = both(chat, messages=turns)
    last = {"continue_final_message": True, "add_generation_prompt": False}
    assert message["content"] == [{"type": "text", "text": chat.content(messages=turns, max_tokens=60, **last)}]


def test_a_structure(chat: Chat) -> None:
    schema = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
    form = {"type": "json_schema", "schema": schema}
    for fields in ({"output_config": {"format": form}}, {"output_format": form}):
        assert json.loads(both(chat, **fields)["content"][0]["text"]) in ({"x": 1}, {"x": 2})


def test_tokens_are_counted_as_they_would_be_used(chat: Chat) -> None:
    fields = {"system": "Be brief.", "tools": [WEATHER]}
    counting = {key: value for key, value in body(**fields).items() if key != "max_tokens"}
    answer = chat.client.post("/v1/messages/count_tokens", json=counting)
    usage = ask(chat, **fields, max_tokens=1)["usage"]
    assert answer.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert "no such" in refused(chat, 404, "/v1/messages/count_tokens", model="no such")


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"model": "nope"}, 404, "nope"),
        ({"messages": "x"}, 400, "messages"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"temperature": -1}, 400, "temperature"),
        ({"stop_sequences": [""]}, 400, "stop_sequences"),
        ({"tools": [WEATHER, WEATHER]}, 400, "tools.1.name"),
        ({"tools": [{**WEATHER, "input_schema": {"type": 3}}]}, 400, "tools.0.input_schema"),
        ({"tool_choice": {"type": "any"}}, 400, "tool_choice"),
        ({"messages": [{"role": "user", "content": "word " * 40_000}]}, 400, "prompt is too long: "),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "messages.0.content.0"),
        ({"messages": [*USER, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {}}]}]}, 400, "messages"),
    ],
)  # fmt: skip
def test_refusals(chat: Chat, fields: Json, status: int, text: str) -> None:
    assert text in refused(chat, status, **fields)


def test_threads_are_refused_in_the_way_that_clients_go_on_without(chat: Chat) -> None:
    answer = chat.client.post("/v1/messages", json=body(thread={"type": "create"}))
    assert answer.status_code == 400
    assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": []}


def test_malformed_bodies_and_missing_fields(chat: Chat) -> None:
    answer = chat.client.post("/v1/messages", content=b"{", headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["type"]) == (400, "error")
    answer = chat.client.post("/v1/messages", json={"model": TINY, "messages": USER})
    assert answer.status_code == 400 and "max_tokens" in answer.json()["error"]["message"]


def test_the_header_names_what_had_no_effect(chat: Chat) -> None:
    answer = chat.client.post(
        "/v1/messages",
        json=body(service_tier="auto", system=[{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]),
    )
    assert answer.headers["x-heddle-ignored-fields"] == "service_tier, cache_control"


def test_a_key_comes_in_its_own_header(chat: Chat) -> None:
    with httpx.Client(base_url=chat.url) as client:
        answer = client.post("/v1/messages", json=body(max_tokens=1))
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
        assert client.post("/v1/messages", json=body(max_tokens=1), headers={"x-api-key": "k" * 40}).status_code == 200
        answer = client.get("/v1/models", headers={"x-api-key": "k" * 40, "anthropic-version": "2023-06-01"})
        model = next(model for model in answer.json()["data"] if model["id"] == TINY)
        assert (model["type"], model["display_name"]) == ("model", TINY)
        assert model["created_at"].endswith("Z") and model["max_input_tokens"] > 0
        one = client.get(f"/v1/models/{TINY}", headers={"x-api-key": "k" * 40, "anthropic-version": "2023-06-01"})
        assert one.json() == model
