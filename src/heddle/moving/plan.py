"""Which tables of the control database an archive holds, and which rows of them belong to a project."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from heddle.store.control import eval_jobs as evaluation
from heddle.store.control import jobs as training_jobs
from heddle.store.control.adapters import adapter_names, adapters
from heddle.store.control.agents.table import agent_spans, agent_traces
from heddle.store.control.alerts import alert_rules
from heddle.store.control.annotation_queues import annotation_progress, annotation_queue_items, annotation_queues
from heddle.store.control.costs import costs
from heddle.store.control.dataset_sources import dataset_sources
from heddle.store.control.eval_jobs import eval_jobs
from heddle.store.control.feedback import feedback
from heddle.store.control.files import files
from heddle.store.control.inference import inference_usage
from heddle.store.control.jobs import train_events, train_jobs
from heddle.store.control.labels import object_aliases, object_tags
from heddle.store.control.object_rows import object_versions
from heddle.store.control.projects import projects
from heddle.store.control.registry import registry_links
from heddle.store.control.replays import replay_items
from heddle.store.control.runtimes import runtimes
from heddle.store.control.training import train_checkpoints, train_logs, train_models
from heddle.wire import refs

Condition = sa.ColumnElement[bool]
NOT_MOVED = {
    "api_keys": "keys belong to a server; make new ones with `heddle keys create`",
    "sessions": "browsers sign in again",
    "audit_log": "it tells what was done on that server",
    "heartbeat": "it says nothing",
    "inference_limits": "limits belong to a server",
    "monitor_waiting": "what waited to be scored is not scored again elsewhere",
    "call_halves": "running calls are moved as calls",
    "ended_calls": "what waited to be scored is not scored again elsewhere",
    "changes": "it says what the servers of that store have seen",
    "inference_meters": "limits belong to a server",
    "inference_places": "what is being answered is answered there",
    "leases": "who works on what belongs to those servers",
    "alert_deliveries": "messages that were sent are not sent again",
}
"""Tables that stay where they are, and why."""
WITH_VERBS = ("tables", "table_chunks", "table_rows")
"""Tables of table rows, which a store may keep elsewhere; see `tables.py`."""


class Scope:
    """The projects of an archive; `names` are `entity/project`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.internal = [refs.internal_project(name) for name in names]
        self.pairs = [tuple(name.split("/")) for name in names]


@dataclass(frozen=True, slots=True)
class Moved:
    """A table with the condition for the rows of some projects."""

    table: sa.Table
    within: Callable[[Scope], Condition]

    @property
    def columns(self) -> list[sa.Column[object]]:
        """What is moved: everything but numbers that the database gives."""
        return [column for column in self.table.c if not _is_given(column)]

    @property
    def identity(self) -> list[str]:
        """The columns that tell rows apart wherever they are."""
        keys = [column for column in self.table.primary_key.columns if not _is_given(column)]
        if keys:
            return [column.name for column in keys]
        unique = [item for item in self.table.constraints if isinstance(item, sa.UniqueConstraint)]
        together = [constraint for constraint in unique if len(constraint.columns) > 1]
        return [column.name for column in (together or unique)[0].columns]


def _is_given(column: "sa.Column[object]") -> bool:
    return column.table.autoincrement_column is column


def _by_project(table: sa.Table) -> Moved:
    return Moved(table, lambda scope: table.c.project.in_(scope.internal))


def _by_names(table: sa.Table, extra: Condition | None = None) -> Moved:
    """Rows with the names of entity and project; those of the whole server have empty ones and stay."""
    chosen = [sa.true() if extra is None else extra]
    return Moved(table, lambda s: sa.and_(sa.tuple_(table.c.entity, table.c.project).in_(s.pairs), *chosen))


def _below(
    column: "sa.Column[object]", parent: Moved, key: "sa.Column[object]", extra: Condition | None = None
) -> Moved:
    """Rows that belong to rows of another table."""
    chosen = [sa.true() if extra is None else extra]
    return Moved(column.table, lambda s: sa.and_(column.in_(sa.select(key).where(parent.within(s))), *chosen))


_queue_items = _by_project(annotation_queue_items)
_models = _by_names(train_models)
_ended = train_jobs.c.state.in_((training_jobs.SUCCEEDED, training_jobs.FAILED, training_jobs.CANCELLED))
_train_jobs = _below(train_jobs.c.model_id, _models, train_models.c.id, _ended)
_eval_jobs = Moved(
    eval_jobs, lambda scope: sa.and_(eval_jobs.c.project_id.in_(scope.names), eval_jobs.c.state.not_in(evaluation.OPEN))
)

MOVED: tuple[Moved, ...] = (
    *(_by_project(table) for table in (projects, files, object_versions, object_tags, object_aliases)),
    *(_by_project(table) for table in (feedback, costs, registry_links, dataset_sources, runtimes)),
    *(_by_project(table) for table in (agent_spans, agent_traces, alert_rules, inference_usage, annotation_queues)),
    _queue_items,
    _below(annotation_progress.c.item_id, _queue_items, annotation_queue_items.c.id),
    _eval_jobs,
    _below(replay_items.c.replay_id, _eval_jobs, eval_jobs.c.id),
    _by_names(adapters),
    _by_names(adapter_names),
    _models,
    _below(train_checkpoints.c.model_id, _models, train_models.c.id),
    _train_jobs,
    _below(train_events.c.job_id, _train_jobs, train_jobs.c.id),
    _below(train_logs.c.model_id, _models, train_models.c.id),
)
"""Every table that is moved, in an order in which rows come behind those that they name."""

BLOB_COLUMNS = (files.c.blob, train_jobs.c.payload, train_logs.c.payload)
FOLDER_COLUMNS = (adapters.c.folder, train_checkpoints.c.folder)
FOLDERS = ("adapters", "training")
"""The folders inside the data folder where those lie."""
SECRETS = {"alert_rules": "secret"}
"""Columns that leave no server; an import makes new ones."""
