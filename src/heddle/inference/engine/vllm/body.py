"""A request in the words of vLLM's POST /v1/completions, in which token ids go in and come back."""

import json
import re
from collections.abc import Callable, Iterable

import orjson

from heddle.inference.engine.base import RequestRefused, Sampling, TokenRequest
from heddle.wire.jsontypes import Json

Decode = Callable[[tuple[int, ...]], str]
_SIGN = 1 << 63
_MOST = 2**31 - 1
_PIECE = re.compile(r'"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\\n])+/|@(\w+)')
"""A string, a regular expression, or a reference to another grammar."""


def streams(request: TokenRequest) -> bool:
    """Whether the answer comes token by token: log-probabilities of the prompt and what a connector says do not."""
    return request.sampling.prompt_logprobs is None and not request.kv_transfer_params


def body_of(request: TokenRequest, model: str, decode: Decode) -> bytes:
    """The JSON of a request; `decode` gives the text of token ids, which is what forbidden words are.

    Raises RequestRefused for what the server cannot do.
    """
    body: Json = {
        "model": request.adapter.id if request.adapter is not None else model,
        "prompt": list(request.prompt),
        "request_id": request.id,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **_sampling(request.sampling, decode),
        **_output(request),
    }
    if request.priority:
        body["priority"] = request.priority
    if request.cache_salt is not None:
        body["cache_salt"] = request.cache_salt
    if request.kv_transfer_params:
        body["kv_transfer_params"] = dict(request.kv_transfer_params)
    if request.xargs:
        body["vllm_xargs"] = dict(request.xargs)
    if streams(request):
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return orjson.dumps(body)


def _sampling(sampling: Sampling, decode: Decode) -> Json:
    """How tokens are chosen: all of it, as the server has defaults of its own."""
    words: Json = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if sampling.top_k <= _MOST else 0,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "min_tokens": sampling.min_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
    }
    # A seed makes the server draw row by row, so a random one is left to it.
    if sampling.is_seeded:
        words["seed"] = (sampling.seed ^ _SIGN) - _SIGN
    if sampling.logit_bias:
        words["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.allowed_token_ids is not None:
        words["allowed_token_ids"] = list(sampling.allowed_token_ids)
    if sampling.bad_words:
        words["bad_words"] = _words(sampling.bad_words, decode)
    if (rule := sampling.repetition) is not None:
        names = ("max_pattern_size", "min_pattern_size", "min_count")
        words["repetition_detection"] = {name: min(getattr(rule, name), _MOST) for name in names}
    return words


def _words(sequences: Iterable[tuple[int, ...]], decode: Decode) -> list[str]:
    """The texts of forbidden sequences; the server itself adds the form with a blank before it."""
    return list(dict.fromkeys(decode(sequence).lstrip() or decode(sequence) for sequence in sequences))


def _output(request: TokenRequest) -> Json:
    """What the tokens must look like, and what is told about them."""
    sampling, constraint = request.sampling, request.constraint
    if sampling.logprobs is not None and sampling.logprobs_temperature != 1.0:
        raise RequestRefused("vLLM gives raw log-probabilities only", param="temperature")
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
            "ignore_eos and a constraint on the output exclude each other on vLLM, which ends constrained text with "
            "an end-of-sequence token",
            param="ignore_eos",
        )
    return {**words, "structured_outputs": {"grammar": one_lark(constraint.grammar)}}


def one_lark(grammar: str) -> str:
    """A grammar in JSON form as one Lark text, which vLLM hands to llguidance as it is.

    Those that it refers to as `@name` become rules with a nested one.
    """
    first, *others = json.loads(grammar)["grammars"]
    texts = {str(other["name"]): str(other["lark_grammar"]) for other in others}
    return _joined(str(first["lark_grammar"]), texts)


def _joined(lark: str, texts: dict[str, str]) -> str:
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
    nested = [f"other_{name}: %lark {{\n{_joined(texts[name], later[name])}\n}}" for name in found]
    return "\n".join([main, *nested]) + "\n" if nested else main
