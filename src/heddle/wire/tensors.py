"""What is in safetensors files, by their headers: no weight is read, and no library is needed."""

import json
from pathlib import Path

Shapes = dict[str, list[int]]


def tensor_shapes(path: Path) -> Shapes:
    """The shape of every tensor of one file, by name; raises ValueError naming the file when it cannot be read."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError, AttributeError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from None


def folder_shapes(folder: Path) -> Shapes:
    """Those of all safetensors files of a folder; raises ValueError."""
    return {name: shape for path in sorted(folder.glob("*.safetensors")) for name, shape in tensor_shapes(path).items()}
