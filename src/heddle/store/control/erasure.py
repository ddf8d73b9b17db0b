"""What a purge removes from the control tables."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, get_args
from urllib.parse import unquote

import sqlalchemy as sa

from heddle.store.control.agents.spans import renew_traces
from heddle.store.control.audit import audit_log
from heddle.store.control.eval_jobs import OPEN, EvalJobs, JobRow, eval_jobs, replay_items
from heddle.store.control.feedback import feedback
from heddle.store.control.files import files
from heddle.store.control.metric_series import metric_points, metric_series, metric_streams
from heddle.store.control.objects import object_versions
from heddle.store.control.project_tables import (
    ADAPTERS,
    CHUNKS,
    FILES,
    PROJECT_TABLES,
    RESPONSES,
    ROWS,
    TABLES,
    TRAIN_JOBS,
    TRAIN_LOGS,
    Condition,
    FoundCalls,
    ProjectTable,
)
from heddle.store.control.repository import Repository, begins_with, reads, writes
from heddle.store.control.responses import responses
from heddle.store.control.row_queries import Containing, Listed
from heddle.store.control.table_rows import table_chunks, table_rows, tables
from heddle.store.control.training import train_events, train_jobs
from heddle.wire import jsontext, refs
from heddle.wire.batched import batched
from heddle.wire.jsontypes import Json

SubjectKind = Literal["call", "trace", "thread", "user", "object", "project"]
SUBJECTS: tuple[SubjectKind, ...] = get_args(SubjectKind)
PURGE_JOB = "purge"
"""The kind of the jobs that do it."""
IMPORT_JOB = "import_archive"
"""The kind of the jobs that may write anything to each project of `into` in their body."""
ERASED_USER = "(erased)"
"""Stands where rows that others need name a user who was erased."""

_SLICE = 2000
"""Rows that one transaction removes, so that writers come in between."""
_ODD = re.compile(r"[^A-Za-z0-9_-]|^.{0,7}$", re.DOTALL)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{8,}")
_STRING = re.compile(r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"(\s*+:)?', re.DOTALL)
"""A string of JSON, and what makes it a key."""
_REF = re.compile(r":///(?:[^\s\"/]*+/){1,2}(?:object|op|call)/([^:/\s\"]++)")
_KINDS = frozenset(("role", "type", "object", "kind", "state", "status", "finish_reason"))
"""Keys whose values are words of an interface, whatever somebody is named."""
_IS_OPEN = eval_jobs.c.state.in_(OPEN)
Counts = dict[str, int]


def tokens_of(text: str) -> set[str]:
    """The parts of a text that may be ids or digests."""
    return set(_TOKEN.findall(text))


class NamedIn:
    """Tells texts in which any of some ids stands, or a name: as a value of JSON, or as what a ref points to."""

    def __init__(self, ids: Collection[str] = (), name: str = "") -> None:
        self._ids = {one for one in ids if not _ODD.search(one)}
        self._names = {one for one in (*(one for one in ids if one not in self._ids), name) if one}

    def __call__(self, text: str) -> bool:
        if self._ids and any(found.group() in self._ids for found in _TOKEN.finditer(text)):
            return True
        return bool(self._names) and self._is_named(text)

    def _is_named(self, text: str) -> bool:
        if any(unquote(found[1]) in self._names for found in _REF.finditer(text)):
            return True
        key = ""
        for found in _STRING.finditer(text):
            value, is_key = _unescape(found[1]), found[2]
            if is_key:
                key = value
            elif value in self._names and key not in _KINDS:
                return True
        return False


def _unescape(text: str) -> str:
    try:
        return str(jsontext.loads(f'"{text}"'.encode())) if "\\" in text else text
    except ValueError:
        return text


REMOVE_ORPHANS = tuple(
    f"DELETE FROM {table} WHERE {column} NOT IN (SELECT {key} FROM {above})"
    for table, column, above, key in (
        ("annotation_queue_items", "queue_id", "annotation_queues", "id"),
        ("annotation_progress", "item_id", "annotation_queue_items", "id"),
        ("conversation_items", "conversation_id", "conversations", "id"),
        ("table_chunks", "table_number", "tables", "number"),
        ("replay_items", "replay_id", "eval_jobs", "id"),
        ("train_jobs", "model_id", "train_models", "id"),
        ("train_events", "job_id", "train_jobs", "id"),
    )
)
"""How an upgrade removes rows that earlier versions left when what they belong to was removed."""


class Erasure(Repository):
    """Removes rows for good, a slice in each transaction; projects are internal ids."""

    async def _remove(self, erased: ProjectTable, condition: Condition, counts: Counts) -> set[str]:
        """Remove rows, a slice after the other; returns the folders that they named."""
        folders = set[str]()
        key = list(erased.table.primary_key.columns)
        chosen = sa.select(*key).where(condition).order_by(*(key if _below(erased) else ())).limit(_SLICE)
        part = (sa.tuple_(*key) if len(key) > 1 else key[0]).in_(chosen)
        while True:
            removed = await self._executor.write(lambda connection: _delete(connection, erased, part, folders))
            for name, count in removed.items():
                counts[name] = counts.get(name, 0) + count
            if removed.get(erased.table.name, 0) < _SLICE:
                return folders

    async def project(self, project: str, counts: Counts) -> set[str]:
        """Remove everything of a project but jobs that are open, such as the one that does it.

        Returns the folders of checkpoints and adapters, which are to be removed, too.
        """
        folders = set[str]()
        for erased in PROJECT_TABLES:
            condition = erased.within([project])
            if erased.table is eval_jobs:
                condition = sa.and_(condition, ~_IS_OPEN)
            folders |= await self._remove(erased, condition, counts)
        entity, _, name = (refs.external_project(project) or "/").partition("/")
        named = jsontext.dumps({"entity": entity, "project": name})[1:-1]
        mine = sa.or_(
            audit_log.c.project == project,
            Containing(sa.cast(audit_log.c.details, sa.Text), named, folded=False),
        )
        emptied = audit_log.update().where(mine, audit_log.c.action.not_like("purge%")).values(details={})
        await self._execute(emptied)
        return folders

    async def adapters(self, project: str, counts: Counts) -> set[str]:
        """Forget the adapters of a project; returns their folders, which are to be removed, too."""
        return await self._remove(ADAPTERS, ADAPTERS.within([project]), counts)

    async def calls(self, found: FoundCalls, counts: Counts) -> None:
        """Remove what belongs to calls; the identity of their traces is that of the spans that stay."""
        for erased in PROJECT_TABLES:
            if erased.of_calls is not None:
                await self._remove(erased, erased.of_calls(found), counts)
        await self._executor.write(lambda connection: renew_traces(connection, found.project, found.traces))

    async def named(self, project: str, kind: SubjectKind, name: str, counts: Counts) -> None:
        """Remove what belongs to a thread, a user or an object beside calls; rows of others lose the user's name."""
        for erased in PROJECT_TABLES:
            if kind in erased.of:
                await self._remove(erased, erased.of[kind](project, name), counts)
            for author in erased.authors if kind == "user" else ():
                column = erased.table.c[author]
                change = erased.table.update().where(erased.within([project]), column == name)
                await self._execute(change.values({author: ERASED_USER}))
        if kind == "user":
            await self._executor.write(lambda connection: _erase_series(connection, project, name))

    async def mentions(self, project: str, is_named: Callable[[str], bool], counts: Counts) -> None:
        """Remove the rows in whose words anything stands that `is_named` knows, and what is below them.

        Jobs that are open stay.
        """
        for erased in PROJECT_TABLES:
            if not erased.words:
                continue
            key = next(iter(erased.table.primary_key.columns))
            query = sa.select(key, *(sa.cast(erased.table.c[name], sa.Text) for name in erased.words))
            query = query.where(erased.within([project]))
            if erased.table is eval_jobs:
                query = query.where(~_IS_OPEN)

            def read(connection: sa.Connection, query: sa.Select[Any] = query) -> list[Any]:
                rows = connection.execution_options(yield_per=50).execute(query)
                return [row[0] for row in rows if any(text is not None and is_named(text) for text in row[1:])]

            for_good = await self._executor.read(read)
            if for_good:
                chosen = Listed(sa.cast(key, sa.Text), [str(one) for one in for_good])
                for column, below in _below(erased):
                    above = sa.select(erased.table.c[below.parent_key]).where(chosen)
                    await self._remove(below, column.in_(above), counts)
                await self._remove(erased, chosen, counts)

    @reads
    def open_jobs(self, connection: sa.Connection, project: str) -> list[JobRow]:
        """The jobs that wait or run and write to a project, but for purges: its own, and imports of others."""
        c, name = eval_jobs.c, refs.external_project(project)
        chosen = sa.or_(sa.and_(c.project_id == name, c.kind != PURGE_JOB), c.kind == IMPORT_JOB)
        found = EvalJobs.jobs.all(connection, EvalJobs.jobs.select(chosen, _IS_OPEN))
        return [row for row in found if row.project_id == name or name in row.body.get("into", ())]

    @reads
    def copies(self, connection: sa.Connection, found: FoundCalls) -> tuple[list[str], list[tuple[str, int]]]:
        """What was made of some calls: the calls of scorers, and replays with the places that the calls have there."""
        f, i = feedback.c, replay_items.c
        scores = sa.select(f.call_ref).where(f.project == found.project, Listed(f.weave_ref, found.refs))
        given = connection.execute(scores.where(f.call_ref.is_not(None))).scalars()
        mine = sa.select(eval_jobs.c.id).where(eval_jobs.c.project_id == refs.external_project(found.project))
        replays = sa.select(i.replay_id, i.place).where(Listed(i.call_id, found.ids), i.replay_id.in_(mine))
        own = [ref.name for ref in map(refs.parse, given) if ref.project == found.project]
        return own, [(row[0], row[1]) for row in connection.execute(replays)]

    @reads
    def folders(self, connection: sa.Connection, project: str) -> list[str]:
        """The folders of the adapters of a project."""
        query = sa.select(ADAPTERS.table.c.folder).where(ADAPTERS.within([project]))
        return list(connection.execute(query).scalars())

    @reads
    def payloads(self, connection: sa.Connection, project: str) -> list[tuple[str, str, str]]:
        """Table, id and blob of what training in a project was given."""
        found = []
        for erased in (TRAIN_JOBS, TRAIN_LOGS):
            c = erased.table.c
            query = sa.select(c.id, c.payload).where(erased.within([project]))
            found += [(erased.table.name, row[0], row[1]) for row in connection.execute(query)]
        return found

    async def payload(self, table: str, row_id: str, counts: Counts) -> None:
        """Remove a training job or a log with what it was given."""
        if table == train_jobs.name:
            await self._execute(train_events.delete().where(train_events.c.job_id == row_id))
        erased = TRAIN_JOBS if table == train_jobs.name else TRAIN_LOGS
        await self._remove(erased, erased.table.c.id == row_id, counts)

    @reads
    def known(self, connection: sa.Connection, project: str, words: Sequence[str]) -> dict[str, list[str]]:
        """Which of some words are a file, a table, or a stored response of a project."""
        r = responses.c
        queries = {
            "files": sa.select(files.c.digest).where(files.c.project == project, Listed(files.c.digest, words)),
            "tables": sa.select(tables.c.digest).where(tables.c.project == project, Listed(tables.c.digest, words)),
            "responses": sa.select(r.id).where(
                r.owner == project, sa.or_(Listed(r.id, words), Listed(r.thread_id, words))
            ),
        }
        return {name: list(connection.execute(query).scalars()) for name, query in queries.items()}

    @reads
    def object_texts(self, connection: sa.Connection, project: str, name: str | None) -> list[str]:
        """The values of an object's versions, or of all objects of a project."""
        chosen = sa.select(object_versions.c.val).where(object_versions.c.project == project)
        if name is not None:
            chosen = chosen.where(object_versions.c.object_id == name)
        return list(connection.execute(chosen).scalars())

    @reads
    def feedback_texts(self, connection: sa.Connection, project: str) -> list[str]:
        """The payloads of a project's feedback."""
        return list(connection.execute(sa.select(feedback.c.payload).where(feedback.c.project == project)).scalars())

    @reads
    def rows_of_tables(self, connection: sa.Connection, project: str, digests: Sequence[str], inside: bool) -> set[str]:
        """The digests of the rows of some tables of a project, or of all others."""
        chosen = Listed(tables.c.digest, digests)
        query = sa.select(table_chunks.c.row_digests).join(tables, tables.c.number == table_chunks.c.table_number)
        query = query.where(tables.c.project == project, chosen if inside else sa.not_(chosen))
        return {digest for (text,) in connection.execute(query) for digest in jsontext.loads(text.encode())}

    async def remove_known(self, project: str, name: str, words: Sequence[str], counts: Counts) -> None:
        """Remove files, tables, rows of tables or responses by their digests or ids."""
        places = {
            "files": (FILES, files.c.digest, files.c.project),
            "tables": (TABLES, tables.c.digest, tables.c.project),
            "table_rows": (ROWS, table_rows.c.digest, table_rows.c.project),
            "responses": (RESPONSES, responses.c.id, responses.c.owner),
        }
        erased, column, owner = places[name]
        condition = sa.and_(owner == project, Listed(column, words))
        if name == "tables":
            of_them = table_chunks.c.table_number.in_(sa.select(tables.c.number).where(condition))
            await self._remove(CHUNKS, of_them, counts)
        await self._remove(erased, condition, counts)

    @writes
    def forget_request(self, connection: sa.Connection, job_id: str, body: Json, progress: Json) -> None:
        """Let the job that purged name its subject no more."""
        change = eval_jobs.update().where(eval_jobs.c.id == job_id)
        connection.execute(change.values(body=body, progress=progress, crashes=1, attempts=1))


def _below(above: ProjectTable) -> "list[tuple[sa.Column[Any], ProjectTable]]":
    """The tables whose rows lie below those of another one, each with the column that says so."""
    name = above.table.name
    return [(one.table.c[one.parent[0]], one) for one in PROJECT_TABLES if one.parent and name in one.parent[1:]]


def _delete(connection: sa.Connection, erased: ProjectTable, condition: Condition, folders: set[str]) -> Counts:
    """Remove rows together with what lies below them, which others may have added until now; how many, by table.

    The folders that they name are added to `folders`.
    """
    counts = Counts()
    if "folder" in erased.table.c:
        folders.update(connection.execute(sa.select(erased.table.c.folder).where(condition)).scalars())
    for column, below in _below(erased):
        keys = sa.select(erased.table.c[below.parent_key]).where(condition).with_for_update()
        for part in batched(connection.execute(keys).scalars().all(), _SLICE):
            for name, count in _delete(connection, below, column.in_(part), folders).items():
                counts[name] = counts.get(name, 0) + count
    if removed := connection.execute(sa.delete(erased.table).where(condition)).rowcount:
        counts[erased.table.name] = removed
    return counts


def _erase_series(connection: sa.Connection, project: str, user: str) -> None:
    """Remove the metrics that a user is named in."""
    c, named = metric_series.c, NamedIn(name=user)
    rows = connection.execute(sa.select(c.series, sa.cast(c.attributes, sa.Text)).where(c.project == project))
    for series in [row[0] for row in rows if named(row[1])]:
        streams = begins_with(metric_streams.c.stream, series)
        connection.execute(metric_streams.delete().where(metric_streams.c.project == project, streams))
        for table in (metric_points, metric_series):
            connection.execute(table.delete().where(table.c.project == project, table.c.series == series))
