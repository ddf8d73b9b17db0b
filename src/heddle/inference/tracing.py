"""A completion as a call of the trace service, and a stream of chunks as the answer it stands for."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from heddle.wire import times
from heddle.wire.inference import Completion, InferenceCall
from heddle.wire.jsontypes import Json

_MOST_TOKENS = 2**40
"""What a provider reports beyond it is no count."""


def call_of(completion: Completion, project: str) -> InferenceCall:
    """The call that shows a completion in `team/project`."""
    attributes: Json = {
        "kind": "llm",
        "model": completion.model,
        "served_model": completion.served,
        "stream": completion.stream,
        "request_id": completion.request_id,
        "status": completion.status,
    }
    if completion.policy is not None:
        attributes["policy"] = completion.policy
    if completion.first_token_seconds is not None:
        attributes["first_token_seconds"] = completion.first_token_seconds
    call_id = times.uuid7()
    return InferenceCall(
        caller=completion.caller,
        project=project,
        op_name=completion.op_name,
        id=call_id,
        trace_id=times.uuid7(),
        started_at=completion.started_at,
        ended_at=completion.started_at + timedelta(seconds=max(0.0, completion.seconds)),
        inputs=completion.request,
        output=completion.response,
        exception=completion.error,
        attributes=attributes,
        usage=usage_of(completion),
        thread_id=completion.thread_id,
        turn_id=call_id if completion.thread_id is not None else None,
    )


COUNTED = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")


def usage_of(completion: Completion) -> Json:
    """`summary.usage` of a completion; cached tokens are part of the prompt's."""
    if completion.error is not None and not (completion.prompt_tokens or completion.completion_tokens):
        return {}
    return {completion.served or completion.model: _counts(*(getattr(completion, name) for name in COUNTED))}


def _counts(prompt: int, completion: int, cached: int, reasoning: int) -> Json:
    counts = {
        "requests": 1,
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached:
        counts["cache_read_input_tokens"] = cached
    if reasoning:
        counts["reasoning_tokens"] = reasoning
    return counts


def assemble(chunks: Iterable[Json]) -> Json:
    """The `chat.completion` that the chunks of a stream stand for; chunks without choices give their usage."""
    assembly = Assembly()
    for chunk in chunks:
        assembly.add(chunk)
    return assembly.answer()


class Assembly:
    """The same chunk by chunk; of a million chunks only what they say is kept."""

    def __init__(self) -> None:
        self.is_empty = True
        self._fields: Json = {"object": "chat.completion", "choices": []}
        self._choices: dict[int, Json] = {}

    def add(self, chunk: Json) -> None:
        """Take the next chunk."""
        self.is_empty = False
        for key in ("id", "created", "model", "system_fingerprint", "service_tier", "usage"):
            if chunk.get(key) is not None:
                self._fields[key] = chunk[key]
        for part in _dicts(chunk.get("choices")):
            index = part.get("index")
            number = index if isinstance(index, int) else 0
            empty: Json = {"index": number, "message": {"role": "assistant", "content": None}, "finish_reason": None}
            _extend(self._choices.setdefault(number, empty), part)

    def answer(self) -> Json:
        """What they stand for so far."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        for choice in choices:
            message = choice["message"]
            for texts in (message, *(call["function"] for call in message.get("tool_calls") or ())):
                texts |= {key: "".join(value) for key, value in texts.items() if isinstance(value, _Pieces)}
        return {**self._fields, "choices": choices}


class _Pieces(list[str]):
    """The pieces of a text: to join them each time costs the square of their number."""


def _add_text(texts: Json, key: str, text: str) -> None:
    held = texts.get(key)
    if isinstance(held, _Pieces):
        held.append(text)
    else:
        texts[key] = _Pieces((held, text) if isinstance(held, str) else (text,))


def _extend(choice: Json, part: Json) -> None:
    message: Json = choice["message"]
    delta = part.get("delta")
    for key, value in (delta if isinstance(delta, dict) else {}).items():
        if key == "tool_calls":
            _extend_tools(message.setdefault("tool_calls", []), _dicts(value))
        elif isinstance(value, str) and key != "role":
            _add_text(message, key, value)
        elif value is not None:
            message[key] = value
    for key in ("finish_reason", "stop_reason"):
        if part.get(key) is not None:
            choice[key] = part[key]
    logprobs = part.get("logprobs")
    if isinstance(logprobs, dict):
        held = choice.setdefault("logprobs", {})
        for key, items in logprobs.items():
            if isinstance(items, list):
                held.setdefault(key, []).extend(items)
    if isinstance(part.get("token_ids"), list):
        choice.setdefault("token_ids", []).extend(part["token_ids"])


def _extend_tools(calls: list[Json], parts: Iterable[Json]) -> None:
    for part in parts:
        index = part.get("index")
        number = index if isinstance(index, int) else len(calls)
        while len(calls) <= number < len(calls) + 256:
            calls.append({"type": "function", "function": {"name": "", "arguments": ""}})
        if not 0 <= number < len(calls):
            continue
        call, function = calls[number], part.get("function")
        call |= {key: part[key] for key in ("id", "type") if isinstance(part.get(key), str)}
        for key, value in (function if isinstance(function, dict) else {}).items():
            if isinstance(value, str):
                _add_text(call["function"], key, value)


def _dicts(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def tokens_of(response: Json) -> dict[str, int]:
    """The token counts of an answer; what is missing or no number is 0."""
    usage = response.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return {
        "prompt_tokens": _count(usage, "prompt_tokens"),
        "completion_tokens": _count(usage, "completion_tokens"),
        "cached_tokens": _count(usage.get("prompt_tokens_details"), "cached_tokens"),
        "reasoning_tokens": _count(usage.get("completion_tokens_details"), "reasoning_tokens"),
    }


def usage_entry(model: str, response: Json) -> Json:
    """`summary.usage` of an answer, empty when it reports none."""
    if not isinstance(response.get("usage"), dict):
        return {}
    return {model: _counts(*tokens_of(response).values())}


def _count(values: Any, name: str) -> int:
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS else 0
