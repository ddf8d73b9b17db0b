"""What vLLM answers, as token events: whole bodies, and streams of chunks."""

from collections.abc import Mapping
from typing import Any

import orjson

from heddle.inference.engine.base import FinishReason, TokenEvent, TokenLogprobs, TokenRequest

Json = Mapping[str, Any]
_ENDS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "repetition": "repetition"}
_TOKEN = len("token_id:")
_DATA = b"data: "
_END = b"\n\n"


class Strange(Exception):
    """The server said something that is no answer, or that it failed."""


class Reader:
    """Reads the answer to one request."""

    def __init__(self, request: TokenRequest, eos: tuple[int, ...]) -> None:
        self._policy = request.adapter.id if request.adapter is not None else None
        self._count = request.sampling.logprobs
        self._prompt_count = request.sampling.prompt_logprobs
        # A further end-of-sequence token is to vLLM a stop token, which it names.
        self._nameless = frozenset(eos).difference(request.sampling.stop_token_ids)
        self._rest = b""
        self._ending: Json | None = None
        """The chunk with the finish reason, which waits for the usage that follows."""

    def feed(self, data: bytes) -> TokenEvent | None:
        """Take bytes of a stream; what they complete, as one event. Raises Strange."""
        *lines, self._rest = (self._rest + data).split(_END)
        choices: list[Json] = []
        for line in lines:
            if not line.startswith(_DATA):
                continue
            chunk = _object(line.removeprefix(_DATA)) if line != b"data: [DONE]" else {"choices": [], "usage": {}}
            found = chunk["choices"]
            if found and found[0].get("finish_reason") is not None:
                self._ending = found[0]
            elif found:
                choices.append(found[0])
            elif self._ending is not None:
                ending, self._ending = self._ending, None
                return self._event([*choices, ending], chunk.get("usage") or {})
        return self._event(choices, {}) if choices else None

    def whole(self, data: bytes) -> TokenEvent:
        """The only event of an answer that is no stream. Raises Strange."""
        body = _object(data)
        if not body["choices"]:
            raise Strange("the answer has no choices")
        return self._event([body["choices"][0]], body.get("usage") or {}, body.get("kv_transfer_params"))

    def _event(self, choices: list[Json], usage: Json, transfer: Json | None = None) -> TokenEvent:
        last = choices[-1]
        reason = last.get("finish_reason")
        if reason is not None and reason not in _ENDS:
            raise Strange(f"the request ended with {reason!r}")
        stop = last.get("stop_reason")
        details = usage.get("prompt_tokens_details") or {}
        return TokenEvent(
            token_ids=tuple(token for choice in choices for token in _tokens(choice)),
            logprobs=tuple(item for choice in choices for item in self._logprobs(choice)),
            prompt_logprobs=_prompt_logprobs(last, self._prompt_count),
            cached_tokens=details.get("cached_tokens"),
            finish_reason=_ENDS[reason] if reason is not None else None,
            stop_reason=None if stop in self._nameless else stop,
            policy=self._policy,
            kv_transfer_params=transfer,
        )

    def _logprobs(self, choice: Json) -> list[TokenLogprobs]:
        found = choice.get("logprobs")
        if self._count is None or found is None:
            return []
        return [
            _described(token, own, best, self._count)
            for token, own, best in zip(_tokens(choice), found["token_logprobs"], found["top_logprobs"], strict=True)
        ]


def _tokens(choice: Json) -> list[int]:
    found = choice.get("token_ids")
    if not isinstance(found, list):
        raise Strange("the answer has no token ids; is this vLLM, and not older than 0.32?")
    return found


def _described(token: int, own: float, best: Mapping[str, float], count: int) -> TokenLogprobs:
    """The server lists the chosen token and the best `count`, in which it may be."""
    top = [(int(name[_TOKEN:]), value) for name, value in best.items()]
    if len(top) > count:
        top = [item for item in top if item[0] != token]
    top.sort(key=lambda item: -item[1])
    rank = 1 + sum(value > own for _, value in top)
    return TokenLogprobs(token, own, rank, tuple(top))


def _prompt_logprobs(choice: Json, count: int | None) -> tuple[TokenLogprobs | None, ...] | None:
    """One per prompt token, None for the first."""
    found, tokens = choice.get("prompt_logprobs"), choice.get("prompt_token_ids")
    if count is None or found is None or tokens is None:
        return None
    return tuple(_at(token, entry, count) if entry else None for token, entry in zip(tokens, found, strict=True))


def _at(token: int, entry: Mapping[str, Json], count: int) -> TokenLogprobs:
    """The server lists the real token and the best `count`, each with its rank."""
    own = entry[str(token)]
    best = sorted((item["rank"], int(name), item["logprob"]) for name, item in entry.items() if item["rank"] <= count)
    return TokenLogprobs(token, own["logprob"], own["rank"], tuple((name, value) for _, name, value in best))


def _object(text: bytes) -> Json:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Strange("the answer is no JSON") from None
    if not isinstance(value, dict) or not isinstance(value.get("choices"), list):
        error = value.get("error") if isinstance(value, dict) else None
        said = error.get("message") if isinstance(error, dict) else error
        raise Strange(str(said)[:300] if said else "the answer has no choices")
    return value
