"""Text search in SQLite: an index of words (FTS5), the indexer that follows the calls, and the newest hits of a search.

A row of the index is the number of a call, or below zero that of a row of feedback; the texts themselves are not kept
again. Indexed are the calls above `low` up to `high` that do not wait in `search_waiting`: `high` follows new calls,
`low` goes down through those that were there before. Whatever changes an indexed call takes its words out in the same
transaction and lets it wait, so that the index never knows more than the calls, whenever the server ends. A call that
ends keeps the words of its start, with its codes, and waits for those of its end alone.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from heddle.errors import InvalidRequest
from heddle.store.query.calls import CallTable, Position
from heddle.store.query.sqlite import Parameters, quote
from heddle.wire import refs
from heddle.wire.batched import batched
from heddle.wire.calls import SearchProgress
from heddle.wire.query import Scalar, Search
from heddle.wire.search import MAX_TEXT, codes_of, held_words, indexed, parse_search, searched

VERSION = 2
"""How texts become words: a file of another version is indexed anew."""
SLICE = 1600
_SLICE_CHARS = 2 * 1024 * 1024
_HASH_BYTES = 32 * 1024 * 1024
"""Of words in memory, so that a slice is one segment of the index: merging segments costs more than making them."""
_FEW = 500
_MOST_OTHERS = 5000
_FIRST_WINDOW = 256
_MOST_GROWTH = 3
_VERIFIED_AT_ONCE = 64
_MOST_HOLDING = 200_000
_MOST_UNREAD = 10
_MERGED_PAGES = 500
"""A tenth of the calls may be missing in the index where it is asked for another condition."""
LARGE_CALLS = f"""CREATE INDEX IF NOT EXISTS calls_large ON calls (project)
    WHERE size_in > {MAX_TEXT} OR size_out > {MAX_TEXT}"""
"""The calls of whose texts only the beginning may be indexed."""

_IS_INDEXED = "WHEN {0}.seq > (SELECT low FROM search_state WHERE kind = 'feedback')"
_ADD_FEEDBACK = "INSERT INTO search (rowid, text) VALUES (-new.seq, search_words(new.payload))"
_DROP_FEEDBACK = "INSERT INTO search (search, rowid, text) VALUES ('delete', -old.seq, search_words(old.payload))"
_TRIGGER = "CREATE TRIGGER IF NOT EXISTS feedback_{0} AFTER {1} ON feedback {2} BEGIN {3}; END"
_HASH = f"INSERT INTO search (search, rank) VALUES ('hashsize', {_HASH_BYTES})"
SEARCH_TABLES = (
    """CREATE VIRTUAL TABLE search USING fts5 (text, content = '', columnsize = 0, detail = none,
        tokenize = 'ascii')""",
    _HASH,
    "INSERT INTO search (search, rank) VALUES ('automerge', 16)",
    "INSERT INTO search (search, rank) VALUES ('crisismerge', 64)",
    """CREATE TABLE IF NOT EXISTS search_state (
        kind TEXT PRIMARY KEY, low INTEGER NOT NULL, high INTEGER NOT NULL, version INTEGER NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS search_waiting (rid INTEGER PRIMARY KEY)",
    "CREATE TABLE search_codes (rid INTEGER PRIMARY KEY, codes BLOB NOT NULL)",
    _TRIGGER.format("added", "INSERT", _IS_INDEXED.format("new"), _ADD_FEEDBACK),
    _TRIGGER.format("removed", "DELETE", _IS_INDEXED.format("old"), _DROP_FEEDBACK),
    _TRIGGER.format("changed", "UPDATE OF payload", _IS_INDEXED.format("new"), f"{_DROP_FEEDBACK}; {_ADD_FEEDBACK}"),
)
_BEGIN = (
    "DELETE FROM search_state",
    "DELETE FROM search_waiting",
    "INSERT INTO search_state SELECT 'calls', ifnull(max(rid), 0), ifnull(max(rid), 0), {0} FROM calls",
    "INSERT INTO search_state SELECT 'feedback', ifnull(max(seq), 0), ifnull(max(seq), 0), {0} FROM feedback",
)
_TEXTS = "n.label, c.display_name, bo.exception, bi.inputs, bi.attributes, span_rest(bi.otel_dump), bo.output"
_TEXT_COUNT = 3


def _texts_unless(condition: str, *, of_end: bool) -> str:
    """`_TEXTS` with null for those of the end, or of the start, of a call where a condition holds."""
    columns = _TEXTS.split(", ")
    return ", ".join(
        f"iif({condition}, NULL, {name})" if name.startswith("bo.") is of_end else name for name in columns
    )


INDEXED_BODIES = ("inputs", "attributes", "otel_dump", "output")
_SOURCE = """calls c LEFT JOIN names n ON n.k = c.op LEFT JOIN body_in bi ON bi.rid = c.rid
    LEFT JOIN body_out bo ON bo.rid = c.rid"""
KNOWN = f"""c.project, {_texts_unless("w.rid", of_end=True)} FROM {_SOURCE}
    JOIN search_codes k ON k.rid = c.rid LEFT JOIN search_waiting w ON w.rid = c.rid"""
"""What the index has of calls, behind SELECT and more columns."""
_MISSING = f"""SELECT c.rid, c.project, {_texts_unless("k.rid", of_end=False)} FROM {_SOURCE}
    LEFT JOIN search_codes k ON k.rid = c.rid"""
"""What it lacks of calls that are new or wait."""
_INSERT = "INSERT INTO search (rowid, text) VALUES (?, ?)"
_CODES = """INSERT INTO search_codes VALUES (?, ?)
    ON CONFLICT (rid) DO UPDATE SET codes = CAST(codes || excluded.codes AS BLOB)"""
_WAIT = "INSERT OR IGNORE INTO search_waiting VALUES (?)"
_DELETE = "INSERT INTO search (search, rowid, text) VALUES ('delete', ?, ?)"
_COUNT_REMOVED = """INSERT INTO search_state VALUES ('removed', ?, 0, ?)
    ON CONFLICT (kind) DO UPDATE SET low = low + excluded.low"""
_FEWEST_REMOVED = 1000


def _mark(project: int) -> str:
    """The word that every call of a project has: of a private letter, so that no search text asks for it."""
    return f"\ue000{project}"


def words_of(row: Sequence[Any]) -> str:
    """The words of a call, of its row as (project, *_TEXTS)."""
    return f"{indexed(_searched(row[1:]))} {_mark(row[0])}"


def _searched(texts: Sequence[str | None]) -> str:
    return searched(texts[:_TEXT_COUNT], texts[_TEXT_COUNT:])


def add_functions(raw: sqlite3.Connection) -> None:
    """What statements about the index call: the words of a document, and whether texts of a call hold a search text."""
    raw.create_function("search_words", 1, lambda payload: indexed(searched((), (payload,))), deterministic=True)
    raw.create_function("search_holds", -1, _holds, deterministic=True)


def _holds(text: str, *texts: str | None) -> bool:
    """Whether the fields of a call (all of `_TEXTS`), or one document alone, hold every term of a search text."""
    found = searched((), texts) if len(texts) == 1 else _searched(texts)
    return parse_search(text).is_held_by(found)


def create(raw: sqlite3.Connection) -> None:
    """Make the index; what is stored already is indexed afterwards."""
    if raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'search'").fetchone() is None:
        _make(raw)


def renew(raw: sqlite3.Connection, is_wanted: bool) -> None:
    """Empty an index that is not wanted, and let everything be indexed anew where texts became words in another way."""
    if version_of(raw) == (VERSION if is_wanted else 0):
        if raw.execute("SELECT 1 FROM search_config WHERE k = 'hashsize'").fetchone() is None:
            raw.execute(_HASH)
        return
    raw.execute("BEGIN IMMEDIATE")
    raw.execute("DROP TABLE search")
    raw.execute("DROP TABLE IF EXISTS search_codes")
    _make(raw)
    if not is_wanted:
        raw.execute("UPDATE search_state SET version = 0, low = iif(kind = 'calls', 0, ?), high = 0", (2**62,))
    raw.execute("COMMIT")


def version_of(raw: sqlite3.Connection) -> int:
    return int(raw.execute("SELECT version FROM search_state").fetchone()[0])


def require(raw: sqlite3.Connection) -> None:
    """Raise InvalidRequest where there is no index."""
    if version_of(raw) == 0:
        raise InvalidRequest("Text search is switched off on this server (setting search)")


def _make(raw: sqlite3.Connection) -> None:
    for statement in SEARCH_TABLES:
        raw.execute(statement)
    for statement in _BEGIN:
        raw.execute(statement.format(VERSION))


def withdraw(raw: sqlite3.Connection, rids: Iterable[int], *, is_removed: bool = False) -> None:
    """Take calls out of the index before they change; they wait to be indexed again, unless they are removed."""
    low, high = bounds(raw)
    for chunk in batched(sorted(rid for rid in rids if low < rid <= high)):
        listed = ",".join(map(str, chunk))
        rows = raw.execute(f"SELECT c.rid, {KNOWN} WHERE c.rid IN ({listed}) ORDER BY c.rid").fetchall()
        raw.executemany(_DELETE, [(row[0], words_of(row[1:])) for row in rows])
        raw.execute(_COUNT_REMOVED, (len(rows), VERSION))
        raw.execute(f"DELETE FROM search_codes WHERE rid IN ({listed})")
        if is_removed:
            raw.execute(f"DELETE FROM search_waiting WHERE rid IN ({listed})")
        else:
            raw.executemany(_WAIT, [(rid,) for rid in chunk])


def await_ends(raw: sqlite3.Connection, rids: Iterable[int]) -> None:
    """Let calls wait to be indexed that get what their end brings and change in nothing else."""
    low, high = bounds(raw)
    raw.executemany(_WAIT, [(rid,) for rid in rids if low < rid <= high])


def lower(raw: sqlite3.Connection) -> None:
    """Behind the removal of calls: their numbers may be given again."""
    top = _top(raw)
    raw.execute("UPDATE search_state SET low = min(low, ?1), high = min(high, ?1) WHERE kind = 'calls'", (top,))


def count_removed(raw: sqlite3.Connection) -> int:
    """The entries that were taken out since the index was merged: their words are in the file, marked as gone."""
    found = raw.execute("SELECT low FROM search_state WHERE kind = 'removed' AND version > 0").fetchone()
    return int(found[0]) if found else 0


def needs_merge(raw: sqlite3.Connection) -> bool:
    """True where more entries were taken out than the index may hold."""
    held = "ifnull((SELECT max(rid) FROM calls) - (SELECT min(rid) FROM calls) + 1, 0)"
    return count_removed(raw) > max(_FEWEST_REMOVED, int(raw.execute(f"SELECT {held}").fetchone()[0]))


def end_merge(raw: sqlite3.Connection, removed: int) -> None:
    """Behind the last part of a merge: the words of so many entries are gone."""
    raw.execute("UPDATE search_state SET low = max(0, low - ?) WHERE kind = 'removed'", (removed,))


def merge(raw: sqlite3.Connection, is_first: bool) -> bool:
    """Merge a part of the index, at whose end it holds no words of what was taken out; false once all is merged."""
    before = raw.total_changes
    raw.execute("INSERT INTO search (search, rank) VALUES ('merge', ?)", (_MERGED_PAGES * (-1 if is_first else 1),))
    return raw.total_changes - before >= 2


def bounds(raw: sqlite3.Connection) -> tuple[int, int]:
    low, high = raw.execute("SELECT low, high FROM search_state WHERE kind = 'calls'").fetchone()
    return int(low), int(high)


def _top(raw: sqlite3.Connection) -> int:
    return int(raw.execute("SELECT ifnull(max(rid), 0) FROM calls").fetchone()[0])


def progress(raw: sqlite3.Connection) -> SearchProgress:
    """How many calls and rows of feedback are still to be indexed, and how many there are."""
    (low, high), top = bounds(raw), _top(raw)
    waiting = raw.execute("SELECT count(*) FROM search_waiting").fetchone()[0]
    feedback = raw.execute("SELECT low FROM search_state WHERE kind = 'feedback'").fetchone()[0]
    return SearchProgress(top - high + low + waiting + feedback, top + feedback)


def index_next(raw: sqlite3.Connection, is_old: bool = False) -> bool:
    """Index a slice: of what is new or has changed, or of what was there before the index; false when nothing is left.

    Runs in the writer thread, in one transaction with the note of how far it came.
    """
    low, high = bounds(raw)
    if is_old:
        if not low:
            return _index_feedback(raw)
        first, _ = _index(raw, f"c.rid <= {low} ORDER BY c.rid DESC LIMIT {SLICE}", (0, low))
        raw.execute("UPDATE search_state SET low = ? WHERE kind = 'calls'", (first,))
        return True
    top = _top(raw)
    if high < top:
        last = _index(raw, f"c.rid > {high} ORDER BY c.rid LIMIT {SLICE}", (high, top))[1]
        raw.execute("UPDATE search_state SET high = ? WHERE kind = 'calls'", (last,))
        if last < top:
            return True
    waiting = [row[0] for row in raw.execute("SELECT rid FROM search_waiting ORDER BY rid LIMIT ?", (SLICE,))]
    if waiting:
        listed = ",".join(map(str, waiting))
        _, last = _index(raw, f"c.rid IN ({listed}) ORDER BY c.rid", (0, waiting[-1]))
        raw.execute("DELETE FROM search_waiting WHERE rid <= ?", (last,))
        return len(waiting) == SLICE or last < waiting[-1]
    return False


def _index(raw: sqlite3.Connection, which: str, bounds: tuple[int, int]) -> tuple[int, int]:
    """Index some calls until they make a large slice; returns between which numbers all is indexed now."""
    found: list[tuple[int, str]] = []
    size = 0
    for row in raw.execute(f"{_MISSING} WHERE {which}"):
        words = words_of(row[1:])
        found.append((row[0], words))
        size += len(words)
        if size > _SLICE_CHARS:
            break
    if not found:
        return bounds
    last = found[-1][0]
    # The index takes rows of rising numbers in one go.
    found.sort()
    raw.executemany(_INSERT, found)
    raw.executemany(_CODES, [(rid, codes_of(words)) for rid, words in found])
    return last - 1, last


def _index_feedback(raw: sqlite3.Connection) -> bool:
    low = int(raw.execute("SELECT low FROM search_state WHERE kind = 'feedback'").fetchone()[0])
    found = raw.execute(
        "SELECT -seq, search_words(payload), seq FROM feedback WHERE seq <= ? ORDER BY seq DESC LIMIT ?", (low, SLICE)
    ).fetchall()
    raw.executemany(_INSERT, [row[:2] for row in found])
    raw.execute("UPDATE search_state SET low = ? WHERE kind = 'feedback'", (found[-1][2] - 1 if found else 0,))
    return bool(found)


def calls_that_may_hold(raw: sqlite3.Connection, project: int, text: str) -> list[int] | None:
    """The calls that may have a text as a JSON string in `INDEXED_BODIES`; None where the index is no help.

    Beside those whose words tell it these are all of which it does not know every word.
    """
    if version_of(raw) == 0 or (term := held_words(text)) is None:
        return None
    (low, high), top = bounds(raw), _top(raw)
    waiting = raw.execute("SELECT count(*) FROM search_waiting").fetchone()[0]
    if (low + waiting + top - high) * _MOST_UNREAD > top:
        return None
    words = " AND ".join(f'"{word}"' for word in (*term.words, _mark(project)))
    coded = f"CROSS JOIN search_codes k ON k.rid = s.rowid AND instr(k.codes, X'{term.codes.hex()}') > 0"
    sql = f"""SELECT s.rowid FROM search s {coded if term.codes else ""} WHERE s.search MATCH ? AND s.rowid > 0
        UNION ALL SELECT rid FROM search_waiting
        UNION ALL SELECT rid FROM calls WHERE rid > {high} OR rid <= {low}
        UNION ALL SELECT rid FROM calls INDEXED BY calls_large
            WHERE project = {project} AND (size_in > {MAX_TEXT} OR size_out > {MAX_TEXT})
        LIMIT {_MOST_HOLDING}"""
    found = [row[0] for row in raw.execute(sql, (words,))]
    return found if len(found) < _MOST_HOLDING else None


class Searched(Protocol):
    """A selection of calls with a search among its conditions."""

    table: CallTable
    keyset: str
    parameters: dict[str, Scalar]

    def behind(self, position: Position | None) -> str:
        """The condition that continues behind a position."""

    def narrowed(self, place: int, condition: str) -> "Searched":
        """The same with another condition at a place."""

    def sql(self, columns: str, extra: str = "") -> str:
        """The whole SELECT."""


class Window(NamedTuple):
    """Which rows of an order: so many behind a position."""

    position: Position | None
    limit: int
    offset: int


class Hits:
    """What a text search finds of a project: as SQL, and the newest first."""

    def __init__(self, node: Search, project: str, number: int, bound: Parameters) -> None:
        self.any_of_trace = node.any_of_trace
        self.asked = parse_search(node.text)
        self.place = -1
        """Where its condition stands among those of a selection; below zero where it is no condition of its own."""
        self._number = number
        words = [
            f'"{word}"' + (" *" if term.is_prefix and word is term.words[-1] else "")
            for term in self.asked.terms
            for word in term.words
        ]
        of_calls = bound.value(" AND ".join([*words, f'"{_mark(number)}"']))
        text = bound.value(node.text)
        self._match = f"s.search MATCH {of_calls}"
        self._verified = f"search_holds({text}, {_TEXTS})"
        phrases = [f"instr(k.codes, X'{term.codes.hex()}') > 0" for term in self.asked.terms if term.codes]
        self._has_codes = " AND ".join(phrases)
        prefix = f"{refs.INTERNAL}{project}/call/"
        of_feedback = bound.value(" AND ".join(words))
        feedback = f"""SELECT k.rid FROM search s CROSS JOIN feedback f ON f.seq = -s.rowid
            CROSS JOIN calls k ON k.id = substr(f.weave_ref, {len(prefix) + 1}) AND k.project = {number}
            WHERE s.search MATCH {of_feedback} AND s.rowid < 0 AND f.project = {bound.value(project)}
            AND substr(f.weave_ref, 1, {len(prefix)}) = {bound.value(prefix)}"""
        if not self.asked.is_certain:
            feedback += f" AND search_holds({text}, f.payload)"
        self._others = [feedback]
        if self.asked.exact is not None:
            exact = bound.value(self.asked.exact)
            self._others += (
                f"SELECT rid FROM calls WHERE project = {number} AND {name} = {exact}"
                for name in ("id", "trace_id", "thread_id")
            )

    def sql(self) -> str:
        """The condition on a call."""
        found = f"SELECT s.rowid FROM search s WHERE {self._match} AND s.rowid > 0"
        if not self.asked.is_certain:
            found = (
                f"SELECT c.rid FROM search s CROSS JOIN {_SOURCE.replace('calls c', 'calls c ON c.rid = s.rowid', 1)}"
            )
            found += f" WHERE {self._match} AND s.rowid > 0 AND "
            coded = f"EXISTS (SELECT 1 FROM search_codes k WHERE k.rid = s.rowid AND {self._has_codes})"
            found += f"CASE WHEN {coded} THEN {self._verified} END" if self._has_codes else self._verified
        found = " UNION ALL ".join([found, *self._others])
        if not self.any_of_trace:
            return f"c.rid IN ({found})"
        traces = f"SELECT t.trace_id FROM calls t WHERE t.project = {self._number} AND t.deleted_at IS NULL"
        return f"c.trace_id IN ({traces} AND t.rid IN ({found}))"

    def page(
        self, raw: sqlite3.Connection, selection: Searched, columns: str, window: Window
    ) -> list[tuple[Any, ...]] | None:
        """The rows of a page of an order by time; None where the whole condition has to be asked.

        Few hits are looked up. Many are found by walking the calls by time: the numbers of calls that are near in time
        are near, too, and the index reads those quickly.
        """
        descends = selection.keyset == "<"
        others: set[int] = set()
        for sql in self._others:
            others.update(row[0] for row in raw.execute(f"{sql} LIMIT {_MOST_OTHERS}", selection.parameters))
        is_walk_of_traces = descends and selection.table.query.filter.roots_only
        if len(others) >= _MOST_OTHERS or (self.any_of_trace and not is_walk_of_traces):
            return None
        behind = selection.behind(window.position)
        found: list[tuple[Any, ...]] = []
        traces: set[str] = set()
        wanted = window.offset + window.limit
        for hits, times in self._parts(raw, selection, window.position, descends, lambda: wanted / (len(found) or 1)):
            hits |= others
            if self.any_of_trace:
                traces |= self._traces(raw, selection, hits, others)
                condition, is_certain = f"c.trace_id IN ({','.join(map(quote, sorted(traces)))})", True
            else:
                condition, is_certain = f"c.rid IN ({','.join(map(str, sorted(hits)))})", self.asked.is_certain
            narrowed = selection.narrowed(self.place, f"{condition}{times}")
            rows = raw.execute(narrowed.sql(f"c.rid, {columns}", behind), selection.parameters).fetchall()
            for row in rows if is_certain else self._verify(raw, selection, rows, others):
                found.append(row[1:])
                if len(found) == wanted:
                    return found[window.offset :]
        return found[window.offset :]

    def _parts(
        self,
        raw: sqlite3.Connection,
        selection: Searched,
        position: Position | None,
        descends: bool,
        missing: Callable[[], float],
    ) -> Iterator[tuple[set[int], str]]:
        """Sets of hits with the condition on the time that bounds them, in the order of time.

        `missing` is how many times the hits that the parts before had are wanted: the next part is about that large.
        """

        def matching(bounds: str, has_codes: str) -> set[int]:
            codes = f"CROSS JOIN search_codes k ON k.rid = s.rowid AND {has_codes}" if has_codes else ""
            sql = f"SELECT s.rowid FROM search s {codes} WHERE {self._match} AND {bounds}"
            return {row[0] for row in raw.execute(sql, selection.parameters)}

        few = matching(f"s.rowid > 0 ORDER BY s.rowid DESC LIMIT {_FEW + 1}", "")
        if len(few) <= _FEW:
            if few and self._has_codes:
                listed = ",".join(map(str, few))
                coded = raw.execute(f"SELECT k.rid FROM search_codes k WHERE k.rid IN ({listed}) AND {self._has_codes}")
                few = {row[0] for row in coded}
            yield few, ""
            return
        operator, far, order = ("<", ">", "DESC") if descends else (">", "<", "ASC")
        project = f"project = {self._number}"
        edge = "" if position is None else f" AND started_at {operator}= {position[0]}"
        size = walked = _FIRST_WINDOW
        while True:
            start = f"FROM calls WHERE {project} AND started_at IS NOT NULL{edge}"
            last = raw.execute(
                f"SELECT started_at {start} ORDER BY started_at {order} LIMIT 1 OFFSET {size}"
            ).fetchone()
            inside = edge + (f" AND started_at {far}= {last[0]}" if last is not None else "")
            numbers = f"FROM calls WHERE {project} AND started_at IS NOT NULL{inside}"
            first, top = raw.execute(f"SELECT min(rid), max(rid) {numbers}").fetchone()
            if first is not None:
                hits = matching(f"s.rowid BETWEEN {first} AND {top}", self._has_codes)
                yield hits, inside.replace("started_at", "c.started_at")
            if last is None:
                return
            edge = f" AND started_at {operator} {last[0]}"
            size = max(_FIRST_WINDOW, int(walked * min(_MOST_GROWTH, 1.2 * (missing() - 1))))
            walked += size

    def _verify(
        self, raw: sqlite3.Connection, selection: Searched, rows: list[tuple[Any, ...]], known: set[int]
    ) -> Iterator[tuple[Any, ...]]:
        """The rows whose texts hold what is asked, read little by little."""
        for chunk in batched(rows, _VERIFIED_AT_ONCE):
            listed = ",".join(str(row[0]) for row in chunk)
            sql = f"SELECT c.rid FROM {_SOURCE} WHERE c.rid IN ({listed}) AND {self._verified}"
            held = known.union(row[0] for row in raw.execute(sql, selection.parameters))
            yield from (row for row in chunk if row[0] in held)

    def _traces(self, raw: sqlite3.Connection, selection: Searched, hits: set[int], known: set[int]) -> set[str]:
        """The traces of hits."""
        listed = ",".join(map(str, sorted(hits)))
        where = f"c.rid IN ({listed}) AND c.project + 0 = {self._number} AND c.deleted_at IS NULL"
        if self.asked.is_certain:
            return {row[0] for row in raw.execute(f"SELECT DISTINCT c.trace_id FROM calls c WHERE {where}") if row[0]}
        rows = raw.execute(f"SELECT c.rid, c.trace_id FROM calls c WHERE {where}").fetchall()
        return {row[1] for row in self._verify(raw, selection, rows, known) if row[1]}
