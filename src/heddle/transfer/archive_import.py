"""`heddle import archive`: an archive into a store. What is there already stays as it is: a second time adds nothing.

Every step is durable before it is counted; after a kill the same command goes on where it stopped.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
import zstandard

from heddle.errors import HeddleError
from heddle.paths import model_folder
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.blobs.base import CHUNK
from heddle.store.control.agents.spans import checksum
from heddle.store.control.agents.table import agent_spans
from heddle.store.control.feedback import STRUCTURES
from heddle.store.control.inference import adapters
from heddle.store.control.objects import next_index, object_versions
from heddle.store.control.project_tables import ProjectTable
from heddle.store.control.repository import dialect_insert
from heddle.store.control.training_models import train_checkpoints, train_models
from heddle.store.data_folder import DataLock
from heddle.store.open import opened_store
from heddle.trace.alerts import targets
from heddle.trace.files import MOST_TEXT, is_text
from heddle.transfer import records, schema
from heddle.transfer.archive import (
    BLOBS,
    CALLS,
    FOLDERS,
    RECORDS,
    TABLE_CHUNKS,
    TABLE_ROWS,
    ArchiveReader,
    Row,
    read_records,
)
from heddle.transfer.folders import is_named, put_file, remove_files
from heddle.transfer.renames import Renames
from heddle.transfer.target import Report
from heddle.transfer.validation import ArchiveCheck, folders_above
from heddle.wire import jsontext, refs
from heddle.wire.batched import group_pairs
from heddle.wire.calls import RUNNING, SPILLABLE, CallRow, CallsQuery, End, Filter, Start
from heddle.wire.redaction import Redactor

Owner = tuple[Any, ...]
_CALLS_AT_A_TIME = 200
_IDS_AT_A_TIME = 500
_TELL_SECONDS = 1.0
_PARAMETERS = 10_000
"""The most values of one statement."""
_ORDER = (TABLE_ROWS + "/", TABLE_CHUNKS + "/", BLOBS, FOLDERS, RECORDS + "/", CALLS + "/")
"""The passes over an archive: what is named comes before what names it."""
_CONTENT: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "object_versions": (("val",), ()),
    "feedback": (("payload", *STRUCTURES), ("feedback_type", "creator")),
    "files": ((), ("name",)),
    "annotation_queues": ((), ("name", "description")),
    "alert_rules": ((), ("name",)),
    "projects": ((), ("description",)),
    "metric_series": (("attributes",), ("name", "unit", "description")),
    "agent_spans": (("more", "custom"), ("conversation_name", "span_name")),
    "agent_traces": ((), ("conversation_name",)),
}
"""Columns of JSON and of plain text that are redacted."""
_FILES = "files of adapters and checkpoints"
_ZSTD = b"\x28\xb5\x2f\xfd"
_NEW_SECRETS = "alert rules have new secrets; if receivers verify signatures, create the rules again to see the secrets"
_v = object_versions.c


async def import_archive(settings: Settings, source: Path, renamed: Sequence[str]) -> Report:
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

    def __init__(
        self,
        store: Store,
        settings: Settings,
        renames: Renames,
        folders: Mapping[str, str],
        tell: Callable[[dict[str, Any]], Awaitable[None]] | None = None,
    ) -> None:
        """`folders` says whose each folder of adapters and checkpoints is in the archive, `entity/project`.

        `tell` gets the counts so far, now and then.
        """
        self.report = Report()
        self._tell = tell
        self._told = time.monotonic()
        self._store = store
        self._settings = settings
        self._renames = renames
        self._folders = folders
        self._records = RowWriter(store, self.report)
        self._table: records.PartialTable | None = None
        self._redactors: dict[str, Redactor] = {}
        self._redacted: dict[str, str] = {}
        """The keys of blobs without what is redacted, by those in the archive."""
        self._added: dict[str, list[str]] = {}
        """The files that were not there, by their folder."""
        self._unnamed: set[str] = set()
        """The folders that no row of the target names, now that all rows are stored."""

    async def run(self, archive: ArchiveReader) -> Report:
        """Store every member of an archive that was verified."""
        projects = [refs.internal_project(self._renames.name(name)) for name in archive.header.projects]
        self._redactors = await self._store.redaction.of(projects)
        try:
            for kind in _ORDER:
                await self._members(kind, archive)
            await self._store.redaction.note(self._redactors)
            await self._remove_unnamed()
            # Servers beside this one remove what nothing named for an hour, which a long import may have needed.
            for name, content in archive.members():
                if name.startswith((BLOBS, FOLDERS)):
                    await self._file(name, content)
        finally:
            await self._store.renew_caches(projects)
        return self.report

    async def _members(self, kind: str, archive: ArchiveReader) -> None:
        for name, content in archive.members():
            if name.startswith(kind):
                await self._member(kind, name, content)
                if self._tell is not None and time.monotonic() - self._told > _TELL_SECONDS:
                    self._told = time.monotonic()
                    await self._tell({group: new + self.report.known[group] for group, new in self.report.new.items()})

    async def _member(self, kind: str, name: str, content: IO[bytes]) -> None:
        if kind in (BLOBS, FOLDERS):
            is_new = await self._file(name, content)
            self.report.add("contents of files" if kind == BLOBS else _FILES, int(is_new), int(not is_new))
        else:
            found = await asyncio.to_thread(lambda: read_records(name, content.read()))
            await self.store(name.rsplit("/", 1)[0], [self._renames.record(row) for row in found])

    async def store(self, group: str, rows: list[Row]) -> None:
        """Store some records of a group, which have their final names."""
        if group == TABLE_ROWS:
            await self._table_rows(rows)
        elif group == TABLE_CHUNKS:
            for row in rows:
                await self._chunk(row)
        elif group == CALLS:
            for first in range(0, len(rows), _CALLS_AT_A_TIME):
                await self._calls(rows[first : first + _CALLS_AT_A_TIME])
        else:
            name = group.removeprefix(RECORDS + "/")
            if name == "projects":
                rows = [await self._with_calls_kept(row) for row in rows]
            for column in [one.name for one in schema.BLOB_COLUMNS if one.table.name == name and self._redacted]:
                rows = [{**row, column: self._redacted.get(row[column], row[column])} for row in rows]
            await self._records.write(name, rows)

    async def _with_calls_kept(self, row: Row) -> Row:
        """A project; what has calls in the target does not get a retention that would remove them."""
        if row.get("retention_days") is None or not await self._store.calls.count(CallsQuery(row["project"], limit=1)):
            return row
        if await self._store.projects.retention(row["project"]) is None:
            self.report.notes.append(
                f"{refs.external_project(row['project'])} has calls already and keeps them for ever"
            )
        return {**row, "retention_days": None}

    async def _file(self, name: str, content: IO[bytes]) -> bool:
        """Store a blob or a file of a folder; false when it is there already."""
        if not name.startswith(FOLDERS):
            return await asyncio.to_thread(self._blob, name.removeprefix(BLOBS), content)
        place = name.removeprefix(FOLDERS)
        folder = next(folder for folder in folders_above(place) if folder in self._folders)
        if folder in self._unnamed or await self._is_taken(folder):
            return False
        is_new = await asyncio.to_thread(put_file, Path(self._settings.data), place, content)
        if is_new:
            self._added.setdefault(folder, []).append(place)
        return is_new

    async def _is_taken(self, folder: str) -> bool:
        """True for a folder that is another project's in the target."""
        owner = self._renames.name(self._folders[folder])
        return await self._records.foreign.is_taken(folder, tuple(owner.split("/")))

    async def _remove_unnamed(self) -> None:
        """Remove the files of adapters and checkpoints that stayed out, as the target has others of their names."""
        for folder in self._folders:
            if await self._store.control.read(partial(is_named, folder)):
                continue
            self._unnamed.add(folder)
            added = self._added.pop(folder, [])
            await asyncio.to_thread(remove_files, Path(self._settings.data), added)
            self.report.add(_FILES, -len(added), len(added))

    def _blob(self, key: str, content: IO[bytes]) -> bool:
        blobs, beginning = self._store.blobs, b""
        if self._redactors:
            beginning = content.read(CHUNK)
            if beginning.startswith(_ZSTD) or is_text(beginning):
                redacted = self._redact(beginning + content.read(MOST_TEXT))
                if content.read(1):
                    raise HeddleError(f"The text {key} has more than {MOST_TEXT} bytes and cannot be redacted")
                self._redacted[key] = stored = hashlib.sha256(redacted).hexdigest()
                return not blobs.renew(stored) and bool(blobs.put_bytes(redacted))
        if blobs.renew(key):
            return False
        writer = blobs.begin()
        try:
            while beginning or (beginning := content.read(CHUNK)):
                writer.write(beginning)
                beginning = b""
            if writer.commit() != key:
                raise HeddleError(f"The archive changed while it was read: the content {key} is different now")
        finally:
            writer.discard()
        return True

    def _redact(self, content: bytes) -> bytes:
        """A text file, or what training was given, without what the rules of the archive's projects say."""
        if not content.startswith(_ZSTD):
            for redactor in self._redactors.values():
                content = redactor.content(content)
            return content
        with zstandard.ZstdDecompressor().stream_reader(content) as text:
            value = jsontext.loads(text.read(), keep_non_finite=True)
        for redactor in self._redactors.values():
            value = redactor.value(value)
        return zstandard.ZstdCompressor().compress(jsontext.dumps_bytes(value))

    async def _table_rows(self, rows: list[Row]) -> None:
        for project, mine in group_pairs((row["project"], row) for row in rows).items():
            texts = {row["digest"]: row["val"] for row in mine}
            known = await self._store.tables.row_values(project, texts)
            new = {digest: text for digest, text in texts.items() if digest not in known}
            if new:
                await self._store.tables.put_rows(project, new)
            self.report.add("rows of tables", len(new), len(known))

    async def _chunk(self, row: Row) -> None:
        """Take one chunk of a table; the table is stored with its last one."""
        if row["chunk"] == 0 or self._table is None:
            self._table = records.PartialTable(row["project"], row["digest"], row["row_count"], [])
        table = self._table
        if table.digest != row["digest"]:
            raise HeddleError(f"The archive contains only a part of the table {table.digest}")
        table.row_digests += row["row_digests"]
        if not table.is_whole:
            return
        is_new = not await records.is_table_stored(self._store, table.project, table.digest)
        if is_new:
            await self._store.tables.create(table.project, table.digest, table.row_digests, {})
        self.report.add("tables", int(is_new), int(not is_new))
        self._table = None

    async def _calls(self, rows: list[Row]) -> None:
        for project, mine in group_pairs((row["project"], row) for row in rows).items():
            query = CallsQuery(project, Filter(call_ids=tuple(row["id"] for row in mine)))
            there = {row.id: row async for found in self._store.calls.stream(query) for row in found}
            deleted = await self._store.calls.find_deleted(
                project, [row["id"] for row in mine if row["id"] not in there]
            )
            wanted = [row for row in mine if row["id"] not in deleted and _is_wanted(row, there.get(row["id"]))]
            redactors = await self._store.redaction.of([project])
            halves = await asyncio.to_thread(self._halves, wanted, redactors.get(project))
            await self._store.redaction.note(redactors)
            # Clients may have stored some since: what is there stays, such as the start and the name of what runs here.
            starts, ends = [start for start, _ in halves], [end for _, end in halves if end is not None]
            added = await self._store.calls.add_missing(starts, ends) if halves else 0
            self.report.add("calls", added, len(mine) - added)

    def _halves(self, rows: list[Row], redactor: Redactor | None) -> list[tuple[Start, End | None]]:
        if redactor is not None:
            rows = [redactor.row(row, SPILLABLE, ("op_name", "exception", "display_name", "user")) for row in rows]
        large, blobs = self._settings.large_field_bytes, self._store.blobs
        return [records.call_halves(row, large, lambda text: blobs.put_bytes(text.encode())) for row in rows]


def _is_wanted(row: Row, there: CallRow | None) -> bool:
    """A call that is not there, or that has not ended there and has here."""
    is_running = there is not None and there.status == RUNNING and there.ended_at is None
    return there is None or (is_running and row["ended_at"] is not None)


class RowWriter:
    """Stores records that are not there yet, by what identifies them everywhere."""

    def __init__(self, store: Store, report: Report) -> None:
        self._store = store
        self._report = report
        self.foreign = ForeignIds(store)

    async def write(self, name: str, rows: Sequence[Row]) -> None:
        """Store records of the table of a name; raises HeddleError for an unknown table."""
        moved = schema.BY_NAME.get(name)
        if moved is None:
            raise HeddleError(f"The archive contains records of {name}, which this version of heddle does not support")
        empty = dict.fromkeys((str(column.name) for column in moved.columns), None) | schema.DEFAULTS[name]
        chosen = [{key: empty[key] if row.get(key) is None else row[key] for key in empty} for row in rows]
        if secret := schema.SECRETS.get(name):
            chosen = [{**row, secret: _new_secret(name, given)} for row, given in zip(chosen, rows, strict=True)]
            if name == "alert_rules" and chosen and _NEW_SECRETS not in self._report.notes:
                self._report.notes.append(_NEW_SECRETS)
        filter_ours = await self.foreign.filter_ours(name, chosen)
        self._report.add(name.replace("_", " "), 0, len(chosen) - len(filter_ours))
        await self._store_rows(name, moved, filter_ours)
        await self.foreign.note(name, filter_ours)

    async def _store_rows(self, name: str, moved: ProjectTable, chosen: list[Row]) -> None:
        at_a_time = max(1, _PARAMETERS // len(moved.columns))
        for first in range(0, len(chosen), at_a_time):
            part = await self._redacted(name, chosen[first : first + at_a_time])
            try:
                new = await self._store.control.write(partial(_add_rows, moved, part), sum(map(_size, part)))
            except sa.exc.DBAPIError as error:
                raise HeddleError(f"Records of {name} cannot be stored: {error.orig}") from error
            self._report.add(name.replace("_", " "), new, len(part) - new)

    async def _redacted(self, name: str, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows without what the rules of their projects say of what they hold."""
        if name not in _CONTENT:
            return rows
        return await self._store.redaction.each(
            rows, lambda row: str(row["project"]), lambda row, redactor: redactor.row(row, *_CONTENT[name])
        )


def _new_secret(table: str, row: Row) -> str:
    """A new secret of a webhook, or who asked for a job, without what their key allowed there."""
    return targets.create_secret() if table == "alert_rules" else schema.without_permissions(row)


def _add_rows(moved: ProjectTable, rows: Sequence[Row], connection: sa.Connection) -> int:
    """Store the rows that are not there; returns how many they were."""
    if moved.table is object_versions and len(rows) > 1:
        # A version is placed among those before it, so they come one by one.
        return sum(_add_rows(moved, [row], connection) for row in rows)
    if moved.table is object_versions:
        rows = [_place_version(connection, rows[0])]
    if moved.table is agent_spans:
        rows = [{**row, "crc": checksum(row)} for row in rows]
    statement = dialect_insert(connection, moved.table).values(list(rows)).on_conflict_do_nothing()
    # Not every driver counts the rows of such a statement.
    return len(connection.execute(statement.returning(moved.table.c[moved.identity[0]])).all())


def _place_version(connection: sa.Connection, row: Row) -> Row:
    """A version with its index and mark where the object may have other versions here already."""
    mine = sa.and_(_v.project == row["project"], _v.object_id == row["object_id"])
    others = sa.and_(mine, _v.digest != row["digest"])
    taken = sa.and_(others, _v.kind == row["kind"], _v.version_index == row["version_index"])
    placed = dict(row)
    if connection.execute(sa.select(_v.number).where(taken)).first() is not None:
        placed["version_index"] = next_index(connection, row["project"], row["kind"], row["object_id"])
    if row["is_latest"] and connection.execute(sa.select(_v.number).where(others, _v.is_latest == 1)).first():
        placed["is_latest"] = 0
    return placed


def _size(row: Row) -> int:
    return sum(len(value) if isinstance(value, str) else 10 for value in row.values())


class ForeignIds:
    """Ids and folders that are another project's in the target: nothing of an archive is stored below those."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids: set[tuple[str, str]] = set()
        self._models: dict[str, Owner] = {}
        self._folders: dict[str, Owner] | None = None

    async def filter_ours(self, name: str, rows: Sequence[Row]) -> list[Row]:
        """The records that lie below no other project's, and name no folder of one; ids of the others are noted."""
        chosen = [row for row in rows if not self._is_below(name, row)]
        if name in schema.FOLDERS_OF:
            taken = [await self.is_taken(row["folder"], self._owner(row)) for row in chosen]
            chosen = [row for row, is_taken in zip(chosen, taken, strict=True) if not is_taken]
        if name in schema.OWNED:
            kept = {row["id"] for row in chosen}
            self._ids.update((name, row["id"]) for row in rows if row["id"] not in kept)
        return chosen

    def _is_below(self, name: str, row: Row) -> bool:
        if name not in schema.PARENTS:
            return False
        column, above = schema.PARENTS[name]
        return (above, row[column]) in self._ids

    def _owner(self, row: Row) -> Owner:
        return (row["entity"], row["project"]) if "entity" in row else self._models.get(row["model_id"], ())

    async def note(self, name: str, rows: Sequence[Row]) -> None:
        """Note which of these ids belong to others in the target, now that what was free is taken."""
        if name not in schema.OWNED:
            return
        table = schema.BY_NAME[name].table
        columns = [table.c[column] for column in schema.OWNED[name]]
        for first in range(0, len(rows), _IDS_AT_A_TIME):
            part = {
                row["id"]: tuple(row[column.name] for column in columns) for row in rows[first : first + _IDS_AT_A_TIME]
            }
            query = sa.select(table.c.id, *columns).where(table.c.id.in_(part))
            found = {key: tuple(owner) for key, *owner in await self._store.control.read(_fetch(query))}
            self._ids.update((name, key) for key, owner in part.items() if found.get(key) != owner)
            if table is train_models:
                self._models |= part

    async def is_taken(self, folder: str, owner: Owner) -> bool:
        """True for a folder of another project, in one, or around one."""
        folders = await self._owners()
        above = ["/".join(folder.split("/")[:end]) for end in range(1, folder.count("/") + 2)]
        if any(folders.get(name, owner) != owner for name in above):
            return True
        return any(name.startswith(folder + "/") and theirs != owner for name, theirs in folders.items())

    async def _owners(self) -> dict[str, Owner]:
        """Entity and project behind each folder of adapters, checkpoints and models, as the target had them."""
        if self._folders is None:
            loaded = sa.select(adapters.c.folder, adapters.c.entity, adapters.c.project)
            of_model = (train_models.c.entity, train_models.c.project)
            joined = train_checkpoints.c.model_id == train_models.c.id
            made = sa.select(train_checkpoints.c.folder, *of_model).where(joined)
            models = sa.select(train_models.c.id, *of_model)
            found = [row for query in (loaded, made) for row in await self._store.control.read(_fetch(query))]
            found += [(model_folder(key), *owner) for key, *owner in await self._store.control.read(_fetch(models))]
            self._folders = {folder: tuple(owner) for folder, *owner in found}
        return self._folders


def _fetch(query: "sa.Select[Any]") -> Callable[[sa.Connection], list[Owner]]:
    return lambda connection: [tuple(row) for row in connection.execute(query)]


def check_free(settings: Settings) -> None:
    """Raise HeddleError while a server has the store for itself, before much is read that could not be stored."""
    if settings.control == "sqlite":
        with DataLock(Path(settings.data)):
            return
