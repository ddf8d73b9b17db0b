"""One way to cut what is too long into lists, and one to sort pairs into them."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K")


def batched(items: Iterable[T], size: int = 500) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one shorter."""
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def group_pairs(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """The second items of pairs by their first."""
    found: dict[K, list[T]] = {}
    for key, item in pairs:
        found.setdefault(key, []).append(item)
    return found
