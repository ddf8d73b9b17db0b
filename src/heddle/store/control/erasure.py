"""What a purge removes from the control tables: a line for each table says how the rows of a subject are found."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, NamedTuple, get_args

import sqlalchemy as sa

from heddle.store.control.agents.spans import renew_traces
from heddle.store.control.agents.table import agent_spans, agent_traces
from heddle.store.control.annotation_queues import annotation_progress, annotation_queue_items, annotation_queues
from heddle.store.control.audit import audit_log
from heddle.store.control.coordination import ADAPTERS, LIMITS, MONITORS, QUEUED, RUNNING, count_change
from heddle.store.control.costs import costs
from heddle.store.control.eval_jobs import eval_jobs, replay_items
from heddle.store.control.feedback import feedback
from heddle.store.control.files import files
from heddle.store.control.inference import (
    adapter_names,
    adapters,
    inference_limits,
    inference_meters,
    inference_places,
    inference_usage,
    quota_counts,
)
from heddle.store.control.links import dataset_sources, registry_links
from heddle.store.control.log_records import log_records
from heddle.store.control.metric_series import metric_points, metric_series, metric_streams
from heddle.store.control.monitors import alert_deliveries, alert_rules, monitor_waiting
from heddle.store.control.object_labels import object_aliases, object_tags
from heddle.store.control.objects import object_versions
from heddle.store.control.pending_calls import call_halves, ended_calls, halves_of
from heddle.store.control.projects import projects, runtimes
from heddle.store.control.redaction import rejections
from heddle.store.control.repository import Repository, reads, writes
from heddle.store.control.responses import conversation_items, conversations, responses
from heddle.store.control.row_queries import Listed
from heddle.store.control.table_rows import table_chunks, table_rows, tables
from heddle.store.control.tinker import TINKER_TABLES
from heddle.store.control.training import train_checkpoints, train_events, train_jobs, train_logs, train_models
from heddle.wire import jsontext, refs
from heddle.wire.jsontypes import Json

SubjectKind = Literal["call", "trace", "thread", "user", "object", "project"]
SUBJECTS: tuple[SubjectKind, ...] = get_args(SubjectKind)
PURGE_JOB = "purge"
"""The kind of the jobs that do it."""
ERASED_USER = "(erased)"
"""Stands where rows that others need name a user who was erased."""
Condition = sa.ColumnElement[bool]


class FoundCalls(NamedTuple):
    """Some calls of a project (internal id), and the traces that they are in."""

    project: str
    ids: Sequence[str]
    traces: Sequence[str]

    @property
    def refs(self) -> list[str]:
        """Their internal refs."""
        return [f"{refs.INTERNAL}{self.project}/call/{call_id}" for call_id in self.ids]


OfName = Callable[[str, str], Condition]
"""The rows of a project (internal id) that are about a thread, a user or an object."""


class ErasedTable:
    """How the rows of a project, of calls, and (beside those of its calls) of a thread, user or object are found.

    `authors` are columns that name a user in rows which stay. `words` are columns of text: a row in which the name of a
    call, trace, thread, user or object stands goes with it.
    """

    def __init__(
        self,
        table: sa.Table,
        of_calls: Callable[[FoundCalls], Condition] | None = None,
        *,
        of_project: Callable[[str], Condition] | None = None,
        authors: tuple[str, ...] = (),
        words: tuple[str, ...] = (),
        **of: OfName,
    ) -> None:
        """`of` is by the kind of the subject; without `of_project` rows are a project's by their column `project`."""
        self.table = table
        self.of_project = of_project or (lambda project: table.c.project == project)
        self.of_calls = of_calls
        self.of = of
        self.authors = authors
        self.words = words


def _below(column: "sa.Column[Any]", parent: ErasedTable, key: "sa.Column[Any]", **more: Any) -> ErasedTable:
    """Rows that go with rows of another table."""

    def under(condition: Condition) -> Condition:
        return column.in_(sa.select(key).where(condition))

    of_calls = parent.of_calls
    named = {kind: (lambda p, n, found=found: under(found(p, n))) for kind, found in parent.of.items()}
    return ErasedTable(
        column.table,
        None if of_calls is None else lambda found: under(of_calls(found)),
        of_project=lambda project: under(parent.of_project(project)),
        **named | more,
    )


def _by_id(column: "sa.Column[Any]") -> Callable[[FoundCalls], Condition]:
    return lambda found: sa.and_(column.table.c.project == found.project, Listed(column, found.ids))


def _named(*columns: "sa.Column[Any]") -> OfName:
    """Rows of a project with a name in any of some columns."""
    return lambda project, name: sa.and_(columns[0].table.c.project == project, sa.or_(*(c == name for c in columns)))


def _in_named_project(table: sa.Table) -> Callable[[str], Condition]:
    def within(project: str) -> Condition:
        entity, _, name = (refs.external_project(project) or "/").partition("/")
        return sa.and_(table.c.entity == entity, table.c.project == name)

    return within


def _limited(table: sa.Table) -> Callable[[str], Condition]:
    return lambda project: sa.and_(table.c.kind == "project", table.c.name == (refs.external_project(project) or ""))


def _of_object(column: "sa.Column[Any]") -> OfName:
    """Rows with a ref to any version of an object or op."""

    def within(project: str, name: str) -> Condition:
        kinds = (refs.object_ref(project, kind, name, "") for kind in ("object", "op"))
        return sa.and_(
            column.table.c.project == project, sa.or_(*(column.startswith(ref, autoescape=True) for ref in kinds))
        )

    return within


def _below_jobs(condition: Condition) -> Condition:
    return replay_items.c.replay_id.in_(sa.select(eval_jobs.c.id).where(condition))


_f, _s, _l = feedback.c, agent_spans.c, log_records.c
_queues = ErasedTable(annotation_queues, authors=("created_by",))
_items = ErasedTable(
    annotation_queue_items, _by_id(annotation_queue_items.c.call_id), authors=("added_by", "annotator_user_id")
)
_progress = annotation_progress.c
_eval_jobs = ErasedTable(
    eval_jobs,
    of_project=lambda project: eval_jobs.c.project_id == refs.external_project(project),
    words=("body", "caller", "progress", "result", "error"),
)
_models = ErasedTable(train_models, of_project=_in_named_project(train_models), authors=("created_by",))
_train_jobs = _below(train_jobs.c.model_id, _models, train_models.c.id, authors=("created_by",))
_train_logs = _below(train_logs.c.model_id, _models, train_models.c.id, authors=("created_by",))
_tables = ErasedTable(tables)
_tinker = {table.name: table for table in TINKER_TABLES}
_sessions = ErasedTable(
    _tinker["tinker_sessions"], of_project=_in_named_project(_tinker["tinker_sessions"]), authors=("created_by",)
)
_session_id = _sessions.table.c.id
_runs = _below(_tinker["tinker_runs"].c.session_id, _sessions, _session_id)
_samplers = _below(_tinker["tinker_samplers"].c.session_id, _sessions, _session_id)
_target = _tinker["tinker_requests"].c.target
_responses = ErasedTable(
    responses,
    of_project=lambda project: responses.c.owner == project,
    thread=lambda project, name: sa.and_(responses.c.owner == project, responses.c.thread_id == name),
    words=("body", "input"),
)
_conversations = ErasedTable(
    conversations,
    of_project=lambda project: conversations.c.owner == project,
    thread=lambda project, name: sa.and_(conversations.c.owner == project, conversations.c.id == name),
    words=("metadata",),
)

ERASED: tuple[ErasedTable, ...] = (
    ErasedTable(
        feedback,
        lambda found: sa.and_(
            _f.project == found.project, sa.or_(Listed(_f.weave_ref, found.refs), Listed(_f.call_ref, found.refs))
        ),
        user=_named(_f.wb_user_id, _f.creator),
        object=_of_object(_f.weave_ref),
    ),
    ErasedTable(
        agent_spans,
        _by_id(_s.span_id),
        thread=_named(_s.conversation_id),
        user=lambda project, name: sa.and_(_s.project == project, _s.more.contains(f'"{name}"', autoescape=True)),
    ),
    ErasedTable(agent_traces, thread=_named(agent_traces.c.conversation_id)),
    ErasedTable(
        log_records,
        lambda found: sa.and_(
            _l.project == found.project, Listed(_l.owner, found.traces), Listed(_l.span_id, found.ids)
        ),
        thread=lambda project, name: sa.and_(
            _l.project == project, sa.or_(_l.owner == name, _l.owner.endswith(f".{name}", autoescape=True))
        ),
        user=_named(_l.user),
    ),
    ErasedTable(call_halves, lambda found: halves_of(found.project, found.ids)),
    ErasedTable(ended_calls, _by_id(ended_calls.c.call)),
    ErasedTable(monitor_waiting, _by_id(monitor_waiting.c.call_id), thread=_named(monitor_waiting.c.group_key)),
    ErasedTable(alert_deliveries, words=("body", "error")),
    ErasedTable(alert_rules, authors=("created_by",)),
    _below(
        _progress.item_id,
        _items,
        annotation_queue_items.c.id,
        user=lambda project, name: sa.and_(
            _progress.annotator == name,
            _progress.item_id.in_(
                sa.select(annotation_queue_items.c.id).where(annotation_queue_items.c.project == project)
            ),
        ),
    ),
    _items,
    _queues,
    ErasedTable(
        dataset_sources,
        _by_id(dataset_sources.c.source_id),
        thread=_named(dataset_sources.c.source_id),
        object=_named(dataset_sources.c.dataset_object_id),
        authors=("added_by",),
    ),
    ErasedTable(registry_links, object=_of_object(registry_links.c.source_ref), authors=("created_by",)),
    ErasedTable(object_tags, object=_named(object_tags.c.object_id), authors=("user",)),
    ErasedTable(object_aliases, object=_named(object_aliases.c.object_id), authors=("user",)),
    ErasedTable(object_versions, object=_named(object_versions.c.object_id), authors=("user",)),
    _below(table_chunks.c.table_number, _tables, tables.c.number),
    _tables,
    ErasedTable(table_rows),
    ErasedTable(files),
    ErasedTable(costs, authors=("created_by",)),
    ErasedTable(runtimes, authors=("updated_by",)),
    ErasedTable(metric_points),
    ErasedTable(metric_streams),
    ErasedTable(metric_series),
    ErasedTable(rejections),
    ErasedTable(inference_usage, user=_named(inference_usage.c.user)),
    ErasedTable(inference_limits, of_project=_limited(inference_limits)),
    ErasedTable(inference_meters, of_project=_limited(inference_meters)),
    ErasedTable(inference_places, of_project=_limited(inference_places)),
    ErasedTable(quota_counts, of_project=_limited(quota_counts)),
    _below(conversation_items.c.conversation_id, _conversations, conversations.c.id),
    _conversations,
    _responses,
    ErasedTable(
        replay_items,
        of_project=lambda project: _below_jobs(eval_jobs.c.project_id == refs.external_project(project)),
        of_calls=lambda found: sa.and_(
            Listed(replay_items.c.call_id, found.ids),
            _below_jobs(eval_jobs.c.project_id == refs.external_project(found.project)),
        ),
    ),
    _eval_jobs,
    ErasedTable(
        _target.table,
        of_project=lambda project: sa.or_(
            *(
                _target.in_(sa.select(target.table.c.id).where(target.of_project(project)))
                for target in (_runs, _samplers)
            )
        ),
    ),
    _below(_tinker["tinker_checkpoints"].c.run_id, _runs, _runs.table.c.id),
    _runs,
    _samplers,
    _sessions,
    _below(train_events.c.job_id, _train_jobs, train_jobs.c.id),
    _train_logs,
    _train_jobs,
    _below(train_checkpoints.c.model_id, _models, train_models.c.id),
    _models,
    ErasedTable(adapters, of_project=_in_named_project(adapters), authors=("created_by",)),
    ErasedTable(adapter_names, of_project=_in_named_project(adapter_names)),
    ErasedTable(projects),
)
"""Every table with data of projects, rows before those that they belong to."""
KEPT = {
    "api_keys": "a key is the server's, and may reach more than one project; revoke it",
    "sessions": "browsers are logged out when their key is revoked",
    "providers": "they are the server's",
    "audit_log": "it says who did what; what it tells of a project that is removed is emptied",
    "heartbeat": "it says nothing",
    "changes": "it counts",
    "leases": "it names servers",
}
"""Tables of which nothing is removed, and why."""

_SLICE = 2000
"""Rows that one transaction removes, so that writers come in between."""
_ODD = re.compile(r"[^A-Za-z0-9_-]|^.{0,7}$", re.DOTALL)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{8,}")
Counts = dict[str, int]


def tokens_of(text: str) -> set[str]:
    """The parts of a text that may be ids or digests."""
    return set(_TOKEN.findall(text))


class NamedIn:
    """Tells texts in which any of some ids stands, or a name as a JSON string."""

    def __init__(self, ids: Collection[str] = (), name: str = "") -> None:
        self._ids = {one for one in ids if not _ODD.search(one)}
        self._odd = [jsontext.dumps(one)[1:-1] for one in (*(one for one in ids if one not in self._ids), name) if one]

    def __call__(self, text: str) -> bool:
        return not self._ids.isdisjoint(tokens_of(text)) or any(
            f'"{odd}"' in text or f"/{odd}" in text for odd in self._odd
        )


class Erasure(Repository):
    """Removes rows for good, a slice in each transaction; projects are internal ids."""

    async def _remove(self, erased: ErasedTable, condition: Condition, counts: Counts) -> None:
        key = list(erased.table.primary_key.columns)
        chosen = sa.select(*key).where(condition).limit(_SLICE)
        keys = sa.tuple_(*key) if len(key) > 1 else key[0]
        while True:
            removed = await self._execute(sa.delete(erased.table).where(keys.in_(chosen)))
            if removed:
                counts[erased.table.name] = counts.get(erased.table.name, 0) + removed
            if removed < _SLICE:
                return

    async def project(self, project: str, job_id: str, counts: Counts) -> None:
        """Remove everything of a project but the job that does it."""
        for erased in ERASED:
            condition = erased.of_project(project)
            if erased.table is eval_jobs:
                condition = sa.and_(condition, eval_jobs.c.id != job_id)
            await self._remove(erased, condition, counts)
        entity, _, name = (refs.external_project(project) or "/").partition("/")
        named = jsontext.dumps({"entity": entity, "project": name})[1:-1]
        mine = sa.or_(
            audit_log.c.project == project, sa.cast(audit_log.c.details, sa.Text).contains(named, autoescape=True)
        )
        emptied = audit_log.update().where(mine, audit_log.c.action.not_like("purge%")).values(details={})
        await self._execute(emptied)
        await self._executor.write(_tell)

    async def models(self, model_ids: Sequence[str], counts: Counts) -> None:
        """Remove what is left of trainable models that were deleted."""
        for erased in (_of(train_events), _of(train_jobs)):
            mine = Listed(train_jobs.c.model_id, model_ids)
            of_jobs = train_events.c.job_id.in_(sa.select(train_jobs.c.id).where(mine))
            await self._remove(erased, of_jobs if erased.table is train_events else mine, counts)

    async def calls(self, found: FoundCalls, counts: Counts) -> None:
        """Remove what belongs to calls; the identity of their traces is that of the spans that stay."""
        for erased in ERASED:
            if erased.of_calls is not None:
                await self._remove(erased, erased.of_calls(found), counts)
        await self._executor.write(lambda connection: renew_traces(connection, found.project, found.traces))

    async def named(self, project: str, kind: SubjectKind, name: str, counts: Counts) -> None:
        """Remove what belongs to a thread, a user or an object beside calls; rows of others lose the user's name."""
        for erased in ERASED:
            if kind in erased.of:
                await self._remove(erased, erased.of[kind](project, name), counts)
            for author in erased.authors if kind == "user" else ():
                column = erased.table.c[author]
                change = erased.table.update().where(erased.of_project(project), column == name)
                await self._execute(change.values({author: ERASED_USER}))
        if kind == "user":
            await self._executor.write(lambda connection: _erase_series(connection, project, name))
        await self._executor.write(_tell)

    async def mentions(self, project: str, is_named: Callable[[str], bool], job_id: str, counts: Counts) -> None:
        """Remove the rows in whose words anything stands that `is_named` knows, but the job that does it."""
        for erased in ERASED:
            if not erased.words:
                continue
            key = next(iter(erased.table.primary_key.columns))
            query = sa.select(key, *(sa.cast(erased.table.c[name], sa.Text) for name in erased.words))
            query = query.where(erased.of_project(project))
            if erased.table is eval_jobs:
                query = query.where(eval_jobs.c.id != job_id)

            def read(connection: sa.Connection, query: sa.Select[Any] = query) -> list[Any]:
                rows = connection.execution_options(yield_per=50).execute(query)
                return [row[0] for row in rows if any(text is not None and is_named(text) for text in row[1:])]

            for_good = await self._executor.read(read)
            if for_good:
                await self._remove(erased, Listed(sa.cast(key, sa.Text), [str(one) for one in for_good]), counts)

    @reads
    def open_jobs(self, connection: sa.Connection, project: str) -> list[str]:
        """The ids of the jobs of a project that wait or run, but for purges."""
        c = eval_jobs.c
        is_open = sa.and_(c.state.in_((QUEUED, RUNNING)), c.kind != PURGE_JOB)
        mine = c.project_id == refs.external_project(project)
        return list(connection.execute(sa.select(c.id).where(mine, is_open)).scalars())

    @reads
    def folders(self, connection: sa.Connection, project: str) -> list[str]:
        """The folders of the adapters of a project."""
        mine = _in_named_project(adapters)(project)
        return list(connection.execute(sa.select(adapters.c.folder).where(mine)).scalars())

    @reads
    def payloads(self, connection: sa.Connection, project: str) -> list[tuple[str, str, str]]:
        """Table, id and blob of what training in a project was given."""
        found = []
        for erased in (_train_jobs, _train_logs):
            c = erased.table.c
            query = sa.select(c.id, c.payload).where(erased.of_project(project))
            found += [(erased.table.name, row[0], row[1]) for row in connection.execute(query)]
        return found

    async def payload(self, table: str, row_id: str, counts: Counts) -> None:
        """Remove a training job or a log with what it was given."""
        if table == train_jobs.name:
            await self._execute(train_events.delete().where(train_events.c.job_id == row_id))
        erased = _train_jobs if table == train_jobs.name else _train_logs
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
            "files": (_of(files), files.c.digest, files.c.project),
            "tables": (_tables, tables.c.digest, tables.c.project),
            "table_rows": (_of(table_rows), table_rows.c.digest, table_rows.c.project),
            "responses": (_responses, responses.c.id, responses.c.owner),
        }
        erased, column, owner = places[name]
        condition = sa.and_(owner == project, Listed(column, words))
        if name == "tables":
            of_them = table_chunks.c.table_number.in_(sa.select(tables.c.number).where(condition))
            await self._remove(_of(table_chunks), of_them, counts)
        await self._remove(erased, condition, counts)

    @writes
    def forget_request(self, connection: sa.Connection, job_id: str, body: Json, progress: Json) -> None:
        """Let the job that purged name its subject no more."""
        change = eval_jobs.update().where(eval_jobs.c.id == job_id)
        connection.execute(change.values(body=body, progress=progress, crashes=0, attempts=1))


def _of(table: sa.Table) -> ErasedTable:
    return next(erased for erased in ERASED if erased.table is table)


def _tell(connection: sa.Connection) -> None:
    """Let every server look again at what it keeps in memory."""
    for name in (ADAPTERS, LIMITS, MONITORS):
        count_change(connection, name)


def _erase_series(connection: sa.Connection, project: str, user: str) -> None:
    """Remove the metrics that a user is named in."""
    c, named = metric_series.c, NamedIn(name=user)
    rows = connection.execute(sa.select(c.series, sa.cast(c.attributes, sa.Text)).where(c.project == project))
    for series in [row[0] for row in rows if named(row[1])]:
        streams = metric_streams.c.stream.startswith(series, autoescape=True)
        connection.execute(metric_streams.delete().where(metric_streams.c.project == project, streams))
        for table in (metric_points, metric_series):
            connection.execute(table.delete().where(table.c.project == project, table.c.series == series))
