"""What an engine is: token ids in, a stream of token events out.

The front (templates, tokens, text, stop strings, tools, reasoning, streams, errors, usage) is one for all
engines and speaks only what stands here.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from heddle.errors import Busy, InvalidRequest, Unavailable
from heddle.inference.structured.guidance import Constraint

FinishReason = Literal["stop", "length", "repetition"]


@dataclass(frozen=True, slots=True)
class RepetitionRule:
    """End the output when its tail is one pattern `min_count` times, for any pattern length in the range."""

    max_pattern_size: int
    min_pattern_size: int
    min_count: int


@dataclass(frozen=True, slots=True)
class PromptChoices:
    """Tokens whose logprobs are wanted at each token of a prompt but the first, behind the best ones."""

    ids: tuple[tuple[int, ...], ...] = ()
    """By place; empty where none is named anywhere."""
    draws: int = 0
    """So many are drawn at each place, with replacement, at the temperature of the request."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen and when they end; every value is checked and final, none is a default of a model.

    Order of work (contract of the interface): raw logprobs are taken, then allowed ids, bad words, min_tokens,
    logit bias, repetition / frequency / presence penalty, grammar mask, greedy below temperature 1e-5, temperature,
    min_p, top_k, top_p, draw.
    """

    max_tokens: int
    seed: int
    """64 bits; with the position in the output it decides every draw, whatever else is in the batch."""
    is_seeded: bool = True
    """False where nobody asked for this seed, so that an engine may draw as it likes."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 = off."""
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """On tokens of prompt and output; the two others on tokens of the output only."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences; the last token is masked when the others were just generated."""
    min_tokens: int = 0
    """Below this count end-of-sequence and stop tokens cannot be drawn."""
    stop_token_ids: tuple[int, ...] = ()
    """Without end-of-sequence; that one is the engine's own affair."""
    ignore_eos: bool = False
    repetition: RepetitionRule | None = None
    logprobs: int | None = None
    """None = none; k = the chosen token's and those of the k best (0 = only the chosen one)."""
    prompt_logprobs: int | None = None
    """The same for each prompt token."""
    prompt_choices: PromptChoices | None = None
    """With `prompt_logprobs` alone."""
    logprobs_temperature: float = 1.0
    """What the logits are divided by for `logprobs` (not for those of the prompt); 1 = raw."""


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """One immutable version of a LoRA adapter in a PEFT folder."""

    id: str
    """Unique for this version, such as `team/project/name@3`; part of the prefix-cache key."""
    path: Path


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """One sequence to generate; `n` choices are n requests."""

    id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    pools: bool = False
    """Wants the state of the last position and no tokens: one event, whatever `sampling` says."""
    adapter: AdapterRef | None = None
    constraint: Constraint | None = None
    priority: int = 0
    """Lower is handled earlier; only 0 under first come, first served."""
    cache_salt: str | None = None
    kv_transfer_params: Mapping[str, Any] | None = None
    xargs: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, natural logarithm, float32: before any sampling step but
    `Sampling.logprobs_temperature`."""

    token_id: int
    logprob: float
    rank: int
    """1 = the most probable token."""
    top: tuple[tuple[int, float], ...] = ()
    """The k best as (token id, logprob), best first."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """New tokens of one request; the first event comes with the first token, the last has a finish reason."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token when asked for, else empty."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """First event only, when asked for: one per prompt token, the first None."""
    cached_tokens: int | None = None
    """Prompt tokens taken from the prefix cache; in the first event, or the last where that is when they are known."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token, or `repetition_detected`; None for end-of-sequence and for length."""
    policy: str | None = None
    """The id of the adapter version that made the tokens; None for the base model."""
    kv_transfer_params: Mapping[str, Any] | None = None
    state: bytes | None = None
    """Of a request that pools: what the last layer's norm makes of the last position, float32, little-endian."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Settings that every engine has; 0 always means "find out yourself"."""

    folder: Path
    """A Hugging Face model folder."""
    _: KW_ONLY
    dtype: str = "auto"
    """Precision of weights; auto = for the embedded engine float32 below 100 million parameters, bfloat16 above."""
    max_model_len: int = 0
    """Prompt and output together, in tokens; 0 = what the model was made for."""
    kv_memory: int = 0
    """Bytes for keys and values, of one server; 0 = a share of the memory that is free at the start."""
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    max_running: int = 64
    """Sequences that are worked on at the same time, by one server."""
    max_waiting: int = 1024
    """Requests that may wait beyond those that run; one more is refused with EngineBusy."""
    max_adapters: int = 8
    """Adapter versions that are kept; the least recently used idle one makes room."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the front must know about an engine."""

    name: str
    """Such as `heddle-local` or `vllm`; begins system_fingerprint."""
    max_model_len: int
    vocab_size: int
    """Rows of the logits; token ids are below it."""
    eos_token_ids: tuple[int, ...]
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    takes_kv_transfer: bool = False
    xargs: frozenset[str] = frozenset()
    """Names of extra arguments that it understands."""
    scales_logprobs: bool = True
    """Whether `Sampling.logprobs_temperature` acts; where not, only raw log-probabilities may be asked for."""
    takes_after: bool = True
    """Whether `Constraint.after` acts; where not, the grammar itself must begin with what goes before."""


@dataclass(slots=True)
class EngineStats:
    """Metrics of an engine since it started (totals) and now (gauges); times in seconds."""

    state: Literal["idle", "loading", "ready", "failed"] = "idle"
    error: str | None = None
    device: str = ""
    dtype: str = ""
    threads: int = 0
    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    """Held by requests; 0 when none runs."""
    kv_blocks_cached: int = 0
    """Kept for prefix reuse; given up when requests need room."""
    kv_blocks_total: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    requests: int = 0
    aborted: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    step_seconds_mean: float = 0.0
    step_seconds_best: float = 0.0
    resident_bytes: int = 0
    load_seconds: float = 0.0
    adapters: tuple[str, ...] = ()


class EngineFailed(Unavailable):
    """The engine died or cannot start; the request may be sent again."""


class EngineBusy(Busy):
    """More waits than the engine takes."""


class RequestRefused(InvalidRequest):
    """The engine cannot do this request (too long for its memory, an adapter that does not fit the model)."""


class Engine(Protocol):
    """One served base model and the adapters on it."""

    def info(self) -> EngineInfo:
        """What it is; known before it has loaded."""

    async def start(self) -> None:
        """Load, if that has not been done; many may wait for one loading. Raises EngineFailed."""

    async def stop(self) -> None:
        """End every request and give back all memory."""

    def generate(self, request: TokenRequest) -> AsyncIterator[TokenEvent]:
        """The tokens of one request; closing the iterator aborts it.

        Starts the engine and loads the adapter when needed. Raises EngineFailed, EngineBusy, RequestRefused.
        """

    async def load_adapter(self, adapter: AdapterRef, start: bool = True) -> None:
        """Make a version ready; a no-op when it is, and without `start` where the engine does not run.

        Raises EngineFailed, and RequestRefused when it does not fit the model.
        """

    async def unload_adapter(self, adapter_id: str) -> None:
        """Forget a version once its running requests have ended; a no-op when it is not loaded."""

    async def stats(self) -> EngineStats:
        """Stats now; cheap, and never starts the engine."""
