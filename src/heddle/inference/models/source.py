"""Where the served model comes from: the shipped one, a folder, or a hub id."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from heddle.errors import Unavailable
from heddle.inference.tokenization.tokenizer import read_json

TINY = "heddle-tiny"
TINY_FOLDER = Path(__file__).parents[2] / "demo" / "tiny" / "model"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model folder in the Hugging Face layout, as far as the front needs it."""

    name: str
    folder: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    digest: str
    """Eight hex digits of what the folder holds (names, sizes and the configuration)."""
    created: int
    """When the weights were written, in seconds."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """What the model's own generation_config.json proposes; a request's value goes first."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @classmethod
    def of(cls, generation_config: Mapping[str, Any]) -> "Defaults":
        """The defaults of a model folder; values of a wrong type are left out."""
        found: dict[str, Any] = {}
        for spec in fields(cls):
            value = generation_config.get(spec.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[spec.name] = int(value) if spec.name == "top_k" else float(value)
        return cls(**found)


def find(model: str, name: str = "auto") -> ModelSource:
    """The folder behind a setting; downloads a hub id. Raises Unavailable saying what is missing."""
    folder = TINY_FOLDER if model == TINY else _folder(model)
    if not (folder / "config.json").is_file():
        raise Unavailable(f"The model folder {model!r} has no config.json")
    config = read_json(folder / "config.json")
    text_config = config.get("text_config")
    if isinstance(text_config, dict) and "vocab_size" in text_config:
        config = {**config, **text_config}
    shown = name if name != "auto" else model if "/" in model and not Path(model).exists() else folder.name
    return ModelSource(
        name=TINY if model == TINY and name == "auto" else shown,
        folder=folder,
        config=config,
        generation_config=read_json(folder / "generation_config.json"),
        digest=_digest(folder),
        created=int(max(path.stat().st_mtime for path in folder.iterdir())),
    )


def _folder(model: str) -> Path:
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise Unavailable(f"There is no model folder {model!r}")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise Unavailable(f"There is no folder {model!r}, and hub ids need: pip install 'heddle[inference]'") from None
    wanted = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "chat_templates/*"]
    try:
        return Path(snapshot_download(model, allow_patterns=wanted))
    except Exception as error:  # the library raises errors of several HTTP stacks
        raise Unavailable(f"There is no folder {model!r}, and the hub did not give it: {str(error)[:300]}") from None


def _digest(folder: Path) -> str:
    hashed = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            hashed.update(f"{path.name}:{path.stat().st_size};".encode())
            if path.suffix == ".json" and path.stat().st_size < 1 << 20:
                hashed.update(path.read_bytes())
            elif path.suffix == ".safetensors":
                with path.open("rb") as file:
                    hashed.update(file.read(1 << 20))
    return hashed.hexdigest()[:8]
