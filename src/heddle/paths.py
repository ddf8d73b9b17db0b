"""Paths that clients, archives and rows name: what they really mean, and that it lies where it must."""

import hashlib
import re
from pathlib import Path

from heddle.errors import InvalidRequest

TRAINING = "training"
"""The folder of trainable models, below the data folder."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,127}")


class OutsideRoot(InvalidRequest):
    """A path that leads out of its root, or is none."""


def resolve(text: str | Path) -> Path:
    """The real place of a path, links followed, whether or not something is there; raises OutsideRoot for no path."""
    try:
        return Path(text).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise OutsideRoot(f"{str(text)[:200]!r} is no path") from error


def resolve_below(root: Path, text: str | Path) -> Path:
    """The real place of a path inside a folder, links followed; a relative path begins there.

    Raises OutsideRoot for one that leads elsewhere, and for the folder itself.
    """
    top = resolve(root)
    found = resolve(top / text)
    if top not in found.parents:
        raise OutsideRoot(f"{str(text)[:200]!r} lies outside of {root.name}")
    return found


def is_below(root: Path, text: str | Path) -> bool:
    """True for a path inside a folder, links followed; either may be reached by a link itself."""
    try:
        resolve_below(root, text)
    except OutsideRoot:
        return False
    return True


def as_part(name: str) -> str:
    """An id as one part of a path: its SHA-256 where it is none by itself."""
    return name if _PART.fullmatch(name) else hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()


def model_folder(model_id: str) -> str:
    """Everything of a trainable model; relative to the data folder."""
    return f"{TRAINING}/{as_part(model_id)}"
