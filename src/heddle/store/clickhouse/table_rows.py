"""Rows of tables on ClickHouse: JSON texts, each read as one per project and digest."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping

import sqlalchemy as sa

from heddle.store.clickhouse.client import Clickhouse, Row
from heddle.store.clickhouse.schema import TABLE_ROWS, listed
from heddle.wire.batched import batched

_PART = 1000
_PART_BYTES = 8 * 1024 * 1024


class TableRows:
    """RowTexts (see control/row_texts.py); the same row may be stored twice until ClickHouse merges."""

    def __init__(self, clickhouse: Clickhouse) -> None:
        self._clickhouse = clickhouse

    async def put(self, project: str, rows: Mapping[str, str]) -> Callable[[sa.Connection], None]:
        """Store the rows that are not there; nothing is left to be done in the control database."""
        known = await self.stored(project, rows.keys())
        pending: list[Row] = []
        size = 0
        for digest, val in rows.items():
            if digest in known:
                continue
            if pending and size + len(val) > _PART_BYTES:
                await self._insert(pending)
                pending, size = [], 0
            pending.append((project, digest, val))
            size += len(val)
        await self._insert(pending)
        return _nothing

    async def _insert(self, rows: list[Row]) -> None:
        if rows:
            await self._clickhouse.insert(TABLE_ROWS, ("project", "digest", "val"), rows)

    async def texts(self, project: str, digests: Collection[str]) -> dict[str, str]:
        """The texts by digest."""
        return {row[0]: row[1] async for row in self._select("digest, any(val)", project, digests)}

    async def sizes(self, project: str, digests: Collection[str]) -> dict[str, int]:
        """The sizes by digest."""
        return {row[0]: int(row[1]) async for row in self._select("digest, any(length(val))", project, digests)}

    async def stored(self, project: str, digests: Collection[str]) -> set[str]:
        """Which of the rows are there."""
        return {row[0] async for row in self._select("digest", project, digests)}

    async def total_size(self, project: str) -> int:
        """The sizes of all rows of the project, each counted once."""
        each = f"SELECT any(length(val)) AS size FROM {TABLE_ROWS} WHERE project = {{project:String}} GROUP BY digest"
        found = await self._clickhouse.rows(f"SELECT sum(size) FROM ({each})", {"project": project})
        return int(found[0][0])

    async def _select(self, columns: str, project: str, digests: Iterable[str]) -> AsyncIterator[Row]:
        for part in batched(digests, _PART):
            query = (
                f"SELECT {columns} FROM {TABLE_ROWS} WHERE project = {{project:String}} AND digest IN {listed(part)}"
            )
            for row in await self._clickhouse.rows(f"{query} GROUP BY digest", {"project": project}):
                yield row


def _nothing(_connection: sa.Connection) -> None:
    """The rows are durable already."""
