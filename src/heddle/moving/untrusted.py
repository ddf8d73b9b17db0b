"""An archive is untrusted input: its records are checked, each by itself and against the others, before any is stored.

What is looked for: records of projects that the header does not name, paths out of their folders, jobs that would run,
records below other projects' records, contents that the archive does not bring.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from heddle.errors import HeddleError
from heddle.moving import parts, plan, tables
from heddle.moving.archive import ArchiveReader
from heddle.moving.archive_names import BLOBS, FOLDERS, RECORDS
from heddle.moving.columns import problem_of
from heddle.wire import refs

Row = dict[str, Any]


class ArchiveCheck:
    """One pass over an archive that was verified; keeps ids of records that others lie below, not their contents."""

    def __init__(self, archive: ArchiveReader) -> None:
        self._archive = archive
        self._names = frozenset(archive.header.projects)
        self._internal = frozenset(refs.internal_project(name) for name in archive.header.projects)
        self._owners: dict[tuple[str, str], str] = {}
        self._blobs = {bytes.fromhex(name.removeprefix(BLOBS)) for name in _names(archive, BLOBS)}
        self.folders: dict[str, str] = {}
        """Whose each folder of adapters and checkpoints is."""
        self._table: tables.Gathered | None = None

    def run(self) -> None:
        """Look at every record and every folder; raises HeddleError naming member, record and column."""
        for name, content in self._archive.members():
            if not name.startswith((BLOBS, FOLDERS)):
                self._member(name, parts.read(name, content.read()))
        if self._table is not None:
            raise HeddleError(f"The archive holds only a part of the table {self._table.digest[:100]!r}")
        for name in _names(self._archive, FOLDERS):
            if not any(folder in self.folders for folder in folders_above(name.removeprefix(FOLDERS))):
                raise HeddleError(f"The archive holds {name[:300]!r}, which no adapter or checkpoint names")

    def _member(self, name: str, rows: Iterable[Row]) -> None:
        group = name.rpartition("/")[0]
        for number, row in enumerate(rows, 1):
            column, problem = problem_of(group, row) or self._among(group, row) or ("", "")
            if problem:
                where = f"{name}, record {number}" + (f", column {column}" if column else "")
                raise HeddleError(f"The archive is refused: {where}: {_shown(row, column)}{problem}")

    def _among(self, group: str, row: Row) -> tuple[str, str] | None:
        """What is wrong with a record that is well-formed by itself."""
        if group == tables.TABLES:
            self._chunk(row)
        table = group.removeprefix(RECORDS + "/")
        return self._project(row) or self._parent(table, row) or self._content(table, row)

    def _project(self, row: Row) -> tuple[str, str] | None:
        if "entity" in row:
            is_ours = f"{row['entity']}/{row['project']}" in self._names
        elif "project" in row:
            is_ours = row["project"] in self._internal
        else:
            is_ours = row.get("project_id", next(iter(self._names), None)) in self._names
        column = "project_id" if "project_id" in row else "project"
        return None if is_ours else (column, "is no project that the archive's header names")

    def _parent(self, table: str, row: Row) -> tuple[str, str] | None:
        """Records lie below records of the same archive and project, which come first."""
        if table not in (*plan.PARENTS, *plan.OWNED, *plan.FOLDERS_OF):
            return None
        owner = str(row.get("project_id") or refs.external_project(row.get("project", "")) or "")
        owner = f"{row['entity']}/{row['project']}" if "entity" in row else owner
        if table in plan.PARENTS:
            column, above = plan.PARENTS[table]
            found = self._owners.get((above, row[column]))
            if found is None or owner not in ("", found):
                return column, f"names no record of {above} that the archive holds before it"
            owner = found
        if table in plan.OWNED:
            known = self._owners.setdefault((table, row["id"]), owner)
            if known != owner:
                return "id", "is given twice"
        if table in plan.FOLDERS_OF:
            known = self.folders.setdefault(row["folder"], owner)
            if known != owner:
                return "folder", "belongs to another project of the archive"
        return None

    def _content(self, table: str, row: Row) -> tuple[str, str] | None:
        for column in plan.BLOB_COLUMNS:
            if column.table.name == table and bytes.fromhex(row[column.name]) not in self._blobs:
                return column.name, "names a content that the archive does not hold"
        return None

    def _chunk(self, row: Row) -> None:
        """The chunks of a table follow each other; raises HeddleError."""
        if self._table is None:
            self._table = tables.Gathered(row["project"], row["digest"], row["row_count"], [])
        elif (self._table.digest, self._table.project) != (row["digest"], row["project"]) or not row["chunk"]:
            raise HeddleError(f"The archive holds only a part of the table {self._table.digest[:100]!r}")
        self._table.row_digests += row["row_digests"]
        if self._table.is_whole:
            self._table = None


def _names(archive: ArchiveReader, kind: str) -> Iterator[str]:
    return (name for name, _ in archive.members() if name.startswith(kind))


def folders_above(name: str) -> Iterator[str]:
    """The folders that a file lies in."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _shown(row: Any, column: str) -> str:
    return f"{str(row.get(column))[:100]!r} " if column and isinstance(row, dict) else ""
