"""Which tables of the control database an archive holds, and which rows of them belong to a project."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def kept_of_secret(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """What is moved of a column that is not: who asked for a job, without what their key allowed."""
    return {"user": author_of(row)} if table == "eval_jobs" else {}


def author_of(row: Mapping[str, Any]) -> str:
    """Who asked for a job of an archive, empty where it does not say so."""
    caller = row.get("caller")
    with contextlib.suppress(ValueError):
        caller = json.loads(caller) if isinstance(caller, str) else None
    user = row.get("user") or (caller.get("user") if isinstance(caller, dict) else None)
    return user[:256] if isinstance(user, str) else ""


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
SECRETS = {"alert_rules": "secret", "eval_jobs": "caller"}
"""Columns that leave no server; an import makes new ones."""
PATH_COLUMNS = (train_models.c.id, train_jobs.c.id)
"""Ids that are parts of paths."""
ENDED = {
    eval_jobs.c.state: (evaluation.SUCCEEDED, evaluation.FAILED, evaluation.CANCELLED),
    train_jobs.c.state: (training_jobs.SUCCEEDED, training_jobs.FAILED, training_jobs.CANCELLED),
}
"""What a job that is moved may be."""
JSON_COLUMNS = {
    "object_versions": ("val",),
    "feedback": (
        *("payload", "scorer_tags", "scorer_tag_reasons", "scorer_tag_confidences"),
        *("scorer_ratings", "scorer_rating_reasons", "scorer_rating_confidences"),
    ),
    "dataset_sources": ("link_metadata",),
    "runtimes": ("headers", "max_tokens"),
    "alert_rules": ("rule",),
    "annotation_queues": ("scorer_refs",),
    "annotation_queue_items": ("display_fields",),
    "eval_jobs": ("body", "progress", "result"),
    "train_models": ("lora",),
    "train_checkpoints": ("metrics",),
    "train_jobs": ("config", "metrics"),
    "train_events": ("data",),
    "train_logs": ("metrics",),
}
"""Columns whose texts hold JSON."""
OWNED = {
    "annotation_queues": ("project",),
    "annotation_queue_items": ("project",),
    "eval_jobs": ("project_id",),
    "train_models": ("entity", "project"),
    "train_jobs": ("model_id",),
}
"""Tables with ids of their own across all projects and records below them; the columns that say whose they are."""
PARENTS = {
    "annotation_queue_items": ("queue_id", "annotation_queues"),
    "annotation_progress": ("item_id", "annotation_queue_items"),
    "replay_items": ("replay_id", "eval_jobs"),
    "train_checkpoints": ("model_id", "train_models"),
    "train_jobs": ("model_id", "train_models"),
    "train_events": ("job_id", "train_jobs"),
    "train_logs": ("model_id", "train_models"),
}
"""The column by which a record lies below one of another table."""
FOLDERS_OF = tuple(column.table.name for column in FOLDER_COLUMNS)
BY_NAME = {moved.table.name: moved for moved in MOVED}
