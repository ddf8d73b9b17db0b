"""What heddle uses of vLLM 0.32, in vLLM's words: the fields of a completion, the parts of its answer, the figures."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from heddle.inference.engine.base import EngineStats, TokenEvent, TokenLogprobs

Json = dict[str, Any]


class StreamOptions(BaseModel):
    """What else a stream tells."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False


class Grammar(BaseModel):
    """A constraint, in the only form that heddle sends."""

    model_config = ConfigDict(extra="forbid")
    grammar: str = Field(min_length=1)


class Repetition(BaseModel):
    """When repeated patterns end the output."""

    model_config = ConfigDict(extra="forbid")
    max_pattern_size: int
    min_pattern_size: int
    min_count: int


class CompletionRequest(BaseModel):
    """The fields of POST /v1/completions that heddle sends, with vLLM's ranges; any other one is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str
    prompt: list[int] = Field(min_length=1)
    request_id: str
    return_token_ids: bool
    return_tokens_as_token_ids: bool
    max_tokens: int = Field(ge=1)
    temperature: float = Field(ge=0, le=2)
    top_p: float = Field(gt=0, le=1)
    top_k: int = Field(ge=-1)
    min_p: float = Field(ge=0, le=1)
    frequency_penalty: float = Field(ge=-2, le=2)
    presence_penalty: float = Field(ge=-2, le=2)
    repetition_penalty: float = Field(gt=0)
    min_tokens: int = Field(ge=0)
    stop_token_ids: list[int]
    ignore_eos: bool
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    logit_bias: dict[str, float] = Field(default_factory=dict)
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = Field(default_factory=list)
    repetition_detection: Repetition | None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)
    prompt_logprobs: int | None = Field(default=None, ge=0, le=20)
    structured_outputs: Grammar | None = None
    priority: int = 0
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    kv_transfer_params: Json | None = None
    vllm_xargs: dict[str, str | int | float | list[str | int | float]] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None


def choice_of(event: TokenEvent) -> Json:
    """New tokens as vLLM writes them."""
    logprobs = None
    if event.logprobs:
        logprobs = {
            "text_offset": [0] * len(event.logprobs),
            "tokens": [f"token_id:{item.token_id}" for item in event.logprobs],
            "token_logprobs": [item.logprob for item in event.logprobs],
            "top_logprobs": [
                {f"token_id:{token}": value for token, value in ((item.token_id, item.logprob), *item.top)}
                for item in event.logprobs
            ],
        }
    return {
        "index": 0,
        "text": "",
        "logprobs": logprobs,
        "finish_reason": event.finish_reason,
        "stop_reason": event.stop_reason,
        "token_ids": list(event.token_ids),
    }


def entries_of(prompt: tuple[TokenLogprobs | None, ...]) -> list[Json | None]:
    """Log-probabilities of a prompt as vLLM writes them."""
    return [
        item
        and {
            str(token): {"logprob": value, "rank": rank, "decoded_token": ""}
            for token, value, rank in (
                (item.token_id, item.logprob, item.rank),
                *((token, value, rank) for rank, (token, value) in enumerate(item.top, 1) if token != item.token_id),
            )
        }
        for item in prompt
    ]


def metrics_of(model: str, stats: EngineStats) -> str:
    """The figures that heddle reads, under vLLM's names."""
    label = f'{{engine="0",model_name="{model}"}}'
    values = {
        "num_requests_running": stats.running,
        "num_requests_waiting": stats.waiting,
        "kv_cache_usage_perc": stats.kv_blocks_used / max(1, stats.kv_blocks_total),
        "prefix_cache_queries_total": stats.prefix_query_tokens,
        "prefix_cache_hits_total": stats.prefix_hit_tokens,
        "num_preemptions_total": stats.preemptions,
        "prompt_tokens_total": stats.prompt_tokens,
        "generation_tokens_total": stats.generated_tokens,
        "iteration_tokens_total_count": stats.steps,
    }
    lines = [f"vllm:{name}{label} {float(value)}" for name, value in values.items()]
    lines.append(f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{stats.kv_blocks_total}"}} 1.0')
    lines.append(f"process_resident_memory_bytes {float(stats.resident_bytes)}")
    return "\n".join(lines) + "\n"
