"""The order of a table's rows by paths inside them: worked out once per table and order, then kept for its pages."""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from weakref import WeakValueDictionary

import orjson

from heddle.store.control.row_texts import RowTexts
from heddle.store.control.schema import Executor
from heddle.store.control.table_chunks import CHUNK_ROWS, chunk_digests
from heddle.wire.rowsort import Sorter, SortKey

Positions = Sequence[int]
_Key = tuple[int, tuple[SortKey, ...]]
CHUNKS_AT_A_TIME = 25
"""How much of a table one piece of reading covers, so that others come in between."""
_KEPT_BYTES = 64 * 1024 * 1024


class Orders:
    """Positions in order, for tables whose rows are all stored: those never change."""

    def __init__(self, executor: Executor, row_texts: RowTexts) -> None:
        self._executor = executor
        self._row_texts = row_texts
        self._kept: OrderedDict[_Key, array[int]] = OrderedDict()
        self._bytes = 0
        self._locks: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()

    async def of(self, project: str, number: int, count: int, sort: Sequence[SortKey], is_complete: bool) -> Positions:
        """The positions of the stored rows of a table in order."""
        key = (number, tuple(sort))
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
                return known
            found = await self._sorted(project, number, count, sort)
            if is_complete:
                self._keep(key, found)
            return found

    async def _sorted(self, project: str, number: int, count: int, sort: Sequence[SortKey]) -> "array[int]":
        """A few chunks at a time, so that other reads come in between and none reaches its deadline."""
        sorter = Sorter(sort)
        for first in range(0, -(-count // CHUNK_ROWS), CHUNKS_AT_A_TIME):
            last = first + CHUNKS_AT_A_TIME
            chunks = await self._executor.read(lambda c, f=first, n=last: list(chunk_digests(c, number, f, n)))  # type: ignore[misc]
            for start, part in chunks:
                values = await self._row_texts.texts(project, set(part))
                await asyncio.to_thread(_add, sorter, start, part, values)
        return await asyncio.to_thread(sorter.positions)

    def _keep(self, key: _Key, positions: "array[int]") -> None:
        self._kept[key] = positions
        self._bytes += positions.itemsize * len(positions)
        while self._bytes > _KEPT_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.itemsize * len(dropped)


def _add(sorter: Sorter, start: int, digests: Sequence[str], values: Mapping[str, str]) -> None:
    for position, digest in enumerate(digests, start):
        value = values.get(digest)
        if value is not None:
            sorter.add(position, orjson.loads(value))
