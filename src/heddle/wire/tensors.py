"""What is in safetensors files, by their headers: no weight is read, and no library is needed."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

Shapes = dict[str, list[int]]


def tensor_shapes(path: Path) -> Shapes:
    """The shape of every tensor of one file, by name; raises ValueError naming the file when it cannot be read."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")), object_pairs_hook=_named_once)
        return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError, AttributeError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from None


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"its header contains {name[:100]!r} twice")
    return found


def folder_shapes(folder: Path) -> Shapes:
    """Those of all safetensors files of a folder; raises ValueError."""
    return {name: shape for path in sorted(folder.glob("*.safetensors")) for name, shape in tensor_shapes(path).items()}
