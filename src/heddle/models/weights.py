"""Tensors of a model folder: one `model.safetensors` or many files behind an index, read one by one."""

from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from heddle.models.config import read_json
from heddle.models.interfaces import ModelError

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Weights:
    """Open safetensors files; tensors are mapped, not copied, until something converts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, Any] = {}
        self.places: dict[str, str] = {}
        for file in weight_files(folder):
            try:
                self.files[file.name] = safe_open(file, framework="pt")
            except (OSError, SafetensorError) as problem:
                raise ModelError(f"{file}: cannot be read: {problem}") from None
            self.places |= dict.fromkeys(self.files[file.name].keys(), file.name)

    def __enter__(self) -> "Weights":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.files.clear()

    def __contains__(self, name: str) -> bool:
        return name in self.places

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it."""
        self.require(name)
        return tuple(self.files[self.places[name]].get_slice(name).get_shape())

    def get(self, name: str, *shape: int) -> Tensor:
        """One tensor; ModelError when it is missing or has not the expected shape."""
        self.require(name)
        found = self.shape(name)
        if found != shape:
            raise ModelError(f"{self.folder}: tensor {name} has shape {list(found)}, config.json wants {list(shape)}")
        tensor: Tensor = self.files[self.places[name]].get_tensor(name)
        if tensor.dtype not in DTYPES:
            raise ModelError(f"{self.folder}: tensor {name} is stored as {tensor.dtype}, which is not supported")
        return tensor

    def require(self, name: str) -> None:
        """ModelError when there is no such tensor."""
        if name not in self.places:
            raise ModelError(f"{self.folder}: tensor {name} is missing")

    def parameters(self) -> int:
        """Numbers in all tensors."""
        total = 0
        for name in self.places:
            count = 1
            for size in self.shape(name):
                count *= size
            total += count
        return total


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model; ModelError names the file that is wanted."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX).get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
            raise ModelError(f"{folder / INDEX}: weight_map must map tensor names to file names")
        files = [folder / name for name in sorted(set(index.values()))]
        for file in files:
            if file.parent != folder or not file.is_file():
                raise ModelError(f"{folder}: {file.name}, named in {INDEX}, is missing")
        return files
    other = [file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf", "*.h5") for file in folder.glob(pattern)]
    found = f"; found {', '.join(sorted(other)[:3])}, which heddle does not read" if other else ""
    raise ModelError(f"{folder}: {SINGLE} (or {INDEX}) is missing{found}")
