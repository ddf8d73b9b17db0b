"""An archive is untrusted input: its records are checked, each by itself and against the others, before any is stored.

What is looked for: records of projects that the header does not name, paths out of their folders, jobs that would run,
records below other projects' records, contents that the archive does not hold.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import sqlalchemy as sa

from heddle.errors import HeddleError
from heddle.store.control.repository import stored_type
from heddle.trace.project import MAX_RETENTION_DAYS
from heddle.transfer import schema
from heddle.transfer.archive import (
    BLOBS,
    CALLS,
    FOLDERS,
    RECORDS,
    STRINGS,
    TABLE_CHUNKS,
    TABLE_ROWS,
    ArchiveReader,
    Row,
    read_records,
)
from heddle.transfer.records import PartialTable
from heddle.wire import jsontext, refs, times
from heddle.wire.calls import COLUMNS, STATUS_WORDS, CallColumn, ColumnType

Check = Callable[[Any], str | None]
"""What is wrong with a value, None for nothing."""
MOST_NODES = 5_000_000
"""The most values of one JSON text."""
_DEPTH = 10_000
_SHORT = 1 << 20
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA256_OR_NONE = re.compile(r"([0-9a-f]{64})?")


def is_text(value: Any) -> str | None:
    """Whether it is a text."""
    return None if isinstance(value, str) else "is not a string"


def has_shape(shape: schema.Shape) -> Check:
    """Whether it is a text that holds JSON of bounded depth and size, and of a shape."""

    def check(value: Any) -> str | None:
        if not isinstance(value, str):
            return "is not a string"
        text = value.encode("utf-8", "surrogatepass")
        if len(text) > _SHORT and count_nodes(text) > MOST_NODES:
            return f"has more than {MOST_NODES} values"
        try:
            found = jsontext.loads(text, True, _DEPTH)
        except HeddleError as error:
            return f"is not valid JSON: {error.reason[:200]}"
        items = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
        if not isinstance(found, shape.kind) or not all(isinstance(item, shape.items) for item in items):
            return f"is not {shape.name}"
        try:
            shape.read(found)
        except HeddleError as error:
            return f"is not {shape.name}: {error.reason[:200]}"
        return None

    return check


is_json = has_shape(schema.ANY)


def count_nodes(text: bytes) -> int:
    """About how many values a JSON text holds, without parsing it."""
    bare = STRINGS.sub(b"", text)
    return bare.count(b",") + bare.count(b"[") + bare.count(b"{") + 1


def is_number(value: Any) -> str | None:
    """Whether it is a finite number."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool)
    return None if is_one and math.isfinite(value) else "is not a number"


def is_whole(first: int, last: int, what: str = "whole number in range") -> Check:
    """Whether it is a whole number of a range."""

    def check(value: Any) -> str | None:
        is_one = isinstance(value, int) and not isinstance(value, bool) and first <= value <= last
        return None if is_one else f"is not a {what}"

    return check


is_long, is_integer = is_whole(-(2**63), 2**63 - 1), is_whole(-(2**31), 2**31 - 1)
is_instant = is_whole(times.FIRST, times.LAST, "valid time")
_RANGES: Mapping[str, Check] = {
    "retention_days": is_whole(1, MAX_RETENTION_DAYS),
    "day": is_whole(times.FIRST // times.DAY, times.LAST // times.DAY, "valid day"),
    **dict.fromkeys(("at", "effective_date", "not_before", "lease_until"), is_instant),
}
"""Of columns whose numbers mean a time, beside those that end with `_at`."""


def matches(pattern: re.Pattern[str], what: str) -> Check:
    """Whether it is a text of a form."""

    def check(value: Any) -> str | None:
        return None if isinstance(value, str) and pattern.fullmatch(value) else f"is not a {what}"

    return check


def one_of(*words: str) -> Check:
    """Whether it is one of a few words."""
    return lambda value: None if value in words else f"is not one of {', '.join(words)}"


def is_digests(value: Any) -> str | None:
    """Whether it is a list of texts."""
    is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return None if is_list else "is not a list of digests"


@cache
def checks(group: str) -> dict[str, tuple[Check, bool]]:
    """The check of each column of a group, and whether it may be null or missing."""
    if group == CALLS:
        return _OF_CALLS
    if group == TABLE_ROWS:
        return {name: (is_json if name == "val" else is_text, False) for name in ("project", "digest", "val")}
    if group == TABLE_CHUNKS:
        counts = dict.fromkeys(("row_count", "chunk"), (is_long, False))
        return {"project": (is_text, False), "digest": (is_text, False), "row_digests": (is_digests, False), **counts}
    moved = schema.BY_NAME[group.removeprefix(RECORDS + "/")]
    return {column.name: (_check_of(column), _is_optional(column)) for column in moved.columns}


def _check_of(column: "sa.Column[Any]") -> Check:
    if column in schema.BLOB_COLUMNS:
        return matches(_SHA256_OR_NONE if column.name == "payload" else _SHA256, "SHA-256")
    if column in schema.FOLDER_COLUMNS:
        return matches(schema.FOLDER, "folder of an adapter or a checkpoint")
    if column in schema.PATH_COLUMNS:
        return matches(_PART, "valid id")
    if column in schema.ENDED:
        return one_of(*schema.ENDED[column])
    if (shape := schema.JSON_COLUMNS.get(column.table.name, {}).get(column.name)) is not None:
        return has_shape(shape)
    kept = stored_type(column)
    if isinstance(kept, sa.Text):
        return is_text
    if isinstance(kept, sa.Float):
        return is_number
    if column.name.endswith("_at"):
        return is_instant
    return _RANGES.get(column.name, is_long if isinstance(kept, sa.BigInteger) else is_integer)


def _is_optional(column: "sa.Column[Any]") -> bool:
    is_made = column.name == schema.SECRETS.get(column.table.name)
    return bool(column.nullable) or column.server_default is not None or is_made


def _check_of_call(column: CallColumn) -> Check:
    if column.type is ColumnType.INSTANT:
        return is_instant
    if column.type is ColumnType.INTEGER:
        return is_long
    return is_json if column.type is ColumnType.JSON else is_text


_OF_CALLS: dict[str, tuple[Check, bool]] = {
    "project": (is_text, False),
    **{
        item.name: (_check_of_call(item), item.of_end or not item.is_required)
        for item in COLUMNS
        if not item.is_derived
    },
}
_OF_CALLS["status"] = (one_of(*STATUS_WORDS), False)


def problem_of(group: str, row: Any) -> tuple[str, str] | None:
    """The first column of a record that is not as it must be, and what is wrong with it."""
    if not isinstance(row, dict):
        return "", "is not a record"
    for name, (check, may_miss) in checks(group).items():
        value = row.get(name)
        problem = (None if may_miss else "is missing") if value is None else check(value)
        if problem is not None:
            return name, problem
    return None


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
        self._table: PartialTable | None = None

    def run(self) -> None:
        """Look at every record and every folder; raises HeddleError naming member, record and column."""
        for name, content in self._archive.members():
            if not name.startswith((BLOBS, FOLDERS)):
                self._member(name, read_records(name, content.read()))
        if self._table is not None:
            raise HeddleError(f"The archive contains only a part of the table {self._table.digest[:100]!r}")
        files = set(_names(self._archive, FOLDERS))
        for name in sorted(files):
            if not any(folder in self.folders for folder in folders_above(name.removeprefix(FOLDERS))):
                raise HeddleError(f"The archive contains {name[:300]!r}, which belongs to no adapter or checkpoint")
            if not files.isdisjoint(folders_above(name)):
                raise HeddleError(f"The archive contains {name[:300]!r}, which is below another file")

    def _member(self, name: str, rows: Iterable[Row]) -> None:
        group = name.rpartition("/")[0]
        for number, row in enumerate(rows, 1):
            column, problem = problem_of(group, row) or self._check_against_others(group, row) or ("", "")
            if problem:
                where = f"{name}, record {number}" + (f", column {column}" if column else "")
                raise HeddleError(f"The archive is refused: {where}: {_quote(row, column)}{problem}")

    def _check_against_others(self, group: str, row: Row) -> tuple[str, str] | None:
        """What is wrong with a record that is well-formed by itself."""
        if group == TABLE_CHUNKS:
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
        return None if is_ours else (column, "is not a project of the archive's header")

    def _parent(self, table: str, row: Row) -> tuple[str, str] | None:
        """Records lie below records of the same archive and project, which come first."""
        if table not in (*schema.PARENTS, *schema.OWNED, *schema.FOLDERS_OF):
            return None
        owner = str(row.get("project_id") or refs.external_project(row.get("project", "")) or "")
        owner = f"{row['entity']}/{row['project']}" if "entity" in row else owner
        if table in schema.PARENTS:
            column, above = schema.PARENTS[table]
            found = self._owners.get((above, row[column]))
            if found is None or owner not in ("", found):
                return column, f"refers to no record of {above} earlier in the archive"
            owner = found
        if table in schema.OWNED:
            known = self._owners.setdefault((table, row["id"]), owner)
            if known != owner:
                return "id", "is given twice"
        if table in schema.FOLDERS_OF:
            known = self.folders.setdefault(row["folder"], owner)
            if known != owner:
                return "folder", "belongs to another project of the archive"
        return None

    def _content(self, table: str, row: Row) -> tuple[str, str] | None:
        for column in schema.BLOB_COLUMNS:
            if column.table.name == table and row[column.name] and bytes.fromhex(row[column.name]) not in self._blobs:
                return column.name, "refers to content that is not in the archive"
        return None

    def _chunk(self, row: Row) -> None:
        """The chunks of a table follow each other; raises HeddleError."""
        if self._table is None:
            self._table = PartialTable(row["project"], row["digest"], row["row_count"], [])
        elif (self._table.digest, self._table.project) != (row["digest"], row["project"]) or not row["chunk"]:
            raise HeddleError(f"The archive contains only a part of the table {self._table.digest[:100]!r}")
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


def _quote(row: Any, column: str) -> str:
    return f"{str(row.get(column))[:100]!r} " if column and isinstance(row, dict) else ""
