"""What can be set about the embedded engine, and what a model folder says before anything is loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.errors import Unavailable
from heddle.inference.engine.base import EngineInfo, EngineOptions
from heddle.inference.tokenizer import read_json

NAME = "heddle-local"
DEFAULT_POSITIONS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions(EngineOptions):
    """Settings of one embedded engine."""

    tokenizer: Path | None = None
    """The `tokenizer.json` that grammars are compiled for; the one in the folder when None."""
    threads: int = 0
    """Compute threads; 0 = one core fewer than there are, fewer still when they hinder each other."""
    dedicated: bool = False
    """Nothing else runs on this machine: begin with all cores."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:<n>`; auto = a GPU when there is one."""
    max_prefill: int = 1024
    """Prompt tokens in one step when nothing is being generated."""
    max_prefill_beside: int = 256
    """Prompt tokens in one step beside sequences that generate, which wait that long for their next token."""
    prefix_cache: bool = True

    @property
    def tokenizer_file(self) -> Path:
        """Where the tokenizer lies."""
        return self.tokenizer or self.folder / "tokenizer.json"


def read_info(name: str, options: EngineOptions, **more: Any) -> EngineInfo:
    """What an engine is, as far as the small files of its model folder say.

    Raises Unavailable with the file's name.
    """
    config = read_json(options.folder / "config.json")
    vocab_size = config.get("vocab_size")
    if not isinstance(vocab_size, int) or vocab_size < 1:
        raise Unavailable(f"{options.folder / 'config.json'}: vocab_size is missing")
    eos = [*_token_ids(read_json(options.folder / "generation_config.json")), *_token_ids(config)]
    if not eos:
        token = read_json(options.folder / "tokenizer_config.json").get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        file = options.tokenizer_file if isinstance(options, LocalOptions) else options.folder / "tokenizer.json"
        eos = [item["id"] for item in read_json(file).get("added_tokens") or [] if item.get("content") == text]
    positions = config.get("max_position_embeddings")
    most = positions if isinstance(positions, int) and positions > 0 else DEFAULT_POSITIONS
    return EngineInfo(
        name=name,
        max_model_len=min(options.max_model_len or most, most),
        vocab_size=vocab_size,
        eos_token_ids=tuple(dict.fromkeys(token for token in eos if 0 <= token < vocab_size)),
        scheduling=options.scheduling,
        **more,
    )


def _token_ids(config: dict[str, Any]) -> list[int]:
    """`eos_token_id` of a config, which is a number, a list or absent."""
    value = config.get("eos_token_id")
    return [value] if isinstance(value, int) else [item for item in value or [] if isinstance(item, int)]
