"""One request inside the engine: its tokens, what the penalties count, and the keys of its blocks."""

from array import array
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from heddle.inference.engine.base import FinishReason, RepetitionRule, Sampling, TokenRequest

if TYPE_CHECKING:
    from heddle.inference.engine.local.grammar import Matcher
    from heddle.models.interfaces import Lane, Span


_FIRST_ROOM = 256


class TokenCounts:
    """The different tokens of a prompt and its output, and how often the output has each; grows token by token."""

    def __init__(self, prompt: Rows[int], sampling: Sampling) -> None:
        known = list(dict.fromkeys(prompt)) if sampling.repetition_penalty != 1.0 else []
        self.repetition = sampling.repetition_penalty
        self.frequency = sampling.frequency_penalty
        self.presence = sampling.presence_penalty
        self._places = {token: place for place, token in enumerate(known)}
        self._ids: NDArray[np.int64] = np.zeros(len(known) + _FIRST_ROOM, dtype=np.int64)
        self._counts: NDArray[np.float32] = np.zeros(len(known) + _FIRST_ROOM, dtype=np.float32)
        self._ids[: len(known)] = known

    @staticmethod
    def needed(sampling: Sampling) -> bool:
        """Whether any of the three penalties does something."""
        return (sampling.repetition_penalty, sampling.frequency_penalty, sampling.presence_penalty) != (1.0, 0.0, 0.0)

    def add(self, token: int) -> None:
        """Count one generated token."""
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1

    @property
    def ids(self) -> NDArray[np.int64]:
        """The different tokens."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Times in the output, for each of `ids`."""
        return self._counts[: len(self._places)]


RawLogprobs = tuple[int, float, int, tuple[tuple[int, float], ...]]
"""Token id, logprob, rank, the k best: the fields of TokenLogprobs."""

End = tuple[FinishReason, int | str | None]
"""Finish and stop reason."""

_MASK64 = (1 << 64) - 1
BLOCK_TOKENS = 16
_DIGEST_BYTES = 16


def chain_root(adapter: str | None, salt: str | None) -> bytes:
    """The start of a chain: sequences share blocks only below the same adapter version and salt."""
    return blake2b(repr((adapter, salt)).encode(), digest_size=_DIGEST_BYTES).digest()


def extend_chain(keys: list[bytes], root: bytes, tokens: Rows[int], end: int) -> None:
    """Append the keys of the full blocks of `tokens[:end]` that `keys` lacks."""
    parent = keys[-1] if keys else root
    for start in range(len(keys) * BLOCK_TOKENS, end - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        content = array("q", tokens[start : start + BLOCK_TOKENS]).tobytes()
        parent = blake2b(content, key=parent, digest_size=_DIGEST_BYTES).digest()
        keys.append(parent)


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens of a request and how far they are computed.

    `tokens` is prompt then output; `computed` of them have keys and values in `lane`. A sequence is due for a new
    token when all its tokens are computed.
    """

    number: int
    request: TokenRequest
    arrival: int
    tokens: list[int]
    prompt_tokens: int
    seed: int
    """The request's seed, mixed once, as an unsigned 64-bit number."""
    computed: int = 0
    lane: "Lane | None" = None
    lane_blocks: int = 0
    keys: list[bytes] = field(default_factory=list)
    saved_blocks: int = 0
    """Leading blocks that were offered to the prefix cache."""
    cached_tokens: int | None = None
    """Prompt tokens taken from the cache at the first start; None before it."""
    prompt_logprobs: list[RawLogprobs | None] | None = None
    matcher: "Matcher | None" = None
    counts: "TokenCounts | None" = None
    span: "Span | None" = None
    started: bool = False
    """The first event has been delivered."""

    @classmethod
    def of(cls, number: int, request: TokenRequest, arrival: int) -> "Sequence":
        """A new sequence; nothing is computed."""
        wants_prompt = request.sampling.prompt_logprobs is not None
        return cls(
            number=number,
            request=request,
            arrival=arrival,
            tokens=list(request.prompt),
            prompt_tokens=len(request.prompt),
            seed=mix_seed(request.sampling.seed),
            prompt_logprobs=[None] if wants_prompt else None,
        )

    @property
    def order(self) -> tuple[int, int]:
        """What is served first: the lower priority number, then the earlier arrival."""
        return (self.request.priority, self.arrival)

    @property
    def remaining(self) -> int:
        """Tokens without keys and values."""
        return len(self.tokens) - self.computed

    @property
    def room(self) -> int:
        """Tokens that its lane must have room for when it starts: all of them, and the next one."""
        return len(self.tokens) + (not self.request.pools)

    @property
    def output_count(self) -> int:
        """Generated tokens."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def adapter_id(self) -> str | None:
        """The version that makes the tokens."""
        return self.request.adapter.id if self.request.adapter else None

    def block_keys(self, end: int) -> list[bytes]:
        """Chain keys of the full blocks among the first `end` tokens."""
        if len(self.keys) < end // BLOCK_TOKENS:
            extend_chain(self.keys, chain_root(self.adapter_id, self.request.cache_salt), self.tokens, end)
        return self.keys[: end // BLOCK_TOKENS]


@dataclass(slots=True)
class Event:
    """What one step did for one request; `token` is None when it only ended."""

    number: int
    token: int | None
    logprobs: RawLogprobs | None = None
    first: tuple[int, list[RawLogprobs | None] | None] | None = None
    """Cached tokens and prompt logprobs, with the first event."""
    end: End | None = None
    """Finish and stop reason, with the last event."""
    failure: Exception | None = None
    state: bytes | None = None
    """Of a request that pools."""

    def packed(self) -> tuple[Any, ...]:
        """The event as a short tuple, for the wire between the processes."""
        if self.logprobs is None and self.first is None and self.end is None:
            return (self.number, self.token)
        return (self.number, self.token, self.logprobs, self.first, self.end, self.state)


def mix_seed(value: int) -> int:
    """Scramble 64 bits (a step of splitmix64), so that near seeds give unrelated streams."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def find_end(sequence: Sequence, eos: tuple[int, ...]) -> End | None:
    """Finish and stop reason after the newest token, or None to go on."""
    sampling = sequence.request.sampling
    output, token = sequence.output_count, sequence.tokens[-1]
    if output >= sampling.min_tokens:
        if token in eos and not sampling.ignore_eos:
            return ("stop", None)
        if token in sampling.stop_token_ids:
            return ("stop", token)
    if output >= sampling.max_tokens:
        return ("length", None)
    if sequence.matcher is not None and sequence.matcher.complete and not _can_draw_end(sequence, eos):
        return ("stop", None)
    rule = sampling.repetition
    if (
        rule is not None
        and output >= sampling.min_tokens
        and is_repeating(sequence.tokens, sequence.prompt_tokens, rule)
    ):
        return ("repetition", "repetition_detected")
    return None


def _can_draw_end(sequence: Sequence, eos: tuple[int, ...]) -> bool:
    """Whether a finished grammar may be followed by an end-of-sequence token that ends the request."""
    sampling = sequence.request.sampling
    allowed = sampling.allowed_token_ids
    possible = eos if allowed is None else [token for token in eos if token in allowed]
    return bool(possible) and not sampling.ignore_eos and sequence.output_count >= sampling.min_tokens


def is_repeating(tokens: Rows[int], start: int, rule: RepetitionRule) -> bool:
    """Whether `tokens[start:]` ends with one pattern `min_count` times, of a length that the rule names."""
    output = len(tokens) - start
    for size in range(max(rule.min_pattern_size, 1), rule.max_pattern_size + 1):
        length = size * rule.min_count
        if length > output:
            return False
        if tokens[-1] == tokens[-1 - size] and all(
            tokens[place] == tokens[place - size] for place in range(len(tokens) - length + size, len(tokens))
        ):
            return True
    return False
