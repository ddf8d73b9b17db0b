"""The verbs of calls on the embedded store."""

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from heddle.store.base import GoesOn, go_on
from heddle.store.control.agents import spans as agent_index
from heddle.store.control.audit import audit
from heddle.store.control.log_records import remove_of_spans
from heddle.store.query.calls import Position, sum_turns
from heddle.store.sqlite import blocks, usage_repeats
from heddle.store.sqlite.call_bodies import WHOLE_DUMP
from heddle.store.sqlite.call_table import (
    SLOW_SECONDS,
    Page,
    PathIndexes,
    SqliteSelection,
    fetch,
    read_usage,
    select,
    trace_sizes,
)
from heddle.store.sqlite.call_writes import CallWriter, TrialRows, delete, purge, purge_older
from heddle.store.sqlite.database import Readers, Session, reads
from heddle.store.sqlite.names import NameReader, Names
from heddle.store.sqlite.search import Window, index_next, progress
from heddle.store.sqlite.writer import Writer
from heddle.wire import times
from heddle.wire.batched import batched
from heddle.wire.calls import (
    CallRow,
    CallsQuery,
    Contents,
    DumpSlice,
    End,
    Ending,
    Filter,
    SearchProgress,
    Start,
    ThreadRow,
    Usage,
    UsageRow,
)
from heddle.wire.query import Scalar
from heddle.wire.spans import AgentSpan

_DUMP_BYTES = 4 * 1024 * 1024
FIRST_PAGE = 256
INDEX_SECONDS = 0.5
"""New calls wait so long to be indexed together."""
AGENT_SPAN_BYTES = 600
NEXT_PAGE = 8192
PURGE_SLICE = 500
_USAGE_SLICE = 2000
_USER = " OR ".join(f"bi.attributes ->> '{path}' = ?2" for path in ("$.user", "$.user_id", '$."user.id"', "$.user.id"))
_FOUND = {
    "call": "WHERE c.project = ?1 AND c.id = ?2",
    "trace": "WHERE c.project = ?1 AND c.trace_id = ?2",
    "thread": "WHERE c.project = ?1 AND c.thread_id = ?2",
    "user": f"""LEFT JOIN body_in bi ON bi.rid = c.rid
        WHERE c.project = ?1 AND (c.user = (SELECT k FROM names WHERE v = ?2) OR {_USER})""",
    "project": "WHERE c.project = ?1 AND ?2 = ''",
}
"""How the calls of a subject are found."""
_CONTENT = """SELECT c.trace_id, c.thread_id, bi.inputs, bi.attributes, bo.output, bo.summary
    FROM calls c LEFT JOIN body_in bi ON bi.rid = c.rid LEFT JOIN body_out bo ON bo.rid = c.rid
    WHERE c.id = ? AND c.project = ?"""
_CONTENT_FILES = "SELECT f.blob FROM calls c JOIN call_files f ON f.rid = c.rid WHERE c.id = ? AND c.project = ?"
_ENDED = """INSERT INTO call_endings (project, call) SELECT project, id FROM calls
    WHERE project = ? AND id = ? AND ended_at IS NOT NULL AND started_at IS NOT NULL AND deleted_at IS NULL"""
T = TypeVar("T")
Halves = tuple[Sequence[Start], Sequence[End]]


class Calls:
    """`CallStore` in SQLite: head, bodies, usage and refs written together, read in slices."""

    def __init__(
        self,
        writer: Writer,
        readers: Readers,
        long_readers: Readers,
        names: Names,
        indexes: PathIndexes,
        read_file: Callable[[str], str],
        trials: TrialRows,
    ) -> None:
        """`long_readers` read what follows the first slice of a page: those who read everything take turns there."""
        self._writer = writer
        self._readers = readers
        self._long_readers = long_readers
        self._names = names
        self._reader_names = NameReader()
        self._indexes = indexes
        self._read_file = read_file
        self._calls = CallWriter(names)
        self._watched: frozenset[str] = frozenset()
        """The projects (internal ids) whose calls go into the outbox of those that ended."""
        self._trials = trials
        self.has_endings = asyncio.Event()
        self._has_unindexed = asyncio.Event()
        self._has_unindexed.set()

    async def write(self, starts: Sequence[Start], ends: Sequence[End], agents: Sequence[AgentSpan] = ()) -> None:
        size = _size_of(starts, ends) + AGENT_SPAN_BYTES * len(agents)
        if any(start.otel_dump is not None for start in starts):
            await self._writer.write(lambda session: self._write(session, starts, ends, agents), size)
        else:
            await self._writer.write_jointly(self._write_all, (starts, ends), size)
        self._note_written(starts, ends)

    async def add_missing(self, starts: Sequence[Start], ends: Sequence[End]) -> int:
        def work(session: Session) -> Halves:
            missing = self._calls.leave_out_known(session.raw, starts, ends)
            self._write(session, *missing)
            return missing

        added = await self._writer.write(work, _size_of(starts, ends))
        self._note_written(*added)
        return len({(half.project, half.id) for part in added for half in part})

    def _note_written(self, starts: Sequence[Start], ends: Sequence[End]) -> None:
        self._writer.stats.calls += len(starts)
        self._has_unindexed.set()
        if self._is_watched(starts, ends):
            self.has_endings.set()

    def _is_watched(self, starts: Sequence[Start], ends: Sequence[End]) -> bool:
        watched = self._watched
        return bool(watched) and any(half.project in watched for part in (starts, ends) for half in part)

    def _write_all(self, session: Session, brought: list[Halves]) -> None:
        """Write what several requests bring, as if it were one."""
        starts, ends = ([half for part in parts for half in part] for parts in zip(*brought, strict=True))
        self._write(session, starts, ends)

    def _write(
        self, session: Session, starts: Sequence[Start], ends: Sequence[End], agents: Sequence[AgentSpan] = ()
    ) -> None:
        spans: dict[usage_repeats.TraceKey, usage_repeats.Written] = {}
        if any(start.otel_dump is not None for start in starts):
            spans = usage_repeats.settle_new(session.raw, self._names, usage_repeats.spans_of(starts, ends))
        placed = self._calls.write(session.raw, starts, ends)
        if spans:
            usage_repeats.drop(session.raw, self._names, spans)
        if placed:
            usage_repeats.mark(session.raw, self._names, placed)
        self._trials.note(session.raw, starts, ends)
        if self._is_watched(starts, ends):
            halves = (half for part in (starts, ends) for half in part if half.project in self._watched)
            keys = dict.fromkeys((self._names.number(session.raw, half.project), half.id) for half in halves)
            session.raw.executemany(_ENDED, keys)
        if agents:
            agent_index.write(session.control, agents)

    def watch(self, projects: Collection[str], seen: int) -> None:  # noqa: ARG002  # no other server changes monitors
        self._watched = frozenset(projects)

    async def take_endings(self, limit: int, skipping: Collection[str] = ()) -> list[Ending]:
        known = "FROM call_endings e JOIN names n ON n.k = e.project"
        marks = ", ".join("?" * len(skipping))
        oldest = f"SELECT e.project {known} WHERE n.v NOT IN ({marks}) ORDER BY e.seq LIMIT 1"
        taken = f"SELECT e.seq, n.v, e.call {known} WHERE e.project = ? AND e.is_taken ORDER BY e.seq"
        first = "SELECT seq FROM call_endings WHERE project = ? ORDER BY seq LIMIT ?"

        def work(session: Session) -> list[Ending]:
            """The same batch again until it is dropped, whatever is added."""
            raw = session.raw
            found = raw.execute(oldest, tuple(skipping)).fetchone()
            if found is None:
                return []
            batch = raw.execute(taken, found).fetchall()
            if not batch:
                raw.execute(f"UPDATE call_endings SET is_taken = 1 WHERE seq IN ({first})", (*found, limit))
                batch = raw.execute(taken, found).fetchall()
            return [Ending(*row) for row in batch]

        return await self._writer.write(work)

    async def count_endings(self) -> int:
        return await self._readers.read(lambda session: _number(session, "SELECT count(*) FROM call_endings", {}))

    async def drop_endings(self, endings: Sequence[Ending]) -> None:
        listed = [(ending.seq,) for ending in endings]
        sql = "DELETE FROM call_endings WHERE seq = ?"
        await self._writer.write(lambda session: session.raw.executemany(sql, listed))

    async def rename(self, project: str, call_id: str, display_name: str) -> None:
        await self._writer.write(lambda session: self._calls.rename(session.raw, project, call_id, display_name))
        self._has_unindexed.set()

    async def delete(self, project: str, ids: Sequence[str], user: str) -> int:
        """Hide calls and their descendants; returns how many. The audit log names them in the same transaction."""

        def work(session: Session) -> int:
            at = times.now()
            hidden = delete(session.raw, self._names.number(session.raw, project), ids, at)
            count = len(hidden.ids)
            if count:
                self._trials.deleted(session.raw, project, ids)
                agent_index.hide(session.control, project, hidden.traces, hidden.ids)
                remove_of_spans(session.control, project, hidden.traces, hidden.ids)
                audit(session.control, at, user, "calls.delete", project, {"call_ids": list(ids), "deleted": count})
            return count

        return await self._writer.write(work)

    async def purge_older(self, project: str, before: int, goes_on: GoesOn = go_on) -> int:
        """Remove the calls that started before an instant for good, in slices that let writers through."""
        total = 0
        while await goes_on():

            def work(session: Session) -> tuple[int, int]:
                number = self._names.number(session.raw, project)
                calls = purge_older(session.raw, number, before, PURGE_SLICE)
                return calls, agent_index.purge_older(session.control, project, before, PURGE_SLICE)

            removed, spans = await self._writer.write(work)
            total += removed
            if removed < PURGE_SLICE and spans < PURGE_SLICE:
                break

        def tidy(session: Session) -> None:
            blocks.remove_empty(session.raw, self._names.number(session.raw, project))
            session.raw.execute("PRAGMA incremental_vacuum(20000)").fetchall()

        if total:
            await self._writer.write(tidy)
        return total

    async def find(self, project: str, kind: str, name: str, limit: int | None = None) -> list[str]:
        def work(session: Session) -> list[str]:
            number = self._reader_names.number(session.raw, project)
            sql = f"SELECT c.id FROM calls c {_FOUND[kind]} LIMIT ?3"
            return [row[0] for row in session.raw.execute(sql, (number, name, -1 if limit is None else limit))]

        return await self._long_readers.read(work)

    @reads
    def find_deleted(self, session: Session, project: str, ids: Sequence[str]) -> set[str]:
        number = self._reader_names.number(session.raw, project)
        sql = "SELECT id FROM calls WHERE id = ? AND project = ? AND deleted_at IS NOT NULL"
        return {found for call_id in ids for (found,) in session.raw.execute(sql, (call_id, number))}

    @reads
    def children(self, session: Session, project: str, ids: Sequence[str]) -> list[str]:
        number = self._reader_names.number(session.raw, project)
        sql = "SELECT id FROM calls WHERE parent_id = ? AND project = ?"
        return [child for call_id in ids for (child,) in session.raw.execute(sql, (call_id, number))]

    @reads
    def content(self, session: Session, project: str, ids: Sequence[str]) -> Contents:
        found = Contents()
        number = self._reader_names.number(session.raw, project)
        blobs: dict[str, None] = {}
        for key in ((call_id, number) for call_id in ids):
            for trace, *texts in session.raw.execute(_CONTENT, key):
                found.traces.update((trace,) if trace else ())
                found.texts += [text for text in texts if text]
            blobs |= dict.fromkeys(blob for (blob,) in session.raw.execute(_CONTENT_FILES, key))
        found.texts += map(self._read_file, blobs)
        return found

    async def purge(self, project: str, ids: Sequence[str]) -> int:
        total = 0
        for part in batched(ids, PURGE_SLICE):

            def work(session: Session, part: Sequence[str] = part) -> int:
                removed = purge(session.raw, self._names.number(session.raw, project), part)
                self._trials.deleted(session.raw, project, part)
                return removed

            total += await self._writer.write(work)
        return total

    async def purge_project(self, project: str) -> int:
        total = 0
        while ids := await self.find(project, "project", "", PURGE_SLICE):
            total += await self.purge(project, ids)
        return total

    async def index(self) -> None:
        """Keep the index of text search behind the calls, and bring in what was there before it."""
        loop, is_behind = asyncio.get_running_loop(), True
        while True:
            if not is_behind:
                await self._has_unindexed.wait()
            await asyncio.sleep(INDEX_SECONDS if self._has_unindexed.is_set() else 0)
            self._has_unindexed.clear()
            while await self._writer.write(lambda session: index_next(session.raw)):
                pass
            began = loop.time()
            is_behind = await self._writer.write(lambda session: index_next(session.raw, is_old=True))
            # What is old leaves half of the time to everybody else.
            await asyncio.sleep(loop.time() - began if is_behind else 0)

    async def search_progress(self, project: str) -> SearchProgress:  # noqa: ARG002  # one index for all
        return await self._readers.read(lambda session: progress(session.raw))

    @reads
    def exists(self, session: Session, project: str, call_id: str) -> bool:
        number = self._reader_names.number(session.raw, project)
        row = session.raw.execute("SELECT 1 FROM calls WHERE id = ? AND project = ?", (call_id, number)).fetchone()
        return row is not None

    async def stream(self, query: CallsQuery) -> AsyncIterator[list[CallRow]]:
        """The selected calls in slices; the query is checked before the first slice (InvalidField is raised there).

        Row numbers come first (in pages when the order allows it), bodies afterwards, so that memory stays flat.
        """
        remaining = query.limit
        offset, position, page_size = query.offset, None, FIRST_PAGE
        while True:
            want = page_size if remaining is None else min(page_size, remaining)
            page = await self._page(query, want, remaining, offset, position)
            ends = [*page.slice_ends()]
            if page.rows:
                yield page.rows
                page.rows = []
            for start, end in pairwise(ends):
                yield await self._long_readers.read(partial(self._fetch, query, page.rids[start:end]))
            remaining = None if remaining is None else remaining - len(page.rids)
            offset, position, page_size = 0, page.last, NEXT_PAGE
            if not page.is_followed or remaining == 0:
                break

    async def _page(
        self, query: CallsQuery, want: int, remaining: int | None, offset: int, position: Position | None
    ) -> Page:
        """The next page with its first slice; an order without a keyset delivers all rows at once."""

        def choose(session: Session) -> Page:
            page = Page(last=position)
            selection = self._select(session, query)
            if selection is None:
                return page
            limit = want if selection.keyset else (remaining if remaining is not None else -1)
            size = "c.size_in + c.size_out" if query.columns else "0"
            columns = f"c.rid, c.started_at, c.id, {size}"
            found: Iterable[Sequence[Any]] | None = None
            if selection.hits is not None and selection.keyset:
                found = selection.hits.page(session.raw, selection, columns, Window(position, limit, offset))
            if found is None:
                sql = f"{selection.sql(columns, selection.behind(position))} LIMIT {limit} OFFSET {offset}"
                found = session.raw.execute(sql, selection.parameters)
            for rid, started_at, call_id, bytes_ in found:
                page.rids.append(rid)
                page.sizes.append(bytes_ or 0)
                page.last = (started_at, call_id)
            page.is_followed = bool(selection.keyset) and len(page.rids) == limit
            return page

        def work(session: Session) -> Page:
            page = self._timed(session, query, choose)
            page.rows = self._fetch(query, page.rids[: next(page.slice_ends(), 0)], session)
            return page

        return await self._readers.read(work)

    def _fetch(self, query: CallsQuery, rids: "array[int]", session: Session) -> list[CallRow]:
        read_file = None if query.shortened else self._read_file
        rows = fetch(session.raw, self._reader_names, rids, query.columns, read_file)
        if query.trace_sizes:
            project = self._reader_names.number(session.raw, query.project) or 0
            trace_sizes(session.raw, project, rows)
        return rows

    async def _read_timed(self, query: CallsQuery, work: Callable[[Session], T]) -> T:
        return await self._readers.read(lambda session: self._timed(session, query, work))

    def _timed(self, session: Session, query: CallsQuery, work: Callable[[Session], T]) -> T:
        before = time.perf_counter()
        result = work(session)
        seconds = time.perf_counter() - before
        if query.query is not None and seconds > SLOW_SECONDS:
            selection = select(session.raw, self._reader_names, query)
            self._indexes.note(selection.indexable if selection else [])
        return result

    def _select(self, session: Session, query: CallsQuery) -> SqliteSelection | None:
        selection = select(session.raw, self._reader_names, query)
        if selection is not None and (built := self._indexes.built(selection.indexable)):
            selection.answer_by(built[0])
        return selection

    def _select_all(self, session: Session, query: CallsQuery) -> SqliteSelection | None:
        """The same for a question about every selected call."""
        selection = self._select(session, query)
        if selection is not None:
            selection.look_up_holding(session.raw, self._reader_names.number(session.raw, query.project) or 0)
        return selection

    async def count(self, query: CallsQuery) -> int:
        def work(session: Session) -> int:
            if (known := blocks.count(session.raw, self._reader_names, query)) is not None:
                return known
            selection = self._select_all(session, query)
            if selection is None:
                return 0
            if query.limit is None:
                return _number(session, selection.sql("count(*)", order=False), selection.parameters)
            inner = selection.sql("1", order=False) + f" LIMIT {query.limit}"
            return _number(session, f"SELECT count(*) FROM ({inner})", selection.parameters)

        return await self._read_timed(query, work)

    @reads
    def otel_dumps(self, session: Session, project: str, ids: Sequence[str], containing: str = "") -> DumpSlice:
        query = f"""SELECT c.trace_id, {WHOLE_DUMP} FROM calls c
            JOIN body_in bi ON bi.rid = c.rid LEFT JOIN body_out bo ON bo.rid = c.rid
            WHERE c.id = ? AND c.project = ? AND c.deleted_at IS NULL AND c.started_at IS NOT NULL
            AND bi.otel_dump IS NOT NULL"""
        number = self._reader_names.number(session.raw, project)
        found: list[tuple[str, str, str]] = []
        size = 0
        for read, call_id in enumerate(ids, 1):
            row = session.raw.execute(query, (call_id, number)).fetchone()
            if row is not None and containing in row[1]:
                found.append((call_id, row[0], row[1]))
                size += len(row[1])
                if size >= _DUMP_BYTES:
                    return DumpSlice(found, read)
        return DumpSlice(found, len(ids))

    async def bytes_of(self, query: CallsQuery) -> int:
        def work(session: Session) -> int:
            selection = self._select_all(session, query)
            if selection is None:
                return 0
            sql = selection.sql("ifnull(sum(c.size_in + c.size_out), 0)", order=False)
            return _number(session, sql, selection.parameters)

        return await self._read_timed(query, work)

    async def storage_size(self, project: str) -> int:
        return await self.bytes_of(CallsQuery(project))

    @reads
    def traces_of(self, session: Session, project: str, ids: Sequence[str]) -> list[str]:
        selection = select(session.raw, self._reader_names, CallsQuery(project, Filter(call_ids=tuple(ids))))
        if selection is None:
            return []
        rows = session.raw.execute(selection.sql("DISTINCT c.trace_id", order=False), selection.parameters)
        return [str(row[0]) for row in rows]

    async def usage(self, query: CallsQuery) -> list[UsageRow]:
        def work(session: Session) -> list[UsageRow]:
            selection = self._select(session, query)
            if selection is None:
                return []
            columns = "c.rid, c.id, c.parent_id, c.ended_at IS NOT NULL, c.started_at"
            sql = selection.sql(columns) + ("" if query.limit is None else f" LIMIT {query.limit}")
            rows = session.raw.execute(sql, selection.parameters).fetchall()
            project = self._reader_names.number(session.raw, query.project) or 0
            return list(self._with_usage(session, project, rows))

        return await self._read_timed(query, work)

    def _with_usage(
        self, session: Session, project: int, rows: list[tuple[int, str, str | None, int, int]]
    ) -> Iterator[UsageRow]:
        parents: dict[str, str] = {}
        nothing: list[Usage] = []
        for offset in range(0, len(rows), _USAGE_SLICE):
            part = rows[offset : offset + _USAGE_SLICE]
            found = read_usage(session.raw, self._reader_names, project, [(row[0], row[4]) for row in part])
            for rid, call_id, parent_id, ended, started_at in part:
                # Children share the text of their parent's id: a trace may have very many.
                shared = parents.setdefault(parent_id, parent_id) if parent_id is not None else None
                yield UsageRow(call_id, shared, bool(ended), started_at, found.get(rid, nothing))

    @reads
    def threads(
        self, session: Session, project: str, thread_ids: Sequence[str] | None, after: int | None, before: int | None
    ) -> list[ThreadRow]:
        sql = "SELECT c.thread_id, c.id, c.started_at, c.ended_at FROM calls c WHERE c.project = ?"
        sql += " AND c.thread_id <> '' AND c.turn_id = c.id AND c.deleted_at IS NULL AND c.started_at IS NOT NULL"
        parameters: list[str | int | None] = [self._reader_names.number(session.raw, project)]
        if thread_ids:
            sql += f" AND c.thread_id IN ({', '.join('?' * len(thread_ids))})"
            parameters.extend(thread_ids)
        for operator, instant in ((">", after), ("<", before)):
            if instant is not None:
                sql += f" AND c.started_at {operator} ?"
                parameters.append(instant)
        return sum_turns(session.raw.execute(sql + " ORDER BY c.started_at, c.id", parameters))


def _number(session: Session, sql: str, parameters: dict[str, Scalar]) -> int:
    return int(session.raw.execute(sql, parameters).fetchone()[0])


def _size_of(starts: Sequence[Start], ends: Sequence[End]) -> int:
    return sum(start.size for start in starts) + sum(end.size for end in ends) + 200
