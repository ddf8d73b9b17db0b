"""`heddle import archive`: an archive into a store. What is there already stays as it is: a second time adds nothing.

Every step is durable before it is counted; after a kill the same command goes on where it stopped.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from heddle.errors import HeddleError
from heddle.moving import calls, parts, tables
from heddle.moving.archive import ArchiveReader
from heddle.moving.archive_names import BLOBS, CALLS, FOLDERS, RECORDS
from heddle.moving.folders import put_file
from heddle.moving.records import RecordWriter
from heddle.moving.rename import Renames
from heddle.moving.report import Report
from heddle.moving.untrusted import ArchiveCheck, folders_above
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.open import opened_store
from heddle.wire.calls import CallRow, CallsQuery, End, Filter, Start

Row = dict[str, Any]
_CALLS_AT_A_TIME = 200
_ORDER = (tables.ROWS + "/", tables.TABLES + "/", BLOBS, FOLDERS, RECORDS + "/", CALLS + "/")
"""The passes over an archive: what is named comes before what names it."""


async def apply(settings: Settings, source: Path, renamed: Sequence[str]) -> Report:
    """Check an archive as a whole, then store it; `renamed` are texts `old=new` of projects. Raises HeddleError."""
    archive = ArchiveReader(source)
    renames = Renames.parse(list(renamed), archive.header.projects)
    await asyncio.to_thread(archive.verify)
    checked = ArchiveCheck(archive)
    await asyncio.to_thread(checked.run)
    async with opened_store(settings) as store:
        return await Import(store, settings, renames, checked.folders).run(archive)


class Import:
    """One import into an open store."""

    def __init__(self, store: Store, settings: Settings, renames: Renames, folders: Mapping[str, str]) -> None:
        """`folders` says whose each folder of adapters and checkpoints is in the archive, `entity/project`."""
        self.report = Report()
        self._store = store
        self._settings = settings
        self._renames = renames
        self._folders = folders
        self._records = RecordWriter(store, self.report)
        self._table: tables.Gathered | None = None

    async def run(self, archive: ArchiveReader) -> Report:
        """Store every member of an archive that was verified."""
        for kind in _ORDER:
            for name, content in archive.members():
                if name.startswith(kind):
                    await self._member(kind, name, content)
        # Servers beside this one remove what nothing named for an hour, which a long import may have needed.
        for name, content in archive.members():
            if name.startswith((BLOBS, FOLDERS)):
                await self._file(name, content)
        return self.report

    async def _member(self, kind: str, name: str, content: IO[bytes]) -> None:
        if kind in (BLOBS, FOLDERS):
            is_new = await self._file(name, content)
            group = "contents of files" if kind == BLOBS else "files of adapters and checkpoints"
            self.report.add(group, int(is_new), int(not is_new))
        else:
            found = await asyncio.to_thread(lambda: parts.read(name, content.read()))
            await self.store(name.rsplit("/", 1)[0], [self._renames.record(row) for row in found])

    async def store(self, group: str, rows: list[Row]) -> None:
        """Store some records of a group, which have their final names."""
        if group == tables.ROWS:
            await self._table_rows(rows)
        elif group == tables.TABLES:
            for row in rows:
                await self._chunk(row)
        elif group == CALLS:
            for first in range(0, len(rows), _CALLS_AT_A_TIME):
                await self._calls(rows[first : first + _CALLS_AT_A_TIME])
        else:
            await self._records.write(group.removeprefix(RECORDS + "/"), rows)

    async def _file(self, name: str, content: IO[bytes]) -> bool:
        """Store a blob or a file of a folder; false when it is there already."""
        if name.startswith(FOLDERS):
            place = name.removeprefix(FOLDERS)
            if await self._is_taken(place):
                return False
            return await asyncio.to_thread(put_file, Path(self._settings.data), place, content)
        return await asyncio.to_thread(self._blob, name.removeprefix(BLOBS), content)

    async def _is_taken(self, place: str) -> bool:
        """True for a file in a folder that is another project's in the target."""
        folder = next(folder for folder in folders_above(place) if folder in self._folders)
        owner = self._renames.name(self._folders[folder])
        return await self._records.foreign.is_taken(folder, tuple(owner.split("/")))

    def _blob(self, key: str, content: IO[bytes]) -> bool:
        if self._store.blobs.exists(key):
            return False
        # The content is the reader's own stream of bytes.
        if self._store.blobs.put(content) != key:  # type: ignore[arg-type]
            raise HeddleError(f"The archive changed while it was read: {key} is another content now")
        return True

    async def _table_rows(self, rows: list[Row]) -> None:
        for project, mine in _by_project(rows):
            texts = {row["digest"]: row["val"] for row in mine}
            known = await self._store.tables.row_values(project, texts)
            new = {digest: text for digest, text in texts.items() if digest not in known}
            if new:
                await self._store.tables.put_rows(project, new)
            self.report.add("rows of tables", len(new), len(known))

    async def _chunk(self, row: Row) -> None:
        """Take one chunk of a table; the table is stored with its last one."""
        if row["chunk"] == 0 or self._table is None:
            self._table = tables.Gathered(row["project"], row["digest"], row["row_count"], [])
        table = self._table
        if table.digest != row["digest"]:
            raise HeddleError(f"The archive holds only a part of the table {table.digest}")
        table.row_digests += row["row_digests"]
        if not table.is_whole:
            return
        is_new = not await tables.is_stored(self._store, table.project, table.digest)
        if is_new:
            await self._store.tables.create(table.project, table.digest, table.row_digests, {})
        self.report.add("tables", int(is_new), int(not is_new))
        self._table = None

    async def _calls(self, rows: list[Row]) -> None:
        for project, mine in _by_project(rows):
            there = await self._there(project, [row["id"] for row in mine])
            wanted = [row for row in mine if _is_wanted(row, there.get(row["id"]))]
            halves = await asyncio.to_thread(self._halves, wanted)
            if halves:
                starts: list[Start] = [start for start, _ in halves]
                ends: list[End] = [end for _, end in halves if end is not None]
                await self._store.calls.write(starts, ends)
            self.report.add("calls", len(wanted), len(mine) - len(wanted))

    def _halves(self, rows: list[Row]) -> list[tuple[Start, End | None]]:
        large, keep = self._settings.large_field_bytes, self._keep
        return [calls.to_halves(row, large, keep) for row in rows]

    async def _there(self, project: str, ids: list[str]) -> dict[str, CallRow]:
        query = CallsQuery(project, Filter(call_ids=tuple(ids)))
        return {row.id: row async for rows in self._store.calls.stream(query) for row in rows}

    def _keep(self, text: str) -> str:
        return self._store.blobs.put_bytes(text.encode())


def _is_wanted(row: Row, there: CallRow | None) -> bool:
    """A call that is not there, or that has not ended there and has here."""
    return there is None or (calls.is_running(there) and row["ended_at"] is not None)


def _by_project(rows: Iterable[Row]) -> Iterable[tuple[str, list[Row]]]:
    grouped: dict[str, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row["project"], []).append(row)
    return grouped.items()
