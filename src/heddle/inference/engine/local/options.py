"""What can be set about the embedded engine, and what its model folder says before anything is loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from heddle.inference.tokenizer import read_json

DEFAULT_POSITIONS = 4096


@dataclass(frozen=True, slots=True)
class LocalOptions:
    """Settings of one embedded engine; 0 always means "find out yourself"."""

    folder: Path
    """A Hugging Face model folder."""
    tokenizer: Path | None = None
    """The `tokenizer.json` that grammars are compiled for; the one in the folder when None."""
    max_model_len: int = 0
    """Prompt and output together, in tokens; 0 = what the model was made for."""
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    kv_memory: int = 0
    """Bytes for keys and values, prefix cache included; 0 = a quarter of the memory that is free at the start."""
    threads: int = 0
    """Compute threads; 0 = one core fewer than there are, fewer still when they hinder each other."""
    dedicated: bool = False
    """Nothing else runs on this machine: begin with all cores."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:<n>`; auto = a GPU when there is one."""
    dtype: str = "auto"
    """`float32`, `bfloat16`, `float16`; auto = float32 for models below 100 million parameters, bfloat16 above."""
    max_running: int = 64
    max_waiting: int = 1024
    """Requests that may wait for their turn; one more is refused with EngineBusy."""
    max_prefill: int = 1024
    """Prompt tokens in one step when nothing is being generated."""
    max_prefill_beside: int = 256
    """Prompt tokens in one step beside sequences that generate, which wait that long for their next token."""
    max_adapters: int = 8
    """Adapters kept in memory; the least recently used idle one makes room."""
    prefix_cache: bool = True

    @property
    def tokenizer_file(self) -> Path:
        """Where the tokenizer lies."""
        return self.tokenizer or self.folder / "tokenizer.json"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the small files of a model folder say."""

    vocab_size: int
    max_positions: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """What the process replies to `start` once the model is loaded."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    load_seconds: float


def read_facts(options: LocalOptions) -> ModelFacts:
    """The facts of the model folder; raises Unavailable or ValueError with the file's name."""
    config = read_json(options.folder / "config.json")
    vocab_size = config.get("vocab_size")
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise ValueError(f"{options.folder / 'config.json'}: vocab_size is missing")
    eos = [*_token_ids(read_json(options.folder / "generation_config.json")), *_token_ids(config)]
    if not eos:
        token = read_json(options.folder / "tokenizer_config.json").get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        added = read_json(options.tokenizer_file).get("added_tokens") or []
        eos = [item["id"] for item in added if item.get("content") == text]
    positions = config.get("max_position_embeddings")
    return ModelFacts(
        vocab_size=vocab_size,
        max_positions=positions if isinstance(positions, int) and positions > 0 else DEFAULT_POSITIONS,
        eos_token_ids=tuple(dict.fromkeys(token for token in eos if 0 <= token < vocab_size)),
    )


def _token_ids(config: dict[str, Any]) -> list[int]:
    """`eos_token_id` of a config, which is a number, a list or absent."""
    value = config.get("eos_token_id")
    return [value] if isinstance(value, int) else [item for item in value or [] if isinstance(item, int)]
