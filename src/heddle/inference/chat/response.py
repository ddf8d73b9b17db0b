"""What a client receives: the whole answer, or the chunks of a stream, in one place and from the same parts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from heddle.inference.chat.choice import Choice, Delta
from heddle.inference.engine.base import TokenLogprobs
from heddle.inference.tokenization.tokenizer import Tokenizer
from heddle.inference.tools.parser import CallArguments, CallStart
from heddle.wire.jsontypes import Json


@dataclass(frozen=True, slots=True)
class Shape:
    """What of the answer is wanted, and what is the same in all its parts."""

    id: str
    created: int
    model: str
    fingerprint: str
    role: str
    echo: str
    tokenizer: Tokenizer
    logprobs: bool = False
    names_as_ids: bool = False
    logprobs_temperature: float | None = None
    """Named beside logprobs that are not raw."""
    token_ids: bool = False
    prompt_ids: bool = False
    """The prompt's token ids, for the whole answer."""
    prompt_ids_in_choices: bool = False
    """The same in each choice, which is what becomes part of a trajectory."""
    include_usage: bool = False
    usage_in_every_chunk: bool = False
    reasons: bool = False
    """Whether the model has reasoning blocks; usage then counts their tokens."""


@dataclass(slots=True)
class Facts:
    """What the engine said with the first token, and how the prompt went."""

    prompt_token_ids: tuple[int, ...]
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    kv_transfer_params: Json | None = None


def completion(shape: Shape, facts: Facts, choices: Sequence[Choice]) -> Json:
    """The body of a `chat.completion` (interface, section 2.2)."""
    return {
        "id": shape.id,
        "object": "chat.completion",
        "created": shape.created,
        "model": shape.model,
        "choices": [{**_choice(shape, choice), **_for_training(shape, facts)} for choice in choices],
        "service_tier": None,
        "system_fingerprint": shape.fingerprint,
        "usage": usage(shape, facts, *_made(choices)),
        "prompt_logprobs": _prompt_logprobs(shape, facts),
        "prompt_token_ids": list(facts.prompt_token_ids) if shape.prompt_ids else None,
        "kv_transfer_params": facts.kv_transfer_params,
    }


def usage(shape: Shape, facts: Facts, made: int, reasoned: int, brief: bool = False) -> Json:
    """Tokens of the prompt, once, and of all choices together; `brief` leaves the cache out."""
    prompt = len(facts.prompt_token_ids)
    counted: Json = {"prompt_tokens": prompt, "total_tokens": prompt + made, "completion_tokens": made}
    if not brief:
        counted["prompt_tokens_details"] = {"cached_tokens": facts.cached_tokens}
    if shape.reasons:
        counted["completion_tokens_details"] = {"reasoning_tokens": reasoned}
    return counted


def _made(choices: Sequence[Choice]) -> tuple[int, int]:
    """Tokens of all choices, and those of them that are reasoning."""
    return sum(choice.completion_tokens for choice in choices), sum(choice.reasoning_tokens for choice in choices)


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
    if calls:
        message["tool_calls"] = calls
    return {
        "index": choice.index,
        "message": message,
        "logprobs": _logprobs(shape, choice.logprobs),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": (choice.token_ids or None) if shape.token_ids else None,
    }


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
    return {"content": [_logprob_item(shape, item) for item in items]}


def _logprob_item(shape: Shape, item: TokenLogprobs) -> Json:
    top = [_token(shape, token_id, logprob) for token_id, logprob in item.top]
    return {**_token(shape, item.token_id, item.logprob), "top_logprobs": top}


def _token(shape: Shape, token_id: int, logprob: float) -> Json:
    name = f"token_id:{token_id}" if shape.names_as_ids else shape.tokenizer.token_text(token_id)
    return {"token": name, "logprob": logprob, "bytes": list(shape.tokenizer.token_bytes(token_id))}


def _prompt_logprobs(shape: Shape, facts: Facts) -> list[Json | None] | None:
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


class Chunks:
    """Makes the chunks of one stream, in the order that clients know from servers of this wire."""

    def __init__(self, shape: Shape, facts: Facts, choices: Sequence[Choice]) -> None:
        self._shape = shape
        self._facts = facts
        self._choices = choices
        self._told = dict.fromkeys(range(len(choices)), (0, 0))
        """Tokens, and those of reasoning, that the chunks of each choice have told so far."""
        self._head = {"id": shape.id, "object": "chat.completion.chunk", "created": shape.created, "model": shape.model}

    def opening(self) -> Iterator[Json]:
        """The role of every choice, then the echoed text."""
        shape, facts = self._shape, self._facts
        first: Json = {"prompt_token_ids": list(facts.prompt_token_ids) if shape.prompt_ids else None}
        if facts.prompt_logprobs is not None:
            first["prompt_logprobs"] = _prompt_logprobs(shape, facts)
        for choice in self._choices:
            delta = {"role": shape.role, "content": ""}
            part = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
            chunk = self._chunk({**part, **_for_training(shape, facts)})
            yield {**chunk, **first}
            first = {"prompt_token_ids": None}
        for choice in self._choices if shape.echo else ():
            yield self._chunk(
                {"index": choice.index, "delta": {"content": shape.echo}, "logprobs": None, "finish_reason": None}
            )

    def delta(self, index: int, delta: Delta) -> Json | None:
        """The chunk of new tokens; None when the client would learn nothing from it."""
        shape = self._shape
        self._told[index] = (delta.completion_tokens, delta.reasoning_tokens)
        if delta.is_silent and not (delta.token_ids and (shape.token_ids or shape.logprobs)):
            return None
        said: Json = {}
        if delta.reasoning:
            said["reasoning"] = delta.reasoning
        if delta.content:
            said["content"] = delta.content
        if delta.calls:
            said["tool_calls"] = [_call_delta(part) for part in delta.calls]
        part: Json = {
            "index": index,
            "delta": said,
            "logprobs": _logprobs(shape, delta.logprobs),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            part["stop_reason"] = delta.stop_reason
        part["token_ids"] = (delta.token_ids or None) if shape.token_ids else None
        chunk = self._chunk(part)
        if delta.finish_reason is not None and not shape.include_usage:
            chunk["system_fingerprint"] = shape.fingerprint
        return chunk

    def closing(self) -> Json | None:
        """The usage of the whole answer, where it is wanted."""
        if not self._shape.include_usage:
            return None
        counted = usage(self._shape, self._facts, *_made(self._choices))
        return {**self._head, "choices": [], "usage": counted, "system_fingerprint": self._shape.fingerprint}

    def _chunk(self, choice: Json) -> Json:
        chunk: Json = {**self._head, "choices": [choice]}
        if self._shape.usage_in_every_chunk:
            made, reasoned = (sum(counts) for counts in zip(*self._told.values(), strict=True))
            chunk["usage"] = usage(self._shape, self._facts, made, reasoned, brief=True)
        return chunk


def _call_delta(part: CallStart | CallArguments) -> Json:
    if isinstance(part, CallStart):
        return {
            "id": part.id,
            "type": "function",
            "index": part.index,
            "function": {"name": part.name, "arguments": ""},
        }
    return {"index": part.index, "function": {"arguments": part.text}}
