"""Accounting of key/value memory in blocks of 16 tokens; holds no tensors of its own.

One budget is shared by the lanes of requests and by saved copies of full blocks. A saved block is found again by a
hash chain over adapter version, salt and all tokens up to its end; when requests need room, the least recently used
saved blocks are given up.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

BLOCK_TOKENS = 16
_DIGEST_BYTES = 16

Saved = TypeVar("Saved")


def chain_root(adapter: str | None, salt: str | None) -> bytes:
    """The start of a chain: sequences share blocks only below the same adapter version and salt."""
    return blake2b(repr((adapter, salt)).encode(), digest_size=_DIGEST_BYTES).digest()


def extend_chain(keys: list[bytes], root: bytes, tokens: Sequence[int], end: int) -> None:
    """Append the keys of the full blocks of `tokens[:end]` that `keys` lacks."""
    parent = keys[-1] if keys else root
    for start in range(len(keys) * BLOCK_TOKENS, end - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        content = array("q", tokens[start : start + BLOCK_TOKENS]).tobytes()
        parent = blake2b(content, key=parent, digest_size=_DIGEST_BYTES).digest()
        keys.append(parent)


class BlockPool(Generic[Saved]):
    """Who holds how many of `total` blocks; `used + cached <= total` always."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._saved: OrderedDict[bytes, Saved] = OrderedDict()

    @property
    def cached(self) -> int:
        """Saved blocks."""
        return len(self._saved)

    @property
    def available(self) -> int:
        """Blocks that requests could still take."""
        return self.total - self.used

    def take(self, count: int) -> bool:
        """Give blocks to a request, saved ones making room; False, and nothing happens, when there are too few."""
        if count > self.available:
            return False
        self.used += count
        self._evict()
        return True

    def give_back(self, count: int) -> None:
        """Take blocks back from a request."""
        if count > self.used:
            raise ValueError(f"{count} blocks given back, {self.used} in use")
        self.used -= count

    def save(self, key: bytes, copy: Callable[[], Saved]) -> None:
        """Keep a copy of a block, when it is new and there is room beside the requests."""
        if key in self._saved:
            self._saved.move_to_end(key)
        elif self.available > 0:
            self._saved[key] = copy()
            self._evict()

    def has(self, key: bytes) -> bool:
        """Whether a block is saved."""
        return key in self._saved

    def find(self, keys: Sequence[bytes]) -> list[Saved]:
        """The saved blocks of the longest known start of a chain, now the most recently used ones.

        The first block ends up youngest: a chain without its start is worth nothing.
        """
        known = 0
        while known < len(keys) and keys[known] in self._saved:
            known += 1
        for key in reversed(keys[:known]):
            self._saved.move_to_end(key)
        return [self._saved[key] for key in keys[:known]]

    def clear(self) -> None:
        """Forget every saved block."""
        self._saved.clear()

    def _evict(self) -> None:
        while self.used + len(self._saved) > self.total:
            self._saved.popitem(last=False)
