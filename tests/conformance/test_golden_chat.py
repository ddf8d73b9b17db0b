"""127 recorded requests to a vLLM 0.32 server, sent again: the same answers up to the listed deviations.

Compared: status, type and param of errors, keys and JSON types of bodies (a null key counts as absent), finish and stop
reasons that follow from the request, order and kinds of the chunks of a stream. Not compared: what follows from
another model's tokens. The recorded server had a context of 2,048 tokens, so the one here has too.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.chat import Chat, data_lines, end_token
from tests.support.server import HeddleProcess

RECORDS = [
    json.loads(line)
    for line in (Path(__file__).parent.parent / "data" / "golden-chat.jsonl").read_text(encoding="utf-8").splitlines()
]
RECORDED_END = "2"
"""The end-of-sequence token of the recorded model, as biases name it."""
CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Deviation:
    """Where this server answers differently, and why; fields that are None are as recorded."""

    reason: str
    status: int | None = None
    type: str | None = None
    param: str | None = None
    keys: frozenset[str] = frozenset()
    """Keys of chunks that only this server has."""


SCHEMA_LINE = "a missing field, a wrong type or a stated range is 422 with both bodies (contract, decision 2)"
NAMED = "the refusal names its field, where vLLM gives null"
NO_SILENCE = "a field that cannot act is refused by name (contract, decision 7)"
DEVIATIONS: dict[str, Deviation] = {
    "no messages": Deviation(SCHEMA_LINE, 422),
    "wrong type temp": Deviation(SCHEMA_LINE, 422),
    "truncate -2": Deviation(SCHEMA_LINE, 422),
    "vllm_xargs bad": Deviation(SCHEMA_LINE, 422),
    "rf unknown": Deviation(SCHEMA_LINE, 422),
    "reasoning effort bad": Deviation(SCHEMA_LINE, 422),
    "msg no role": Deviation(SCHEMA_LINE, 422, param="body.messages.0.role"),
    "seed too big": Deviation("the interface allows this bound", 200),
    "length_penalty": Deviation(NO_SILENCE, 400, "BadRequestError", "length_penalty"),
    "stream priority": Deviation("first come, first served refuses it (contract, decision 5)", 400, param="priority"),
    "so bad grammar": Deviation(
        "a broken grammar is the request's fault", 400, "BadRequestError", "structured_outputs.grammar"
    ),
    "empty messages": Deviation(NAMED, param="messages"),
    "freq pen 3": Deviation(NAMED, param="frequency_penalty"),
    "rep pen 0": Deviation(NAMED, param="repetition_penalty"),
    "n=0": Deviation(NAMED, param="n"),
    "n=2 greedy": Deviation(NAMED, param="n"),
    "truncate 0": Deviation(NAMED, param="truncate_prompt_tokens"),
    "cont+gen true": Deviation(NAMED, param="continue_final_message"),
    "cont only": Deviation(NAMED, param="continue_final_message"),
    "chat_template bad": Deviation(NAMED, param="chat_template"),
    "image": Deviation(NAMED, param="messages.0.content.0"),
    "stop empty str": Deviation(NAMED, param="stop"),
    "min_tokens>max": Deviation(NAMED, param="min_tokens"),
    "bad_words empty str": Deviation(NAMED, param="bad_words"),
    "rep detection bad": Deviation(NAMED, param="repetition_detection"),
    "rep detection count1": Deviation(NAMED, param="repetition_detection"),
    "so bad regex": Deviation(NAMED, param="structured_outputs.regex"),
    "so bad json": Deviation(NAMED, param="structured_outputs.json"),
    "top_logprobs 50": Deviation("the field is top_logprobs", param="top_logprobs"),
    "prompt_logprobs stream 0": Deviation("the first chunk has them", keys=frozenset({"prompt_logprobs"})),
}
KEYS = {
    "permission": "of no use to anybody; the interface does not have it",
    "created_cache_tokens": "the interface has cached_tokens only",
    "completion_tokens_details": "the served model has reasoning blocks, so their tokens are counted",
}
"""Keys that only one side has, at any depth."""
FOLLOWS_FROM_THE_MODEL = {
    "so json", "so json str", "so json_object", "so ws pattern", "so no any ws", "rf json_object", "rf json_schema",
    "tools required", "tools named", "tools required stream", "stop str", "stream stop",
}  # fmt: skip
"""Whether these come to an end within their tokens depends on what the model writes."""


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    """A server with the context of the recorded one."""
    folder = tmp_path_factory.mktemp("golden")
    with HeddleProcess(folder / "data", max_model_len=CONTEXT) as process, Chat(process.url) as caller:
        yield caller


def label(record: dict[str, Any]) -> str:
    """The name of a recorded pair, with its server."""
    return f"{record['name']} ({'plain' if record['server'] == 'plain' else 'reasoning parser'})"


def test_the_recording_is_whole() -> None:
    assert len(RECORDS) == 127
    assert set(DEVIATIONS) <= {record["name"] for record in RECORDS}
    assert {*FOLLOWS_FROM_THE_MODEL} <= {record["name"] for record in RECORDS}


@pytest.mark.parametrize("record", RECORDS, ids=label)
def test_recorded_pair(chat: Chat, record: dict[str, Any]) -> None:
    answer = send(chat, record)
    deviation = DEVIATIONS.get(record["name"], Deviation(""))
    assert answer.status_code == (deviation.status or record["status"]), answer.text[:1000]
    if answer.status_code >= 400:
        check_error(record, answer, deviation)
    elif "chunks" in record:
        assert answer.headers["content-type"] == record["content_type"]
        check_chunks(record, data_lines(answer.text), deviation)
    elif record["status"] == 200:
        assert answer.headers["content-type"] == record["content_type"]
        check_body(record, answer.json())


def send(chat: Chat, record: dict[str, Any]) -> httpx.Response:
    """The recorded request with our names of model and tokens."""
    if record["name"] == "models":
        return chat.client.get("/v1/models")
    if record["name"] == "404":
        return chat.client.get("/v1/nothing")
    if record["name"] == "method":
        return chat.client.get("/v1/chat/completions")
    if "request_raw" in record:
        headers = {"content-type": "application/json"}
        return chat.client.post("/v1/chat/completions", content=record["request_raw"], headers=headers)
    body = dict(record["request"])
    if body.get("model") == "m":
        body["model"] = chat.model
    if body.get("temperature"):
        # A drawn token may be half a character, which has no text and so no chunk; this seed draws whole ones.
        body.setdefault("seed", 1)
    if "logit_bias" in body:
        body["logit_bias"] = {
            str(end_token()) if token == RECORDED_END else token: bias for token, bias in body["logit_bias"].items()
        }
    return chat.client.post("/v1/chat/completions", json=body)


def check_error(record: dict[str, Any], answer: httpx.Response, deviation: Deviation) -> None:
    """Type and param as recorded, or as the deviation says; the code is the status."""
    body = answer.json()
    if answer.status_code in (404, 405) and "detail" in record["response"]:
        assert body["detail"] == record["response"]["detail"]
        return
    recorded = record.get("response", {}).get("error", {})
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == (deviation.type or recorded.get("type") or "BadRequestError"), error
    assert error["param"] == (deviation.param or recorded.get("param")), error
    assert error["code"] == answer.status_code
    assert ("detail" in body) == (answer.status_code == 422)


def check_body(record: dict[str, Any], body: dict[str, Any]) -> None:
    """Keys, types, number of choices, reasons, role."""
    recorded = record["response"]
    compare(shape(recorded), shape(body), "body")
    if "choices" not in recorded:
        return
    assert len(body["choices"]) == len(recorded["choices"])
    for one, other in zip(recorded["choices"], body["choices"], strict=True):
        assert other["index"] == one["index"] and other["message"]["role"] == one["message"]["role"]
        check_reasons(record, one, other)
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    if record["name"] not in FOLLOWS_FROM_THE_MODEL and "structured_outputs" not in record["request"]:
        assert usage["completion_tokens"] == recorded["usage"]["completion_tokens"]


def check_reasons(record: dict[str, Any], one: dict[str, Any], other: dict[str, Any]) -> None:
    """Finish and stop reason, where they follow from the request."""
    if record["name"] in FOLLOWS_FROM_THE_MODEL:
        assert other["finish_reason"] in ("stop", "length", "tool_calls")
        return
    assert (other["finish_reason"], other["stop_reason"]) == (one["finish_reason"], one["stop_reason"])


def check_chunks(record: dict[str, Any], lines: list[str], deviation: Deviation) -> None:
    """The order and the kinds of chunks, and the keys of each kind."""
    recorded = [chunk for chunk in record["chunks"] if chunk != "[DONE]"]
    assert record["chunks"][-1] == lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    for chunk in chunks:
        for key in deviation.keys:
            chunk.pop(key, None)
    count = record["request"].get("n", 1)
    for index in range(count):
        ours, theirs = kinds(chunks, index), kinds(recorded, index)
        if record["name"] in FOLLOWS_FROM_THE_MODEL:
            # A stop string may come with the first token, before there is any text.
            ours, theirs = [[one for one in side if one != "delta"] for side in (ours, theirs)]
        assert ours == theirs
    assert [kind(chunk) for chunk in chunks[:count]] == ["role"] * count
    for wanted in {kind(chunk) for chunk in recorded}:
        compare(merged(recorded, wanted), merged(chunks, wanted), wanted)
    for index in range(count):
        check_reasons(record, last_choice(recorded, index), last_choice(chunks, index))


def kind(chunk: dict[str, Any]) -> str:
    """What a chunk says."""
    if not chunk["choices"]:
        return "usage"
    choice = chunk["choices"][0]
    if "role" in choice["delta"]:
        return "role"
    return "end" if choice["finish_reason"] else "delta"


def kinds(chunks: list[dict[str, Any]], index: int) -> list[str]:
    """The kinds of chunks that concern one choice, runs of deltas as one."""
    own = [kind(chunk) for chunk in chunks if not chunk["choices"] or chunk["choices"][0]["index"] == index]
    return [one for place, one in enumerate(own) if place == 0 or own[place - 1] != one]


def last_choice(chunks: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """The part of the chunk that ends a choice."""
    parts = [choice for chunk in chunks for choice in chunk["choices"]]
    return next(part for part in parts if part["index"] == index and part["finish_reason"])


def merged(chunks: list[dict[str, Any]], wanted: str) -> Any:
    """The shape that all chunks of one kind have together."""
    found: Any = None
    for chunk in chunks:
        if kind(chunk) == wanted:
            found = union(found, shape(chunk))
    return found


def union(one: Any, other: Any) -> Any:
    """Both shapes together."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {key: union(one.get(key), other.get(key)) for key in {*one, *other}}
    if isinstance(one, list) and isinstance(other, list):
        return [union(one[0] if one else None, other[0] if other else None)]
    return one if other is None else other


def shape(value: Any) -> Any:
    """Keys and types of a JSON value: null keys are left out, items of a list are merged, texts of answers are one."""
    if isinstance(value, dict):
        if value and all(key.isdigit() for key in value):
            return {"<token id>": shape(next(iter(value.values())))}
        found = {key: shape(item) for key, item in value.items() if item is not None and key not in KEYS}
        if "reasoning" in found:
            found["content"] = found.pop("reasoning")
        if found.get("content") == "text" and "tool_calls" not in found:
            found.pop("content")
        return found
    if isinstance(value, list):
        together: Any = None
        for item in value:
            together = union(together, shape(item))
        return [together]
    if isinstance(value, bool):
        return "truth"
    if isinstance(value, int | float):
        return "number"
    return "text"


MODEL_WRITES = {"stop_reason", "tool_calls"}
"""Keys that are there or not as the model's own words go, where that is compared by other means."""


def compare(recorded: Any, ours: Any, place: str) -> None:
    """Equal shapes; an empty list fits every list."""
    if isinstance(recorded, dict) and isinstance(ours, dict):
        assert {*recorded} - MODEL_WRITES == {*ours} - MODEL_WRITES, place
        for key in {*recorded} & {*ours}:
            compare(recorded[key], ours[key], f"{place}.{key}")
        return
    if isinstance(recorded, list) and isinstance(ours, list):
        if recorded[0] is not None and ours[0] is not None:
            compare(recorded[0], ours[0], place + "[]")
        return
    assert recorded == ours, place
