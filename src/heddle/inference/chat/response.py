"""What a client of chat completions receives: the whole answer, or the chunks of a stream, from the same parts."""

from collections.abc import Sequence
from typing import Any

from heddle.errors import HeddleError
from heddle.http import failures
from heddle.inference.chat.fields import unknown_fields
from heddle.inference.chat.generation import Choice, Delta, Facts
from heddle.inference.chat.request import ChatRequest, parse_request
from heddle.inference.chat.wire import Answer, ParsedRequest, Shape, TokenCounts, Wire, count_tokens
from heddle.inference.engine.base import TokenLogprobs
from heddle.inference.tools.parser import CallArguments, CallStart
from heddle.wire.jsontypes import Json


def usage(shape: Shape, counts: TokenCounts, brief: bool = False) -> Json:
    """Tokens of the prompt, once, and of all choices together; `brief` leaves the cache out."""
    counted: Json = {
        "prompt_tokens": counts.prompt,
        "total_tokens": counts.prompt + counts.output,
        "completion_tokens": counts.output,
    }
    if not brief:
        counted["prompt_tokens_details"] = {"cached_tokens": counts.cached}
    if shape.reasons:
        counted["completion_tokens_details"] = {"reasoning_tokens": counts.reasoning}
    return counted


def _choice(shape: Shape, choice: Choice) -> Json:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in choice.calls
    ]
    content = shape.echo + choice.content
    message: Json = {
        "role": shape.role,
        "content": None if not content and (calls or choice.reasoning) else content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": choice.reasoning or None,
    }
    if calls and shape.function_call:
        message["function_call"] = calls[0]["function"]
    elif calls:
        message["tool_calls"] = calls
    return {
        "index": choice.index,
        "message": message,
        "logprobs": _logprobs(shape, choice.logprobs),
        "finish_reason": _finish_reason(shape, choice.finish_reason),
        "stop_reason": choice.stop_reason,
        "token_ids": (choice.token_ids or None) if shape.token_ids else None,
    }


def _finish_reason(shape: Shape, reason: str | None) -> str | None:
    return "function_call" if shape.function_call and reason == "tool_calls" else reason


def _for_training(shape: Shape, facts: Facts) -> Json:
    """What a choice of a trainable model carries into a trajectory, where it is out of the ordinary."""
    extra: Json = {}
    if shape.logprobs_temperature is not None:
        extra["logprobs_temperature"] = shape.logprobs_temperature
    if shape.prompt_ids_in_choices:
        extra["prompt_token_ids"] = list(facts.prompt_token_ids)
    return extra


def _logprobs(shape: Shape, items: Sequence[TokenLogprobs]) -> Json | None:
    if not shape.logprobs or not items:
        return None
    return {"content": shape.describe_logprobs(items)}


def show_prompt_logprobs(shape: Shape, facts: Facts) -> list[Json | None] | None:
    """One object per token of the prompt, by token id; None where nobody asked."""
    if facts.prompt_logprobs is None:
        return None
    return [None if item is None else _prompt_logprob(shape, item) for item in facts.prompt_logprobs]


def _prompt_logprob(shape: Shape, item: TokenLogprobs) -> Json:
    """The real token first, then the best ones; ranks of these follow from their order."""
    ranked = [(item.token_id, item.logprob, item.rank)]
    ranked += [(token, logprob, place) for place, (token, logprob) in enumerate(item.top, 1) if token != item.token_id]
    return {
        str(token): {"logprob": logprob, "rank": rank, "decoded_token": shape.tokenizer.token_text(token)}
        for token, logprob, rank in ranked
    }


class ChunkedAnswer(Answer):
    """An answer whose events are chunks of its own form, the last of them with the usage."""

    def __init__(self, kind: str, shape: Shape, facts: Sequence[Facts], choices: Sequence[Choice]) -> None:
        """`kind` is the `object` of its chunks."""
        super().__init__(shape, facts, choices)
        self._head = {"id": shape.id, "object": kind, "created": shape.created, "model": shape.model}

    def closing(self) -> list[Json]:
        """The usage of the whole answer, where it is wanted."""
        if not self.shape.include_usage:
            return []
        counted = usage(self.shape, count_tokens(self.facts, self.choices))
        return [{**self._head, "choices": [], "usage": counted, "system_fingerprint": self.shape.fingerprint}]

    def failure(self, error: HeddleError) -> list[Json]:
        """The error in the place of a chunk."""
        return [failures.openai_body(error)]


class ChatAnswer(ChunkedAnswer):
    """A `chat.completion`, or its chunks in the order that clients know from servers of this wire."""

    def __init__(self, shape: Shape, facts: Sequence[Facts], choices: Sequence[Choice]) -> None:
        super().__init__("chat.completion.chunk", shape, facts, choices)
        (self._facts,) = facts
        self._told = dict.fromkeys(range(len(choices)), (0, 0))
        """Tokens, and those of reasoning, that the chunks of each choice have told so far."""

    def body(self) -> Json:
        """The `chat.completion` (interface, section 2.2)."""
        shape, facts = self.shape, self._facts
        return {
            "id": shape.id,
            "object": "chat.completion",
            "created": shape.created,
            "model": shape.model,
            "choices": [{**_choice(shape, choice), **_for_training(shape, facts)} for choice in self.choices],
            "service_tier": None,
            "system_fingerprint": shape.fingerprint,
            "usage": usage(shape, count_tokens(self.facts, self.choices)),
            "prompt_logprobs": show_prompt_logprobs(shape, facts),
            "prompt_token_ids": list(facts.prompt_token_ids) if shape.prompt_ids else None,
            "kv_transfer_params": facts.kv_transfer_params,
        }

    def opening(self) -> list[Json]:
        """The role of every choice, then the echoed text."""
        shape, facts, chunks = self.shape, self._facts, []
        first: Json = {"prompt_token_ids": list(facts.prompt_token_ids) if shape.prompt_ids else None}
        if facts.prompt_logprobs is not None:
            first["prompt_logprobs"] = show_prompt_logprobs(shape, facts)
        for choice in self.choices:
            delta = {"role": shape.role, "content": ""}
            part = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
            chunk = self._chunk({**part, **_for_training(shape, facts)})
            chunks.append({**chunk, **first})
            first = {"prompt_token_ids": None}
        for choice in self.choices if shape.echo else ():
            part = {"index": choice.index, "delta": {"content": shape.echo}, "logprobs": None, "finish_reason": None}
            chunks.append(self._chunk(part))
        return chunks

    def delta(self, index: int, delta: Delta) -> list[Json]:
        """The chunk of new tokens."""
        shape = self.shape
        self._told[index] = (delta.completion_tokens, delta.reasoning_tokens)
        if delta.is_silent and not (delta.token_ids and (shape.token_ids or shape.logprobs)):
            return []
        said: Json = {}
        if delta.reasoning:
            said["reasoning"] = delta.reasoning
        if delta.content:
            said["content"] = delta.content
        calls = [piece for piece in delta.pieces if isinstance(piece, CallStart | CallArguments)]
        if calls and shape.function_call:
            said["function_call"] = _function_delta(calls)
        elif calls:
            said["tool_calls"] = _call_deltas(calls)
        part: Json = {
            "index": index,
            "delta": said,
            "logprobs": _logprobs(shape, delta.logprobs),
            "finish_reason": _finish_reason(shape, delta.finish_reason),
        }
        if delta.finish_reason is not None:
            part["stop_reason"] = delta.stop_reason
        part["token_ids"] = (delta.token_ids or None) if shape.token_ids else None
        chunk = self._chunk(part)
        if delta.finish_reason is not None and not shape.include_usage:
            chunk["system_fingerprint"] = shape.fingerprint
        return [chunk]

    def _chunk(self, choice: Json) -> Json:
        chunk: Json = {**self._head, "choices": [choice]}
        if self.shape.usage_in_every_chunk:
            made, reasoned = (sum(counts) for counts in zip(*self._told.values(), strict=True))
            counts = TokenCounts(len(self._facts.prompt_token_ids), self._facts.cached_tokens, made, reasoned)
            chunk["usage"] = usage(self.shape, counts, brief=True)
        return chunk


def _function_delta(parts: Sequence[CallStart | CallArguments]) -> Json:
    """The parts of the only call, as one."""
    said: Json = {}
    for part in parts:
        if isinstance(part, CallStart):
            said["name"] = part.name
        else:
            said["arguments"] = said.get("arguments", "") + part.text
    return {"arguments": ""} | said if "name" in said else said


def _call_deltas(parts: Sequence[CallStart | CallArguments]) -> list[Json]:
    """One entry for each call that the parts are of: clients take an entry a chunk for all there is of its call."""
    said: dict[int, Json] = {}
    for part in parts:
        if isinstance(part, CallStart):
            function = {"name": part.name, "arguments": ""}
            said[part.index] = {"id": part.id, "type": "function", "index": part.index, "function": function}
        else:
            entry = said.setdefault(part.index, {"index": part.index, "function": {"arguments": ""}})
            entry["function"]["arguments"] += part.text
    return list(said.values())


class ChatWire(Wire):
    """POST /v1/chat/completions."""

    op_name = "heddle.chat.completions"
    id_prefix = "chatcmpl-"
    last_event = b"data: [DONE]\n\n"
    names_events = False
    carries_rollouts = True

    def read(self, body: Any) -> ParsedRequest:
        """The request as it stands."""
        return ParsedRequest(parse_request(body), ChatAnswer, ignored=tuple(unknown_fields(ChatRequest, body)))


CHAT = ChatWire()
