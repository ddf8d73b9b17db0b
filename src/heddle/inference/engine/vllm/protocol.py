"""POST /v1/completions of vLLM: requests with token ids, and answers as token events."""

import base64
import dataclasses
import json
import re
from collections.abc import Callable, Mapping

import orjson

from heddle.inference.engine.base import FinishReason, RequestRefused, TokenEvent, TokenLogprobs, TokenRequest
from heddle.wire.jsontypes import Json

Decode = Callable[[tuple[int, ...]], str]
_SIGN = 1 << 63
_MOST = 2**31 - 1
_SAME_WORDS = (
    *("max_tokens", "temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "min_tokens", "ignore_eos"),
)
"""Fields of `Sampling` that the server calls the same."""
_PIECE = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\\n])+/|@(\w+)')
"""A string, a regular expression, or a reference to another grammar."""


def is_streamed(request: TokenRequest) -> bool:
    """Whether the answer comes token by token: log-probabilities of the prompt and what a connector says do not."""
    return request.sampling.prompt_logprobs is None and not request.kv_transfer_params


def make_body(request: TokenRequest, model: str, decode: Decode) -> bytes:
    """The JSON of a request, for POST /v1/embeddings where it pools; `decode` gives the text of forbidden words' ids.

    Raises RequestRefused for what the server cannot do.
    """
    if request.pools:
        pooling = {"input": list(request.prompt), "encoding_format": "base64"}
        return orjson.dumps(_common_body(request, model) | pooling)
    sampling = request.sampling
    body = _common_body(request, model) | {name: getattr(sampling, name) for name in _SAME_WORDS}
    body |= {"prompt": list(request.prompt), "return_token_ids": True, "return_tokens_as_token_ids": True}
    body["top_k"] = sampling.top_k if sampling.top_k <= _MOST else 0
    body["stop_token_ids"] = list(sampling.stop_token_ids)
    # A seed makes the server draw row by row, so a random one is left to it.
    if sampling.is_seeded:
        body["seed"] = (sampling.seed ^ _SIGN) - _SIGN
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.allowed_token_ids is not None:
        body["allowed_token_ids"] = list(sampling.allowed_token_ids)
    if sampling.bad_words:
        texts = (decode(sequence) for sequence in sampling.bad_words)
        body["bad_words"] = list(dict.fromkeys(text.lstrip() or text for text in texts))
    if sampling.repetition is not None:
        rule = dataclasses.asdict(sampling.repetition)
        body["repetition_detection"] = {name: min(value, _MOST) for name, value in rule.items()}
    body |= _output(request)
    if request.kv_transfer_params:
        body["kv_transfer_params"] = dict(request.kv_transfer_params)
    if request.xargs:
        body["vllm_xargs"] = dict(request.xargs)
    if is_streamed(request):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return orjson.dumps(body)


def _common_body(request: TokenRequest, model: str) -> Json:
    body: Json = {"model": request.adapter.id if request.adapter is not None else model, "request_id": request.id}
    if request.priority:
        body["priority"] = request.priority
    if request.cache_salt is not None:
        body["cache_salt"] = request.cache_salt
    return body


def _output(request: TokenRequest) -> Json:
    """What the tokens must look like, and what is told about them."""
    sampling, constraint = request.sampling, request.constraint
    if sampling.logprobs is not None and sampling.logprobs_temperature != 1.0:
        raise RequestRefused("vLLM only returns raw log-probabilities", param="temperature")
    if sampling.prompt_choices is not None:
        raise RequestRefused("vLLM does not return log-probabilities of chosen tokens for a prompt")
    words: Json = {}
    if sampling.logprobs is not None:
        words["logprobs"] = sampling.logprobs
    if sampling.prompt_logprobs is not None:
        words["prompt_logprobs"] = sampling.prompt_logprobs
    if constraint is None:
        return words
    if constraint.after:
        raise RequestRefused("a constraint that begins after other tokens must say so in its grammar")
    if sampling.ignore_eos:
        raise RequestRefused(
            "ignore_eos cannot be combined with a constraint on the output on vLLM, which ends constrained "
            "text with an end-of-sequence token",
            param="ignore_eos",
        )
    return {**words, "structured_outputs": {"grammar": join_lark(constraint.grammar)}}


def join_lark(grammar: str) -> str:
    """A grammar in JSON form as one Lark text, which vLLM hands to llguidance as it is.

    Those that it refers to as `@name` become rules with a nested one.
    """
    first, *others = json.loads(grammar)["grammars"]
    texts = {str(other["name"]): str(other["lark_grammar"]) for other in others}
    return _join_grammars(str(first["lark_grammar"]), texts)


def _join_grammars(lark: str, texts: dict[str, str]) -> str:
    found: list[str] = []

    def rule(match: re.Match[str]) -> str:
        name = match[1]
        if name not in texts:
            return match[0]
        if name not in found:
            found.append(name)
        return f"other_{name}"

    main = _PIECE.sub(rule, lark)
    # What a text refers to comes after it, so no text ever holds itself.
    names = list(texts)
    later = {name: {other: texts[other] for other in names[names.index(name) + 1 :]} for name in found}
    nested = [f"other_{name}: %lark {{\n{_join_grammars(texts[name], later[name])}\n}}" for name in found]
    return "\n".join([main, *nested]) + "\n" if nested else main


_ENDS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "repetition": "repetition"}
_TOKEN = len("token_id:")
_DATA = b"data: "
_END = b"\n\n"


class ProtocolError(Exception):
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
        """Take bytes of a stream; what they complete, as one event. Raises ProtocolError."""
        *lines, self._rest = (self._rest + data).split(_END)
        choices: list[Json] = []
        for line in lines:
            if not line.startswith(_DATA):
                continue
            chunk = _parse_object(line.removeprefix(_DATA)) if line != b"data: [DONE]" else {"choices": [], "usage": {}}
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
        """The only event of an answer that is no stream. Raises ProtocolError."""
        body = _parse_object(data)
        if not body["choices"]:
            raise ProtocolError("the answer has no choices")
        return self._event([body["choices"][0]], body.get("usage") or {}, body.get("kv_transfer_params"))

    def _event(self, choices: list[Json], usage: Json, transfer: Json | None = None) -> TokenEvent:
        last = choices[-1]
        reason = last.get("finish_reason")
        if reason is not None and reason not in _ENDS:
            raise ProtocolError(f"the request ended with {reason!r}")
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
            _read_logprob(token, own, best, self._count)
            for token, own, best in zip(_tokens(choice), found["token_logprobs"], found["top_logprobs"], strict=True)
        ]


def read_embedding(data: bytes, request: TokenRequest) -> TokenEvent:
    """The answer to a request that pools, as its only event; raises ProtocolError."""
    try:
        (entry,) = orjson.loads(data)["data"]
        state = base64.b64decode(entry["embedding"], validate=True)
    except (ValueError, KeyError, TypeError):
        raise ProtocolError("the answer is not an embedding") from None
    policy = request.adapter.id if request.adapter is not None else None
    return TokenEvent(token_ids=(), finish_reason="stop", policy=policy, state=state)


def _tokens(choice: Json) -> list[int]:
    found = choice.get("token_ids")
    if not isinstance(found, list):
        raise ProtocolError("the answer has no token ids; is this vLLM, and not older than 0.32?")
    return found


def _read_logprob(token: int, own: float, best: Mapping[str, float], count: int) -> TokenLogprobs:
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
    return tuple(
        _read_prompt_logprob(token, entry, count) if entry else None for token, entry in zip(tokens, found, strict=True)
    )


def _read_prompt_logprob(token: int, entry: Mapping[str, Json], count: int) -> TokenLogprobs:
    """The server lists the real token and the best `count`, each with its rank."""
    own = entry[str(token)]
    best = sorted((item["rank"], int(name), item["logprob"]) for name, item in entry.items() if item["rank"] <= count)
    return TokenLogprobs(token, own["logprob"], own["rank"], tuple((name, value) for _, name, value in best))


def _parse_object(text: bytes) -> Json:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ProtocolError("the answer is not JSON") from None
    if not isinstance(value, dict) or not isinstance(value.get("choices"), list):
        error = value.get("error") if isinstance(value, dict) else None
        said = error.get("message") if isinstance(error, dict) else error
        raise ProtocolError(str(said)[:300] if said else "the answer has no choices")
    return value
