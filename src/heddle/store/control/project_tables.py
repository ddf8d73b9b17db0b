"""The tables with data of projects: whose their rows are, what a purge removes of them, what an archive takes."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from heddle.store.control.agents.table import agent_spans, agent_traces
from heddle.store.control.annotation_queues import annotation_progress, annotation_queue_items, annotation_queues
from heddle.store.control.coordination import CANCELLED, FAILED, SUCCEEDED
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
from heddle.store.control.repository import begins_with
from heddle.store.control.responses import conversation_items, conversations, responses
from heddle.store.control.row_queries import Ending, JsonRead, Listed
from heddle.store.control.table_rows import table_chunks, table_rows, tables
from heddle.store.control.tinker import TINKER_TABLES
from heddle.store.control.training import train_events, train_jobs
from heddle.store.control.training_models import train_checkpoints, train_logs, train_models
from heddle.wire import refs

Condition = sa.ColumnElement[bool]
Within = Callable[[Sequence[str]], Condition]
"""The rows of some projects (internal ids)."""
OfName = Callable[[str, str], Condition]
"""The rows of a project (internal id) that are about a thread, a user or an object."""


class FoundCalls(NamedTuple):
    """Some calls of a project (internal id), and the traces that they are in."""

    project: str
    ids: Sequence[str]
    traces: Sequence[str]

    @property
    def refs(self) -> list[str]:
        """Their internal refs."""
        return [f"{refs.INTERNAL}{self.project}/call/{call_id}" for call_id in self.ids]


class ProjectTable:
    """How the rows of projects, of calls, and (beside those of its calls) of a thread, user or object are found.

    `authors` are columns that name a user in rows which stay. `words` are columns of text: a row in which the name of a
    call, trace, thread, user or object stands goes with it. `stays` says why archives leave the table out; of others
    they take the rows of `exported`. `parent` is the column by which rows lie below those of tables, and their names;
    `parent_key` is those tables' column which the former holds.
    """

    def __init__(
        self,
        table: sa.Table,
        of_calls: Callable[[FoundCalls], Condition] | None = None,
        *,
        within: Within | None = None,
        exported: Within | None = None,
        stays: str = "",
        parent: tuple[str, ...] | None = None,
        parent_key: str = "id",
        authors: tuple[str, ...] = (),
        words: tuple[str, ...] = (),
        **of: OfName,
    ) -> None:
        """`of` is by the kind of the subject; without `within` rows are a project's by their column `project`."""
        self.table = table
        self.within = within or (lambda projects: table.c.project.in_(projects))
        self.exported = exported or self.within
        self.of_calls = of_calls
        self.of = of
        self.stays = stays
        self.parent = parent
        self.parent_key = parent_key
        self.authors = authors
        self.words = words

    def below(
        self,
        column: "sa.Column[Any]",
        of_calls: Callable[[FoundCalls], Condition] | None = None,
        *,
        key: str = "id",
        only: Condition | None = None,
        left: Within | None = None,
        authors: tuple[str, ...] = (),
        **of: OfName,
    ) -> "ProjectTable":
        """A table whose `column` holds keys of this one; archives take those rows under the condition `only`.

        `left` are the rows of projects that stay when what they lie below is deleted.
        """

        def under(condition: Condition) -> Condition:
            return column.in_(sa.select(self.table.c[key]).where(condition))

        def within(projects: Sequence[str]) -> Condition:
            return sa.or_(under(self.within(projects)), *([] if left is None else [left(projects)]))

        def exported(projects: Sequence[str]) -> Condition:
            return sa.and_(under(self.exported(projects)), *([] if only is None else [only]))

        above = self.of_calls
        named: dict[str, Any] = {
            kind: (lambda p, n, found=found: under(found(p, n))) for kind, found in self.of.items()
        }
        return ProjectTable(
            column.table,
            of_calls or (None if above is None else lambda found: under(above(found))),
            within=within,
            exported=exported,
            stays=self.stays,
            parent=(column.name, self.table.name),
            parent_key=key,
            authors=authors,
            **named | of,
        )

    @property
    def columns(self) -> "list[sa.Column[Any]]":
        """What is moved: all but numbers that the database gives, checksums (an import changes rows), and
        `former_project`, which only jobs have that are not moved.
        """
        given = (self.table.autoincrement_column, agent_spans.c.crc, train_jobs.c.former_project)
        return [column for column in self.table.c if all(column is not one for one in given)]

    @property
    def identity(self) -> list[str]:
        """The columns that tell rows apart wherever they are."""
        keys = [column for column in self.table.primary_key.columns if column is not self.table.autoincrement_column]
        if keys:
            return [column.name for column in keys]
        unique = [item for item in self.table.constraints if isinstance(item, sa.UniqueConstraint)]
        together = [constraint for constraint in unique if len(constraint.columns) > 1]
        return [column.name for column in (together or unique)[0].columns]


def _by_id(column: "sa.Column[Any]") -> Callable[[FoundCalls], Condition]:
    return lambda found: sa.and_(column.table.c.project == found.project, Listed(column, found.ids))


def _named(*columns: "sa.Column[Any]") -> OfName:
    """Rows of a project with a name in any of some columns."""
    return lambda project, name: sa.and_(columns[0].table.c.project == project, sa.or_(*(c == name for c in columns)))


def _names(projects: Sequence[str]) -> list[str]:
    """The names `entity/project` of internal ids."""
    return [name for name in map(refs.external_project, projects) if name is not None]


def _by_name(column: "sa.Column[Any]") -> Within:
    return lambda projects: column.in_(_names(projects))


def _in_named_project(table: sa.Table) -> Within:
    """Rows with the names of entity and project; those of the whole server have empty ones."""
    place = sa.tuple_(table.c.entity, table.c.project)
    return lambda projects: place.in_([tuple(name.split("/")) for name in _names(projects)])


def _limited(table: sa.Table) -> ProjectTable:
    return ProjectTable(
        table,
        within=lambda projects: sa.and_(table.c.kind == "project", table.c.name.in_(_names(projects))),
        stays="limits belong to a server, and what is being answered is answered there",
    )


def _of_object(column: "sa.Column[Any]") -> OfName:
    """Rows with a ref to any version of an object or op."""

    def within(project: str, name: str) -> Condition:
        kinds = (refs.object_ref(project, kind, name, "") for kind in ("object", "op"))
        return sa.and_(column.table.c.project == project, sa.or_(*(begins_with(column, ref) for ref in kinds)))

    return within


_SCORED = "what waited to be scored is not scored again elsewhere"
_SOME_DAYS = "they are kept for some days, for the clients of that server"
_CLIENTS = "client programs go on at the server that they speak to; weights are moved as those of trainable models"
_RECORDS = "rows of tables, which a store may keep elsewhere, are records of their own"
_ENDED = (SUCCEEDED, FAILED, CANCELLED)
_f, _s, _l = feedback.c, agent_spans.c, log_records.c
_progress = annotation_progress.c
_items = ProjectTable(
    annotation_queue_items, _by_id(annotation_queue_items.c.call_id), authors=("added_by", "annotator_user_id")
)
_of_jobs = _by_name(eval_jobs.c.project_id)
_eval_jobs = ProjectTable(
    eval_jobs,
    within=_of_jobs,
    exported=lambda projects: sa.and_(_of_jobs(projects), eval_jobs.c.state.in_(_ENDED)),
    words=("id", "body", "caller", "progress", "result", "error"),
)


def _replayed(found: FoundCalls) -> Condition:
    of_job = sa.select(eval_jobs.c.id).where(_of_jobs([found.project]))
    return sa.and_(Listed(replay_items.c.call_id, found.ids), replay_items.c.replay_id.in_(of_job))


MODELS = ProjectTable(train_models, within=_in_named_project(train_models), authors=("created_by",))
TRAIN_JOBS = MODELS.below(
    train_jobs.c.model_id,
    only=train_jobs.c.state.in_(_ENDED),
    left=lambda projects: train_jobs.c.former_project.in_(projects),
    authors=("created_by",),
)
TRAIN_LOGS = MODELS.below(train_logs.c.model_id, authors=("created_by",))
TRAIN_EVENTS = TRAIN_JOBS.below(train_events.c.job_id)
ADAPTERS = ProjectTable(adapters, within=_in_named_project(adapters), authors=("created_by",))
FILES, ROWS, TABLES = (
    ProjectTable(files),
    ProjectTable(table_rows, stays=_RECORDS),
    ProjectTable(tables, stays=_RECORDS),
)
CHUNKS = TABLES.below(table_chunks.c.table_number, key="number")
_tinker = {table.name: table for table in TINKER_TABLES}
_sessions = ProjectTable(
    _tinker["tinker_sessions"],
    within=_in_named_project(_tinker["tinker_sessions"]),
    stays=_CLIENTS,
    authors=("created_by",),
)
_runs = _sessions.below(_tinker["tinker_runs"].c.session_id)
_samplers = _sessions.below(_tinker["tinker_samplers"].c.session_id)
_target = _tinker["tinker_requests"].c.target
RESPONSES = ProjectTable(
    responses,
    within=lambda projects: responses.c.owner.in_(projects),
    stays=_SOME_DAYS,
    thread=lambda project, name: sa.and_(responses.c.owner == project, responses.c.thread_id == name),
    words=("body", "input"),
)
_conversations = ProjectTable(
    conversations,
    within=lambda projects: conversations.c.owner.in_(projects),
    stays=_SOME_DAYS,
    thread=lambda project, name: sa.and_(conversations.c.owner == project, conversations.c.id == name),
    words=("metadata",),
)

PROJECT_TABLES: tuple[ProjectTable, ...] = (
    ProjectTable(
        feedback,
        lambda found: sa.and_(
            _f.project == found.project, sa.or_(Listed(_f.weave_ref, found.refs), Listed(_f.call_ref, found.refs))
        ),
        user=_named(_f.wb_user_id, _f.creator),
        object=_of_object(_f.weave_ref),
    ),
    ProjectTable(
        agent_spans,
        _by_id(_s.span_id),
        thread=_named(_s.conversation_id),
        user=lambda project, name: sa.and_(_s.project == project, JsonRead(_s.more, ("wb_user_id",), "scalar") == name),
    ),
    ProjectTable(agent_traces, thread=_named(agent_traces.c.conversation_id)),
    ProjectTable(
        log_records,
        lambda found: sa.and_(
            _l.project == found.project, Listed(_l.owner, found.traces), Listed(_l.span_id, found.ids)
        ),
        stays="what they say is in the calls that they joined",
        thread=lambda project, name: sa.and_(
            _l.project == project, sa.or_(_l.owner == name, Ending(_l.owner, f".{name}"))
        ),
        user=_named(_l.user),
    ),
    ProjectTable(
        call_halves, lambda found: halves_of(found.project, found.ids), stays="running calls are moved as calls"
    ),
    ProjectTable(ended_calls, _by_id(ended_calls.c.call), stays=_SCORED),
    ProjectTable(
        monitor_waiting, _by_id(monitor_waiting.c.call_id), stays=_SCORED, thread=_named(monitor_waiting.c.group_key)
    ),
    ProjectTable(alert_deliveries, stays="messages that were sent are not sent again", words=("body", "error")),
    ProjectTable(alert_rules, authors=("created_by",)),
    _items.below(
        _progress.item_id,
        user=lambda project, name: sa.and_(
            _progress.annotator == name,
            _progress.item_id.in_(
                sa.select(annotation_queue_items.c.id).where(annotation_queue_items.c.project == project)
            ),
        ),
    ),
    _items,
    ProjectTable(annotation_queues, authors=("created_by",)),
    ProjectTable(
        dataset_sources,
        _by_id(dataset_sources.c.source_id),
        thread=_named(dataset_sources.c.source_id),
        object=_named(dataset_sources.c.dataset_object_id),
        authors=("added_by",),
    ),
    ProjectTable(registry_links, object=_of_object(registry_links.c.source_ref), authors=("created_by",)),
    ProjectTable(object_tags, object=_named(object_tags.c.object_id), authors=("user",)),
    ProjectTable(object_aliases, object=_named(object_aliases.c.object_id), authors=("user",)),
    ProjectTable(object_versions, object=_named(object_versions.c.object_id), authors=("user",)),
    CHUNKS,
    TABLES,
    ROWS,
    FILES,
    ProjectTable(costs, authors=("created_by",)),
    ProjectTable(runtimes, authors=("updated_by",)),
    ProjectTable(metric_points),
    ProjectTable(metric_streams, stays="exporters go on counting at the server that they report to"),
    ProjectTable(metric_series),
    ProjectTable(rejections, stays="what did not arrive is told where it was sent"),
    ProjectTable(inference_usage, user=_named(inference_usage.c.user)),
    *map(_limited, (inference_limits, inference_meters, inference_places, quota_counts)),
    _conversations.below(conversation_items.c.conversation_id),
    _conversations,
    RESPONSES,
    _eval_jobs.below(replay_items.c.replay_id, _replayed),
    _eval_jobs,
    ProjectTable(
        _target.table,
        within=lambda projects: sa.or_(
            *(_target.in_(sa.select(t.table.c.id).where(t.within(projects))) for t in (_runs, _samplers))
        ),
        stays=_CLIENTS,
        parent=("target", "tinker_runs", "tinker_samplers"),
    ),
    _runs.below(_tinker["tinker_checkpoints"].c.run_id),
    _runs,
    _samplers,
    _sessions,
    TRAIN_EVENTS,
    TRAIN_LOGS,
    TRAIN_JOBS,
    MODELS.below(train_checkpoints.c.model_id),
    MODELS,
    ADAPTERS,
    ProjectTable(adapter_names, within=_in_named_project(adapter_names)),
    ProjectTable(projects),
)
"""Rows stand before those that they belong to."""
SERVER_TABLES = {
    "api_keys": "a key is the server's, and may reach more than one project; revoke it, and make new ones elsewhere",
    "sessions": "browsers are logged out when their key is revoked, and sign in again elsewhere",
    "providers": "they and their keys are the server's; enter them elsewhere",
    "audit_log": "it says who did what on that server; what it tells of a project that is removed is emptied",
    "heartbeat": "it says nothing",
    "changes": "it counts what the servers of that store have seen",
    "leases": "it names servers",
}
"""All other tables, of which nothing is removed or moved, and why."""
