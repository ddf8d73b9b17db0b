"""The rows of other products, read field by field: a value that is not what its field holds is named."""

from typing import Any, TypeVar

from heddle.errors import HeddleError

T = TypeVar("T")
_WORDS: dict[type, str] = {str: "a string", dict: "an object", list: "a list", int: "a number"}


class Misfit(HeddleError):
    """A row that cannot come over; its reason follows the name of such rows, as in "spans whose id is missing"."""


def members(row: Any) -> dict[str, Any]:
    """The row, if it is an object; raises Misfit."""
    if not isinstance(row, dict):
        raise Misfit("that are not objects")
    return row


def take(row: Any, name: str, kind: type[T], default: T | None = None) -> T:
    """A field of a row, or the default where it is absent or null; raises Misfit for another type, and without both."""
    value = members(row).get(name)
    if value is None:
        value = default
    if not isinstance(value, kind):
        raise Misfit(f"whose {name} is {'missing' if value is None else f'not {_WORDS[kind]}'}")
    return value


def objects(row: Any, name: str) -> list[dict[str, Any]]:
    """The objects in a list of a row, none where it is absent; raises Misfit for anything else."""
    return _items(row, name, dict)


def texts(row: Any, name: str) -> list[str]:
    """The texts in a list of a row, none where it is absent; raises Misfit for anything else."""
    return _items(row, name, str)


def _items(row: Any, name: str, kind: type[T]) -> list[T]:
    found: list[Any] = take(row, name, list, [])
    if not all(isinstance(item, kind) for item in found):
        raise Misfit(f"whose {name} has an item that is not {_WORDS[kind]}")
    return found


def identify(row: Any, name: str) -> str:
    """A text of a row that names something, so it is not empty; raises Misfit."""
    found = take(row, name, str, "")
    if not found:
        raise Misfit(f"whose {name} is missing")
    return found
