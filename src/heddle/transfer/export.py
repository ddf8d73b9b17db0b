"""`heddle export`: projects out of a store into an archive."""

import asyncio
import contextlib
import dataclasses
import sqlite3
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa

import heddle
from heddle import paths
from heddle.errors import HeddleError, NotFound
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.blobs.base import Blobs
from heddle.store.blobs.open import open_blobs
from heddle.store.control.project_tables import ProjectTable
from heddle.store.control.repository import Executor, stored_type
from heddle.store.control.table_rows import table_columns
from heddle.store.open import DirectExecutor, opened_store
from heddle.store.sqlite.connection import connect
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.store import named_in_file
from heddle.transfer import records, schema
from heddle.transfer.archive import (
    CALLS,
    RECORDS,
    TABLE_CHUNKS,
    TABLE_ROWS,
    UNFINISHED,
    ArchiveWriter,
    Header,
    Manifest,
    RecordWriter,
    require_parquet,
)
from heddle.transfer.schema import Scope
from heddle.wire import refs, times
from heddle.wire.calls import BODY, SPILLABLE, CallRow, CallsQuery

_PAGE = 1000
_NO_HURRY = 86_400.0
_REMOVING = ("delete", "sweep", "collect")


async def export(settings: Settings, target: Path, projects: Sequence[str], as_json: bool) -> Manifest:
    """Write the named projects (all without names) into a new archive; raises HeddleError, and then there is none."""
    if not as_json:
        require_parquet()
    paths.require_apart(settings.data, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    async with open_for_export(settings, target) as source:
        scope = Scope(await chosen_projects(source.store, projects))
        header = Header(heddle.__version__, times.to_iso(times.now()), scope.names)
        with ArchiveWriter(target, header) as archive:
            await Export(source, archive, scope, Path(settings.data), as_json).write()
            return archive.manifest


async def chosen_projects(store: Store, projects: Sequence[str]) -> list[str]:
    """The projects to be exported; raises HeddleError for one that is not there."""
    known = await _known_projects(store)
    missing = [name for name in projects if name not in known]
    if missing:
        raise HeddleError(f"project {missing[0]!r} not found; available: {', '.join(known) or 'none'}")
    return list(dict.fromkeys(projects)) or known


async def _known_projects(store: Store) -> list[str]:
    """Every project that holds anything."""
    named = [moved.table for moved in schema.EXPORTED]
    internal = [sa.select(table.c.project) for table in named if "project" in table.c and "entity" not in table.c]
    trained = [sa.select(table.c.entity + "/" + table.c.project) for table in named if "entity" in table.c]
    columns = sa.union(*internal, sa.select(table_columns.project))
    found = await store.control.read(lambda connection: list(connection.execute(columns).scalars()))
    found += [activity.project for activity in await store.call_aggregates.projects(times.now(), _no_changes)]
    names = await store.control.read(lambda connection: list(connection.execute(sa.union(*trained)).scalars()))
    return sorted({name for name in (*map(refs.external_project, found), *names) if name and name != "/"})


async def _no_changes(_project: str) -> tuple[int, ...]:
    return ()


class Export:
    """One export: calls first, so that everything they name is there when the rest is read.

    Records whose contents were removed meanwhile are left out, as are those below a record that is.
    """

    def __init__(self, source: "Source", archive: ArchiveWriter, scope: Scope, data: Path, as_json: bool) -> None:
        self._source = source
        self._store = source.store
        self._archive = archive
        self._scope = scope
        self._data = data
        self._as_json = as_json
        self._blobs: set[bytes] = set()
        """The keys of the blobs that are in the archive."""
        self._folders: set[str] = set()
        """The folders that are, which an adapter may share with a checkpoint."""
        self._ids: set[tuple[str, str]] = set()
        """Tables and ids of the records that others lie below."""

    async def write(self) -> None:
        """Write every group."""
        await self._calls()
        await self._tables()
        for moved in schema.EXPORTED:
            await self._records(moved)

    async def _calls(self) -> None:
        parts = RecordWriter(self._archive, CALLS, None if self._as_json else records.INTEGERS)
        for project in self._scope.internal:
            query = CallsQuery(project, sort=(), columns=frozenset(BODY))
            async for rows in self._source.calls(query):
                for row in rows:
                    parts.add(records.call_record(project, row))
        parts.flush()

    async def _tables(self) -> None:
        rows = RecordWriter(self._archive, TABLE_ROWS, None if self._as_json else ())
        for project in self._scope.internal:
            seen: set[str] = set()
            async for table in records.stored_tables(self._store, project):
                async for _, row_digests in records.chunks(self._store, table):
                    new = set(row_digests) - seen
                    seen |= new
                    texts = await self._store.tables.row_values(project, new)
                    for digest in sorted(texts):
                        rows.add(records.row_record(project, digest, texts[digest]))
        rows.flush()
        listed = RecordWriter(self._archive, TABLE_CHUNKS)
        for project in self._scope.internal:
            async for table in records.stored_tables(self._store, project):
                async for number, row_digests in records.chunks(self._store, table):
                    listed.add(records.chunk_record(project, table, number, row_digests))
                if not table.row_count:
                    listed.add(records.chunk_record(project, table, 0, []))
        listed.flush()

    async def _records(self, moved: ProjectTable) -> None:
        """The rows of one control table, in the order of its primary key."""
        parts = RecordWriter(self._archive, f"{RECORDS}/{moved.table.name}")
        secret = schema.SECRETS.get(moved.table.name)
        names = [column.name for column in moved.columns if column.name != secret]
        keys = list(moved.table.primary_key.columns)
        stored = [sa.type_coerce(column, stored_type(column)).label(column.name) for column in moved.table.c]
        last: tuple[Any, ...] | None = None
        while True:
            query = sa.select(*stored).where(moved.exported(self._scope.internal)).order_by(*keys).limit(_PAGE)
            if last is not None:
                query = query.where(sa.tuple_(*keys) > last)
            found = await self._store.control.read(lambda c, query=query: c.execute(query).mappings().all())  # type: ignore[misc]
            for row in found:
                if await self._has_all(moved.table, row):
                    parts.add({name: row[name] for name in names} | schema.public_part(moved.table.name, row))
            if len(found) < _PAGE:
                break
            last = tuple(found[-1][key.name] for key in keys)
        parts.flush()

    async def _has_all(self, table: sa.Table, row: Mapping[str, Any]) -> bool:
        """Write the contents that a record names; False where these, or what it lies below, are gone."""
        if table.name in schema.PARENTS:
            parent, above = schema.PARENTS[table.name]
            if (above, row[parent]) not in self._ids:
                return False
        for column in (*schema.BLOB_COLUMNS, *schema.FOLDER_COLUMNS):
            if column.table is table and row[column.name] and not await self._has_content(column, row[column.name]):
                return False
        if table.name in schema.OWNED:
            self._ids.add((table.name, row["id"]))
        return True

    async def _has_content(self, column: "sa.Column[str]", name: str) -> bool:
        """Write a blob or the files of a folder; False where nothing names it any more. Raises HeddleError."""
        if column in schema.FOLDER_COLUMNS:
            return await self._has_folder(column, name)
        if (key := bytes.fromhex(name)) in self._blobs:
            return True
        try:
            with self._store.blobs.open(name) as content:
                self._archive.blob(name, content)
        except NotFound:
            if name in await self._source.find_named([name]):
                raise
            return False
        self._blobs.add(key)
        return True

    async def _has_folder(self, column: "sa.Column[str]", folder: str) -> bool:
        if folder in self._folders:
            return True
        with contextlib.ExitStack() as opened:
            files = {}
            for path in sorted((self._data / folder).rglob("*")):
                if path.is_file() and not path.name.startswith(UNFINISHED):
                    with contextlib.suppress(FileNotFoundError):
                        files[path.relative_to(self._data).as_posix()] = opened.enter_context(path.open("rb"))
            # A row goes before its files, so that these are all that there were.
            named = sa.select(column).where(column == folder).limit(1)
            if not await self._source.live.read(lambda connection: connection.execute(named).all()):
                return False
            for name, content in files.items():
                self._archive.file(name, content)
        self._folders.add(folder)
        return True


@dataclass(frozen=True, slots=True)
class Source:
    """What is exported: a store, and what reads the control tables as they are now; equal but for SQLite."""

    store: Store
    live: Executor

    async def find_named(self, keys: Sequence[str]) -> set[str]:
        """Which of these blobs something names now."""
        if self.live is self.store.control:
            return await self.store.named_blobs(keys)
        return await self.live.read(lambda connection: named_in_file(connection, keys))

    async def calls(self, query: CallsQuery) -> AsyncIterator[list[CallRow]]:
        """The calls that a query selects, in slices, without those whose contents were removed meanwhile."""
        blobs = self.store.blobs
        async for rows in self.store.calls.stream(query):
            if isinstance(blobs, ReadOnlyBlobs) and blobs.missing:
                gone = set(blobs.missing) - await self.find_named(blobs.missing)
                blobs.missing.clear()
                yield [row for row in rows if not _is_gone(row, gone)]
            else:
                yield rows


def _is_gone(row: CallRow, keys: Collection[str]) -> bool:
    """Whether a large field of a call was in one of these blobs, which could not be read."""
    texts = [text for name in SPILLABLE if (text := getattr(row, name)) and text.startswith('{"missing":')]
    return any(key in text for key in keys for text in texts)


@contextlib.asynccontextmanager
async def open_for_export(settings: Settings, target: Path) -> AsyncIterator[Source]:
    """What is to be read; raises HeddleError when there is none.

    An embedded database is copied into a folder beside `target` first: what is read is one instant, also beside a
    running server, and nothing of the original is touched. Other stores are read as they are.
    """
    patient = dataclasses.replace(settings, query_timeout=_NO_HURRY)
    if settings.store != "sqlite":
        async with opened_store(patient) as store:
            yield Source(store, store.control)
        return
    source = Path(settings.data) / DATABASE
    if not source.exists():
        raise HeddleError(f"nothing to export: {source} does not exist")
    with paths.open_scratch(target) as folder:
        await asyncio.to_thread(_copy, source, folder / DATABASE)
        async with opened_store(dataclasses.replace(patient, data=str(folder), files="folder")) as store:
            store.blobs = cast("Blobs", ReadOnlyBlobs(open_blobs(settings)))
            yield Source(store, DirectExecutor(source, is_read_only=True))


def _copy(source: Path, target: Path) -> None:
    try:
        with (
            contextlib.closing(connect(source, is_read_only=True, timeout=60)) as live,
            contextlib.closing(connect(target)) as copy,
        ):
            live.backup(copy)
    except sqlite3.Error as error:
        raise HeddleError(f"{source} cannot be copied: {error}") from None


class ReadOnlyBlobs:
    """The blobs of a server that may be running: they are read, and nothing is written (HeddleError) or removed."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.missing: list[str] = []
        """The keys of what was read and is not there."""

    def read(self, key: str) -> bytes:
        """The whole content; raises NotFound."""
        try:
            return self._blobs.read(key)
        except NotFound:
            self.missing.append(key)
            raise

    def __getattr__(self, name: str) -> Any:
        if name == "begin":
            raise HeddleError("a copy made for an export is read-only")
        return (lambda *_: 0) if name in _REMOVING else getattr(self._blobs, name)
