"""The provider that the recorded libraries talk to: fixed answers in the forms of OpenAI and of Anthropic.

An answer is a call of the first tool when tools are offered and none has answered yet, else a sentence. The model
`model-missing` is answered with 404. Token counts are always the same; see USAGE and ANTHROPIC_USAGE.
"""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]

SENTENCE = "It is 18 degrees in Paris."
THOUGHT = "The user wants the weather in Paris."
ARGUMENTS = '{"city": "Paris"}'
USAGE = {
    "prompt_tokens": 120,
    "completion_tokens": 30,
    "total_tokens": 150,
    "prompt_tokens_details": {"cached_tokens": 64},
    "completion_tokens_details": {"reasoning_tokens": 12},
}
RESPONSES_USAGE = {
    "input_tokens": 120,
    "output_tokens": 30,
    "total_tokens": 150,
    "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 12},
}
ANTHROPIC_USAGE = {
    "input_tokens": 20,
    "output_tokens": 30,
    "cache_read_input_tokens": 64,
    "cache_creation_input_tokens": 16,
}
MISSING = {"error": {"message": "no such model: model-missing", "type": "invalid_request_error", "code": "not_found"}}


def start(port: int) -> str:
    """Serve in the background; the base address without `/v1`."""
    server = ThreadingHTTPServer(("127.0.0.1", port), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body: Json = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if body["model"] == "model-missing":
            self._send(404, json.dumps(MISSING).encode(), "application/json")
        elif body.get("stream"):
            self._send(200, b"".join(_events(self.path, body)), "text/event-stream")
        else:
            self._send(200, json.dumps(_whole(self.path, body)).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def _whole(path: str, body: Json) -> Json:
    if path.endswith("/embeddings"):
        vector = {"object": "embedding", "index": 0, "embedding": [0.25, 0.5, 0.75]}
        return {
            "object": "list",
            "model": body["model"],
            "data": [vector],
            "usage": {"prompt_tokens": 5, "total_tokens": 5},
        }
    if path.endswith("/responses"):
        return _response(body)
    if path.endswith("/messages"):
        return _anthropic(body)
    return _completion(body)


def _wants_tool(body: Json, key: str = "messages") -> bool:
    return bool(body.get("tools")) and _turn(body, key) == 1


_ANSWERED = ('"tool"', '"tool_result"', '"function_call_output"')


def _turn(body: Json, key: str) -> int:
    return 2 if any(word in json.dumps(body.get(key)) for word in _ANSWERED) else 1


def _tool_name(body: Json) -> str:
    first = body["tools"][0]
    return str(first.get("function", first)["name"])


def _completion(body: Json) -> Json:
    message: Json = {"role": "assistant", "content": SENTENCE}
    if _wants_tool(body):
        function = {"name": _tool_name(body), "arguments": ARGUMENTS}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        }
    finish = "tool_calls" if "tool_calls" in message else "stop"
    return {
        "id": f"chatcmpl-{_turn(body, 'messages')}",
        "object": "chat.completion",
        "created": 1700000000,
        "model": body["model"] + "-2026-01-01",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": USAGE,
    }


def _response(body: Json) -> Json:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": THOUGHT}]}
    text = {"type": "output_text", "text": SENTENCE, "annotations": []}
    answer: Json = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
    if _wants_tool(body, "input"):
        answer = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "status": "completed"}
        answer |= {"name": _tool_name(body), "arguments": ARGUMENTS}
    return {
        "id": f"resp_{_turn(body, 'input')}",
        "object": "response",
        "created_at": 1700000000,
        "status": "completed",
        "model": body["model"] + "-2026-01-01",
        "output": [thought, answer],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": RESPONSES_USAGE,
    }


def _anthropic(body: Json) -> Json:
    content: list[Json] = [{"type": "thinking", "thinking": THOUGHT, "signature": "c2ln"}]
    if _wants_tool(body):
        content.append({"type": "tool_use", "id": "toolu_1", "name": _tool_name(body), "input": json.loads(ARGUMENTS)})
    else:
        content.append({"type": "text", "text": SENTENCE})
    return {
        "id": f"msg_{_turn(body, 'messages')}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": "tool_use" if content[-1]["type"] == "tool_use" else "end_turn",
        "stop_sequence": None,
        "usage": ANTHROPIC_USAGE,
    }


def _anthropic_events(body: Json) -> Iterator[bytes]:
    whole = _anthropic(body)
    content = whole.pop("content")
    yield _event("message_start", message={**whole, "content": [], "stop_reason": None})
    for index, block in enumerate(content):
        first, delta = _pieces(block)
        yield _event("content_block_start", index=index, content_block=first)
        yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    ending = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event("message_delta", delta=ending, usage={"output_tokens": whole["usage"]["output_tokens"]})
    yield _event("message_stop")


def _pieces(block: Json) -> tuple[Json, Json]:
    if block["type"] == "thinking":
        return {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
    if block["type"] == "text":
        return {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    return {**block, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}


def _event(name: str, **data: Any) -> bytes:
    return f"event: {name}\n".encode() + _line({"type": name, **data})


def _events(path: str, body: Json) -> Iterator[bytes]:
    if path.endswith("/messages"):
        yield from _anthropic_events(body)
        return
    if not path.endswith("/chat/completions"):
        raise ValueError(f"no streamed form of {path}")
    whole = _completion(body)
    base = {key: whole[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    choice = whole["choices"][0]
    for delta in _deltas(choice["message"]):
        yield _line({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _line({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    yield _line({**base, "choices": [], "usage": USAGE})
    yield b"data: [DONE]\n\n"


def _deltas(message: Json) -> Iterator[Json]:
    if message["content"] is None:
        yield {"role": "assistant", "tool_calls": [{"index": 0, **message["tool_calls"][0]}]}
        return
    yield {"role": "assistant", "content": ""}
    for word in message["content"].split(" "):
        yield {"content": word if word == "It" else " " + word}


def _line(chunk: Json) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
