"""The provider that recorded libraries and clients talk to: known answers in the forms of OpenAI and of Anthropic.

An answer is a call of the first tool when tools are offered and none has answered yet, else a sentence, or an object
when the request has a schema for it. The model `model-missing` is answered with 404. Token counts are always the same.
"""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]

SENTENCE = "It is 18 degrees in Paris."
THOUGHT = "The user wants the weather in Paris."
KNOWN = {"city": "Paris", "degrees": 18, "answer": SENTENCE}
"""What arguments and objects are filled with; properties of other names get the least value of their type."""
MISSING = {"error": {"message": "no such model: model-missing", "type": "invalid_request_error", "code": "not_found"}}
FINAL = "final_answer"
"""The tool by which agents of some libraries answer."""
_ANSWERED = ('"tool"', '"tool_result"', '"function_call_output"', r"Observation:\n")
_LEAST = {"string": "", "integer": 0, "number": 0.5, "boolean": True, "array": [], "object": {}}


@dataclass(frozen=True)
class Provider:
    """How it answers: what follows the name of the model in answers, and its figures."""

    dated: str = "-2026-01-01"
    reasoning_tokens: int = 12

    @property
    def usage(self) -> Json:
        """The usage of a chat completion."""
        return {
            "prompt_tokens": 120,
            "completion_tokens": 30,
            "total_tokens": 150,
            "prompt_tokens_details": {"cached_tokens": 64},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }

    @property
    def responses_usage(self) -> Json:
        """The same of a response."""
        return {
            "input_tokens": 120,
            "output_tokens": 30,
            "total_tokens": 150,
            "input_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }

    @property
    def anthropic_usage(self) -> Json:
        """The same of a message, which counts cached tokens apart."""
        return {
            "input_tokens": 20,
            "output_tokens": 30,
            "cache_read_input_tokens": 64,
            "cache_creation_input_tokens": 16,
        }

    def start(self, port: int = 0) -> str:
        """Serve in the background; the base address without `/v1`."""
        server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"provider": self}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    def whole(self, path: str, body: Json) -> Json:
        """The answer of a request that is no stream."""
        if path.endswith("/embeddings"):
            vector = {"object": "embedding", "index": 0, "embedding": [0.25, 0.5, 0.75]}
            usage = {"prompt_tokens": 5, "total_tokens": 5}
            return {"object": "list", "model": body["model"], "data": [vector], "usage": usage}
        if path.endswith("/responses"):
            return self._response(body)
        if path.endswith("/messages"):
            return self._anthropic(body)
        return self._completion(body)

    def events(self, path: str, body: Json) -> Iterator[bytes]:
        """The answer of a request as a stream."""
        if path.endswith("/messages"):
            return _anthropic_events(self._anthropic(body))
        if path.endswith("/responses"):
            return _response_events(self._response(body))
        if path.endswith("/chat/completions"):
            return _chunks(self._completion(body))
        raise ValueError(f"no streamed form of {path}")

    def _completion(self, body: Json) -> Json:
        message: Json = {"role": "assistant", "content": _text(body, _schema_of(body.get("response_format")))}
        if tool := _tool(body):
            function = {"name": _name(tool), "arguments": json.dumps(_arguments(tool))}
            call = {"id": f"call_{_turn(body)}", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        finish = "tool_calls" if "tool_calls" in message else "stop"
        return {
            "id": f"chatcmpl-{_turn(body)}",
            "object": "chat.completion",
            "created": 1700000000,
            "model": body["model"] + self.dated,
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": self.usage,
        }

    def _response(self, body: Json) -> Json:
        thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": THOUGHT}]}
        wanted = _text(body, _schema_of((body.get("text") or {}).get("format")))
        text = {"type": "output_text", "text": wanted, "annotations": []}
        answer: Json = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text]}
        if tool := _tool(body, "input"):
            call_id = f"call_{_turn(body, 'input')}"
            answer = {"type": "function_call", "id": "fc_1", "call_id": call_id, "status": "completed"}
            answer |= {"name": _name(tool), "arguments": json.dumps(_arguments(tool))}
        return {
            "id": f"resp_{_turn(body, 'input')}",
            "object": "response",
            "created_at": 1700000000,
            "status": "completed",
            "model": body["model"] + self.dated,
            "output": [thought, answer],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": self.responses_usage,
        }

    def _anthropic(self, body: Json) -> Json:
        content: list[Json] = [{"type": "thinking", "thinking": THOUGHT, "signature": "c2ln"}]
        if tool := _tool(body):
            call_id = f"toolu_{_turn(body)}"
            content.append({"type": "tool_use", "id": call_id, "name": _name(tool), "input": _arguments(tool)})
        else:
            content.append({"type": "text", "text": _text(body, None)})
        return {
            "id": f"msg_{_turn(body)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "tool_use" if content[-1]["type"] == "tool_use" else "end_turn",
            "stop_sequence": None,
            "usage": self.anthropic_usage,
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    provider: Provider

    def do_POST(self) -> None:
        body: Json = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path = self.path.partition("?")[0]
        if body["model"] == "model-missing":
            self._send(404, json.dumps(MISSING).encode(), "application/json")
        elif body.get("stream"):
            self._send(200, b"".join(self.provider.events(path, body)), "text/event-stream")
        else:
            self._send(200, json.dumps(self.provider.whole(path, body)).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def _turn(body: Json, key: str = "messages") -> int:
    return 2 if any(word in json.dumps(body.get(key)) for word in _ANSWERED) else 1


def _name(tool: Json) -> str:
    return str(tool.get("function", tool)["name"])


def _tool(body: Json, key: str = "messages") -> Json | None:
    """The tool that the answer calls: the first one, then that which gives the final answer, if there is one."""
    tools = [tool for tool in body.get("tools") or () if "name" in tool.get("function", tool)]
    wanted = [tool for tool in tools if (_name(tool) == FINAL) == (_turn(body, key) == 2)]
    return wanted[0] if wanted and (_turn(body, key) == 1 or _name(wanted[0]) == FINAL) else None


def _arguments(tool: Json) -> Json:
    function = tool.get("function", tool)
    schema = function.get("parameters") or function.get("input_schema") or {}
    return _fill(schema if schema.get("properties") else {"properties": {"city": {}}})


def _schema_of(wanted: Json | None) -> Json | None:
    """The schema of a `response_format` or a `text.format`."""
    wanted = wanted or {}
    schema = wanted.get("schema") or (wanted.get("json_schema") or {}).get("schema")
    return schema if isinstance(schema, dict) else None


def _fill(schema: Json) -> Json:
    """An object of the schema."""
    properties = schema.get("properties", {})
    return {name: KNOWN.get(name, _LEAST.get(kind.get("type", "string"))) for name, kind in properties.items()}


def _text(body: Json, schema: Json | None) -> str:
    if schema is not None:
        return json.dumps(_fill(schema))
    # Signatures of DSPy are answered field by field.
    if "[[ ## completed ## ]]" in json.dumps(body):
        return f"[[ ## answer ## ]]\n{SENTENCE}\n\n[[ ## completed ## ]]"
    return SENTENCE


def _anthropic_events(whole: Json) -> Iterator[bytes]:
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


def _response_events(whole: Json) -> Iterator[bytes]:
    numbered: list[Json] = []
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    numbered.append({"type": "response.created", "response": begun})
    for index, item in enumerate(whole["output"]):
        numbered.append({"type": "response.output_item.added", "output_index": index, "item": _opened(item)})
        place = {"output_index": index, "item_id": item["id"]}
        if item["type"] == "message":
            numbered += _text_events({**place, "content_index": 0}, item["content"][0])
        elif item["type"] == "function_call":
            arguments = item["arguments"]
            numbered.append({"type": "response.function_call_arguments.delta", **place, "delta": arguments})
            numbered.append({"type": "response.function_call_arguments.done", **place, "arguments": arguments})
        numbered.append({"type": "response.output_item.done", "output_index": index, "item": item})
    numbered.append({"type": "response.completed", "response": whole})
    for number, event in enumerate(numbered):
        yield _event(**{"name": event.pop("type"), "sequence_number": number, **event})


def _opened(item: Json) -> Json:
    """An item of a response before it has a content."""
    empty: Json = {"message": {"content": []}, "function_call": {"arguments": ""}}.get(item["type"], {})
    return {**item, **empty, **({"status": "in_progress"} if "status" in item else {})}


def _text_events(place: Json, part: Json) -> Iterator[Json]:
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    for word in _words(part["text"]):
        yield {"type": "response.output_text.delta", **place, "delta": word, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": part}


def _chunks(whole: Json) -> Iterator[bytes]:
    base = {key: whole[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    choice = whole["choices"][0]
    for delta in _deltas(choice["message"]):
        yield _line({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _line({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    yield _line({**base, "choices": [], "usage": whole["usage"]})
    yield b"data: [DONE]\n\n"


def _deltas(message: Json) -> Iterator[Json]:
    if message["content"] is None:
        yield {"role": "assistant", "tool_calls": [{"index": 0, **message["tool_calls"][0]}]}
        return
    yield {"role": "assistant", "content": ""}
    for word in _words(message["content"]):
        yield {"content": word}


def _words(text: str) -> Iterator[str]:
    for number, word in enumerate(text.split(" ")):
        yield f" {word}" if number else word


def _line(chunk: Json) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"
