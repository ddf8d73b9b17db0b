"""The order of a table's rows by paths inside them: worked out once per table and order, then kept for its pages."""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakValueDictionary

import orjson
import sqlalchemy as sa

from heddle.store.control.schema import Executor
from heddle.store.control.table_chunks import CHUNK_ROWS, chunk_digests, row_values
from heddle.wire.rowsort import Sorter, SortKey

Positions = Sequence[int]
_Key = tuple[int, tuple[SortKey, ...]]
CHUNKS_AT_A_TIME = 25
"""How much of a table one piece of reading covers, so that others come in between."""
_KEPT_BYTES = 64 * 1024 * 1024


class Orders:
    """Positions in order, for tables whose rows are all stored: those never change."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
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

            def work(connection: sa.Connection, first: int = first) -> None:
                for start, part in chunk_digests(connection, number, first, first + CHUNKS_AT_A_TIME):
                    values = row_values(connection, project, set(part))
                    for position, digest in enumerate(part, start):
                        value = values.get(digest)
                        if value is not None:
                            sorter.add(position, orjson.loads(value))

            await self._executor.read(work)
        return await asyncio.to_thread(sorter.positions)

    def _keep(self, key: _Key, positions: "array[int]") -> None:
        self._kept[key] = positions
        self._bytes += positions.itemsize * len(positions)
        while self._bytes > _KEPT_BYTES:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.itemsize * len(dropped)
