"""Walking a value along the edges of a ref, inside one JSON value."""

from typing import Any


def step(value: Any, edge: str, part: str) -> Any:
    """What lies behind one edge (attr, key or index); None where the path leads nowhere."""
    if edge == "index":
        is_inside = isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 10
        return value[int(part)] if is_inside and int(part) < len(value) else None
    return value.get(part) if edge in ("attr", "key") and isinstance(value, dict) else None
