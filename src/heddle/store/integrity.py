"""Whether what is stored is whole: pages and indexes, rows that belong together, contents that have their digest.

`heddle check` asks for as much as fits into a time, the trial of a backup for everything.
"""

import hashlib
import json
import math
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from heddle.errors import NotFound
from heddle.store.base import BLOB_COLUMNS, Looked
from heddle.store.blobs.base import CHUNK, Blobs
from heddle.store.control.agents.table import CHECKED as CHECKED_OF_SPANS
from heddle.store.control.agents.table import OWN, TEXTS, agent_spans
from heddle.store.sqlite import blocks, call_bodies, row_checksums, search
from heddle.store.sqlite.call_bodies import COLUMN, checksum_sql
from heddle.store.sqlite.connection import connect
from heddle.store.sqlite.schema import CHECKED
from heddle.store.sqlite.search_damage import find_search_damage, newest_entry
from heddle.wire import refs

_STEPS_BETWEEN_LOOKS = 20_000
_LARGE = ("body_in", "body_out", "calls", "search", "search_data", "usage")
_OF_CALLS = ("body_in", "body_out", "usage", "call_refs", "call_files")
_ROWS = 1000
_CHANGED = (b"null", b"[redacted ", *(kind.encode() for kind in (refs.INTERNAL, refs.EXTERNAL, refs.ARTIFACT)))
"""What stands in values that may be others than those of their digests: an import renames the projects of refs."""
_PARTS = {"calls": "the head", "body_in": "body_in", "body_out": "body_out"}
_DAMAGED = " UNION ALL ".join(
    f"""SELECT '{_PARTS[table]}', quote(c.id) FROM {table} b LEFT JOIN calls c ON c.rid = b.rid
        WHERE b.rid >= ? AND b.rid < ? AND b.{COLUMN} <> {checksum_sql(dict.fromkeys(columns, "TEXT"), "b.")}"""
    for table, columns in CHECKED.items()
)
SPAN_CHECKSUM = ", ".join(
    f"CAST(iif(own & {OWN[name]}, {name}, '') AS BLOB)" if name in OWN else f"CAST({name} AS BLOB)"
    for name in CHECKED_OF_SPANS
)
"""The arguments of the checksum of an agent span."""
_SPAN_TYPES = ", ".join(f"typeof({name})" for name in (*TEXTS, "more", "custom"))
_NAMED_BLOBS = "SELECT blob FROM call_files UNION " + " UNION ".join(
    f"SELECT {column.name} FROM {column.table.name} WHERE {column.name} <> ''" for column in BLOB_COLUMNS
)
RULES = {
    "ended calls without their output": """SELECT count(*) FROM calls c WHERE ended_at IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM body_out b WHERE b.rid = c.rid)""",
    "started calls without their inputs": """SELECT count(*) FROM calls c WHERE started_at IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM body_in b WHERE b.rid = c.rid)""",
    **{
        f"rows of {table} without their call": f"""SELECT count(*) FROM {table} b
            WHERE NOT EXISTS (SELECT 1 FROM calls c WHERE c.rid = b.rid)"""
        for table in _OF_CALLS
    },
    **{f"wrong sums of {table}": query for table, query in blocks.WRONG_BLOCKS.items()},
    "rows of usage that do not match their calls": """SELECT count(*) FROM usage u JOIN calls c ON c.rid = u.rid
        WHERE c.project <> u.project OR ifnull(c.started_at, 0) <> u.started_at""",
    "names with damaged labels": """SELECT count(*) FROM names
        WHERE label <> '' AND NOT has_label(CAST(v AS BLOB), CAST(label AS BLOB))""",
    "tables of rows with missing parts": """SELECT count(*) FROM tables t WHERE digest NOT LIKE 'unfinished:%'
        AND row_count <> (SELECT ifnull(sum(json_array_length(row_digests)), 0)
        FROM table_chunks k WHERE k.table_number = t.number)""",
    **{
        f"damaged {what}": f"SELECT count(*) FROM {table} WHERE NOT has_digest(CAST(val AS BLOB), digest)"
        for what, table in (("table rows", "table_rows"), ("objects", "object_versions"))
    },
    f"damaged rows of {agent_spans.name}": f"""SELECT count(*) FROM {agent_spans.name}
        WHERE crc <> checksum({SPAN_CHECKSUM}) OR is_counted NOT IN (0, 1) OR 'blob' IN ({_SPAN_TYPES})""",
    "objects with several latest versions": """SELECT count(*) FROM (SELECT 1 FROM object_versions
        WHERE is_latest = 1 GROUP BY project, object_id HAVING count(*) > 1)""",
    "missing table rows": """SELECT count(*) FROM tables t JOIN table_chunks k ON k.table_number = t.number
        JOIN json_each(k.row_digests) j WHERE t.is_complete = 1
        AND NOT EXISTS (SELECT 1 FROM table_rows r WHERE r.project = t.project AND r.digest = j.value)""",
}
"""What must not be, and the query that counts it in SQLite."""


class SqliteIntegrity:
    """The checks of one database file on a schema that is known here, each until an instant of the monotonic clock."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def check_tables(self, ends: float) -> Looked:
        """Pages, rows and indexes of each table, the small ones first; raises sqlite3.Error for an unreadable file."""
        with closing(self._open(ends)) as raw:
            listed = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
            found = _within(raw, listed, ends)
            if found is None:
                return Looked(0, 1, [])
            names = sorted((str(name) for (name,) in found), key=lambda name: (name in _LARGE, name))
            # Of the whole file also what belongs to no table; of one table it can be done within a time.
            asked = [""] if ends == math.inf else [f"('{name}')" for name in names]
            problems = list[str]()
            for looked, argument in enumerate(asked):
                said = _within(raw, f"PRAGMA integrity_check{argument}", ends)
                if said is None:
                    return Looked(looked, len(names), problems)
                problems += [str(text) for (text,) in said if text != "ok"]
            return Looked(len(names), len(names), problems)

    def check_rows(self, ends: float) -> Looked:
        """The rows that belong together."""
        looked, problems = 0, list[str]()
        with closing(self._open(ends)) as raw:
            rules = {**RULES, **_damage_queries(raw, ends)}
            for what, query in rules.items():
                found = _within(raw, query, ends)
                if found is None:
                    break
                looked += 1
                if found[0][0]:
                    problems.append(f"{found[0][0]} {what}")
        return Looked(looked, len(rules), problems)

    def check_bodies(self, ends: float) -> Looked:
        """The checksums of the inputs and outputs of calls, beginning anywhere; those of older versions have none."""
        with closing(self._open(ends)) as raw:
            newest = int(raw.execute("SELECT ifnull(max(rid), 0) FROM calls").fetchone()[0])
            looked, problems = 0, list[str]()
            for first, last in _windows(newest):
                found = _within(raw, _DAMAGED, ends, (first, last) * len(CHECKED))
                if found is None:
                    break
                looked += last - first
                problems += [f"{part} of the call {call} is damaged" for part, call in found]
            return Looked(min(looked, newest), newest, problems)

    def check_search(self, ends: float) -> Looked:
        """The words in the index of text search, beginning anywhere."""
        with closing(self._open(ends)) as raw:
            raw.execute("BEGIN")  # the index and the texts of one moment
            newest = newest_entry(raw)
            looked, problems = 0, list[str]()
            try:
                for first, last in _windows(newest) if newest else ():
                    problems += [f"words of {name} are missing" for name in find_search_damage(raw, first, last)]
                    looked += last - first
            except sqlite3.OperationalError:
                if time.monotonic() <= ends:
                    raise
            except sqlite3.DatabaseError as error:
                return Looked(newest, newest, [*problems, str(error)])
            return Looked(min(looked, newest), newest, problems)

    def named_blobs(self) -> list[str]:
        """The keys of all blobs that rows name."""
        with closing(self._open(math.inf)) as raw:
            return [key for (key,) in raw.execute(_NAMED_BLOBS)]

    def _open(self, ends: float) -> sqlite3.Connection:
        raw = connect(self._database, is_read_only=True, timeout=10)
        call_bodies.add_functions(raw)
        search.add_functions(raw)
        raw.create_function("has_digest", 2, _has_digest, deterministic=True)
        raw.create_function("has_label", 2, _has_label, deterministic=True)
        raw.set_progress_handler(lambda: time.monotonic() > ends, _STEPS_BETWEEN_LOOKS)
        return raw


def _damage_queries(raw: sqlite3.Connection, ends: float) -> dict[str, str]:
    try:
        return row_checksums.damage_queries(raw)
    except sqlite3.OperationalError:
        if time.monotonic() > ends:
            return {}
        raise


def _windows(newest: int) -> Iterator[tuple[int, int]]:
    """All numbers from 0 to `newest`, about a thousand at a time, from anywhere on."""
    start = secrets.randbelow(newest + 1)
    for first in (*range(start, newest + 1, _ROWS), *range(0, start, _ROWS)):
        yield first, min(first + _ROWS, start if first < start else newest + 1)


def _within(
    raw: sqlite3.Connection, query: str, ends: float, parameters: tuple[int, ...] = ()
) -> list[tuple[object, ...]] | None:
    """The rows of a query, None where its time ended before."""
    try:
        return raw.execute(query, parameters).fetchall()
    except sqlite3.OperationalError:
        if time.monotonic() > ends:
            return None
        raise


def _has_digest(text: bytes, digest: str) -> bool:
    """Whether the text of a value is that of its digest, or may have been changed since that was made."""
    try:
        return refs.value_digest(json.loads(text)) == digest or any(mark in text for mark in _CHANGED)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return False
    except ValueError:  # a number of more digits than Python reads
        return True


def _has_label(name: bytes, label: bytes) -> bool:
    """Whether a label is that of its name; what of a name is no text is found by its index."""
    return refs.operation_name(name.decode(errors="replace")) == label.decode(errors="replace")


def check_contents(keys: Iterable[str], blobs: Blobs, ends: float, *, reads: bool = True) -> Looked:
    """Whether blobs are there and, where they are read, have their digest; raises Unavailable.

    It begins anywhere, so that in time all have their turn.
    """
    start, wanted = secrets.token_hex(32), sorted(keys)
    wanted = [key for key in wanted if key >= start] + [key for key in wanted if key < start]
    problems = list[str]()
    for looked, key in enumerate(wanted):
        if time.monotonic() > ends:
            return Looked(looked, len(wanted), problems)
        problem = _problem_of(key, blobs, reads)
        if problem:
            problems.append(f"{key} {problem}")
    return Looked(len(wanted), len(wanted), problems)


def _problem_of(key: str, blobs: Blobs, reads: bool) -> str:
    """What is wrong with a blob; empty for nothing."""
    if not reads:
        return "" if blobs.exists(key) else "is missing"
    digest = hashlib.sha256()
    try:
        with blobs.open(key) as content:
            while chunk := content.read(CHUNK):
                digest.update(chunk)
    except NotFound:
        return "is damaged" if blobs.exists(key) else "is missing"
    return "" if digest.hexdigest() == key else "is damaged"
