"""What an archive holds of a store: which control tables, which rows of them belong to a project, whose they are."""

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from heddle.store.base import BLOB_COLUMNS as BLOB_COLUMNS
from heddle.store.control.agents.table import agent_spans, agent_traces
from heddle.store.control.annotation_queues import annotation_progress, annotation_queue_items, annotation_queues
from heddle.store.control.coordination import CANCELLED, FAILED, SUCCEEDED
from heddle.store.control.costs import costs
from heddle.store.control.eval_jobs import eval_jobs, replay_items
from heddle.store.control.feedback import feedback
from heddle.store.control.files import files
from heddle.store.control.inference import adapter_names, adapters, inference_usage
from heddle.store.control.links import dataset_sources, registry_links
from heddle.store.control.metric_series import metric_points, metric_series
from heddle.store.control.monitors import alert_rules
from heddle.store.control.object_labels import object_aliases, object_tags
from heddle.store.control.objects import object_versions
from heddle.store.control.projects import projects, runtimes
from heddle.store.control.training import train_checkpoints, train_events, train_jobs, train_logs, train_models
from heddle.wire import refs
from heddle.wire.redaction import RedactionRules

Condition = sa.ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the JSON of a column is: its kind, that of its items, and what raises HeddleError where it is none."""

    name: str
    kind: type
    items: type | tuple[type, ...] = object
    read: Callable[[Any], object] = id


ANY = Shape("JSON", object)
OBJECT = Shape("JSON object", dict)
TEXTS = Shape("list of texts", list, str)
TEXT_MAP = Shape("object of texts", dict, str)
NUMBER_MAP = Shape("object of numbers", dict, (int, float))
RULES = Shape("rules of redaction", dict, list, RedactionRules.of_json)
NOT_EXPORTED = {
    "api_keys": "keys belong to a server; make new ones with `heddle keys create`",
    "sessions": "browsers sign in again",
    "providers": "keys of providers belong to a server; enter them there",
    "audit_log": "it tells what was done on that server",
    "heartbeat": "it says nothing",
    "inference_limits": "limits belong to a server",
    "monitor_waiting": "what waited to be scored is not scored again elsewhere",
    "call_halves": "running calls are moved as calls",
    "ended_calls": "what waited to be scored is not scored again elsewhere",
    "changes": "it says what the servers of that store have seen",
    "inference_meters": "limits belong to a server",
    "inference_places": "what is being answered is answered there",
    "quota_counts": "limits belong to a server",
    "leases": "who works on what belongs to those servers",
    "log_records": "what they say is in the calls that they joined",
    "rejections": "what did not arrive is told where it was sent",
    "metric_streams": "exporters go on counting at the server that they report to",
    "responses": "they are kept for some days, for the clients of that server",
    "conversations": "they are kept for some days, for the clients of that server",
    "conversation_items": "they are kept for some days, for the clients of that server",
    "alert_deliveries": "messages that were sent are not sent again",
    "tinker_sessions": "client programs go on at the server that they speak to",
    "tinker_runs": "their weights are moved as trainable models",
    "tinker_samplers": "client programs go on at the server that they speak to",
    "tinker_checkpoints": "their weights are moved as steps of trainable models",
    "tinker_requests": "what was asked of a server is answered there",
}
"""Tables that stay where they are, and why."""
OF_ROWS = ("tables", "table_chunks", "table_rows")
"""Tables of table rows, which a store may keep elsewhere; see `records.py`."""


def public_part(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """What is moved of a column that is not, as older versions read it, too."""
    return {"caller": without_permissions(row)} if table == "eval_jobs" else {}


def without_permissions(row: Mapping[str, Any]) -> str:
    """Who asked for a job, without what their key allowed, as the column holds it."""
    caller: dict[str, Any] = {"user": author_of(row), "scopes": [], "entity": None, "project": row.get("project_id")}
    return json.dumps(caller | {"key_id": None})


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
class ExportedTable:
    """A table with the condition for the rows of some projects."""

    table: sa.Table
    within: Callable[[Scope], Condition]

    @property
    def columns(self) -> list[sa.Column[object]]:
        """What is moved: everything but numbers that the database gives."""
        return [column for column in self.table.c if not _is_generated(column)]

    @property
    def identity(self) -> list[str]:
        """The columns that tell rows apart wherever they are."""
        keys = [column for column in self.table.primary_key.columns if not _is_generated(column)]
        if keys:
            return [column.name for column in keys]
        unique = [item for item in self.table.constraints if isinstance(item, sa.UniqueConstraint)]
        together = [constraint for constraint in unique if len(constraint.columns) > 1]
        return [column.name for column in (together or unique)[0].columns]


def _is_generated(column: "sa.Column[object]") -> bool:
    return column.table.autoincrement_column is column


def _in_project(table: sa.Table) -> ExportedTable:
    return ExportedTable(table, lambda scope: table.c.project.in_(scope.internal))


def _in_named_project(table: sa.Table, extra: Condition | None = None) -> ExportedTable:
    """Rows with the names of entity and project; those of the whole server have empty ones and stay."""
    chosen = [sa.true() if extra is None else extra]
    return ExportedTable(table, lambda s: sa.and_(sa.tuple_(table.c.entity, table.c.project).in_(s.pairs), *chosen))


def _below_rows(
    column: "sa.Column[object]", parent: ExportedTable, key: "sa.Column[object]", extra: Condition | None = None
) -> ExportedTable:
    """Rows that belong to rows of another table."""
    chosen = [sa.true() if extra is None else extra]
    return ExportedTable(column.table, lambda s: sa.and_(column.in_(sa.select(key).where(parent.within(s))), *chosen))


_queue_items = _in_project(annotation_queue_items)
_models = _in_named_project(train_models)
_ended = train_jobs.c.state.in_((SUCCEEDED, FAILED, CANCELLED))
_train_jobs = _below_rows(train_jobs.c.model_id, _models, train_models.c.id, _ended)
_done = eval_jobs.c.state.in_((SUCCEEDED, FAILED, CANCELLED))
_eval_jobs = ExportedTable(eval_jobs, lambda scope: sa.and_(eval_jobs.c.project_id.in_(scope.names), _done))

EXPORTED: tuple[ExportedTable, ...] = (
    *(_in_project(table) for table in (projects, files, object_versions, object_tags, object_aliases)),
    *(_in_project(table) for table in (feedback, costs, registry_links, dataset_sources, runtimes)),
    *(_in_project(table) for table in (agent_spans, agent_traces, alert_rules, inference_usage, annotation_queues)),
    *(_in_project(table) for table in (metric_series, metric_points)),
    _queue_items,
    _below_rows(annotation_progress.c.item_id, _queue_items, annotation_queue_items.c.id),
    _eval_jobs,
    _below_rows(replay_items.c.replay_id, _eval_jobs, eval_jobs.c.id),
    _in_named_project(adapters),
    _in_named_project(adapter_names),
    _models,
    _below_rows(train_checkpoints.c.model_id, _models, train_models.c.id),
    _train_jobs,
    _below_rows(train_events.c.job_id, _train_jobs, train_jobs.c.id),
    _below_rows(train_logs.c.model_id, _models, train_models.c.id),
)
"""Every table that is moved, in an order in which rows come behind those that they name."""

FOLDER_COLUMNS = (adapters.c.folder, train_checkpoints.c.folder)
FOLDERS = ("adapters", "training")
"""The folders inside the data folder where those lie."""
FOLDER = re.compile(rf"(?:{'|'.join(FOLDERS)})(?:/[A-Za-z0-9_][A-Za-z0-9_. -]{{0,254}})+")
"""A folder of an adapter or a checkpoint, as a row names it: relative to the data folder."""
SECRETS = {"alert_rules": "secret", "eval_jobs": "caller"}
"""Columns that leave no server; an import makes new ones."""
PATH_COLUMNS = (train_models.c.id, train_jobs.c.id)
"""Ids that are parts of paths."""
ENDED = {
    eval_jobs.c.state: (SUCCEEDED, FAILED, CANCELLED),
    train_jobs.c.state: (SUCCEEDED, FAILED, CANCELLED),
}
"""What a job that is moved may be."""
JSON_COLUMNS = {
    "projects": {"redaction": RULES},
    "object_versions": {"val": ANY},
    "feedback": {
        "payload": OBJECT,
        "scorer_tags": TEXTS,
        "scorer_tag_reasons": TEXT_MAP,
        "scorer_tag_confidences": NUMBER_MAP,
        "scorer_ratings": NUMBER_MAP,
        "scorer_rating_reasons": TEXT_MAP,
        "scorer_rating_confidences": NUMBER_MAP,
    },
    "dataset_sources": {"link_metadata": OBJECT},
    "metric_series": {"attributes": OBJECT},
    "metric_points": {"bins": ANY},
    "runtimes": {"headers": TEXT_MAP, "max_tokens": NUMBER_MAP},
    "alert_rules": {"rule": OBJECT},
    "annotation_queues": {"scorer_refs": TEXTS},
    "annotation_queue_items": {"display_fields": TEXTS},
    "eval_jobs": {"body": OBJECT, "progress": OBJECT, "result": ANY},
    "train_models": {"lora": OBJECT},
    "train_checkpoints": {"metrics": NUMBER_MAP},
    "train_jobs": {"config": OBJECT, "metrics": OBJECT},
    "train_events": {"data": OBJECT},
    "train_logs": {"metrics": NUMBER_MAP},
}
"""Columns whose texts hold JSON, and of which shape."""
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
BY_NAME = {moved.table.name: moved for moved in EXPORTED}
