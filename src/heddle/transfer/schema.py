"""What an archive holds of the control tables: which columns, of which shape, and whose the rows are."""

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from heddle.store.base import BLOB_COLUMNS as BLOB_COLUMNS
from heddle.store.control.coordination import CANCELLED, FAILED, SUCCEEDED
from heddle.store.control.eval_jobs import eval_jobs
from heddle.store.control.feedback import STRUCTURES
from heddle.store.control.inference import adapters
from heddle.store.control.project_tables import PROJECT_TABLES
from heddle.store.control.training import train_jobs
from heddle.store.control.training_models import train_checkpoints, train_models
from heddle.store.query.compiler import Kind
from heddle.wire import jsontext, refs
from heddle.wire.redaction import RedactionRules


@dataclass(frozen=True, slots=True)
class Shape:
    """What the JSON of a column is: its kind, that of its items, and what raises HeddleError where it is none."""

    name: str
    kind: type
    items: type | tuple[type, ...] = object
    read: Callable[[Any], object] = id


ANY = Shape("JSON", object)
OBJECT = Shape("a JSON object", dict)
TEXTS = Shape("a list of strings", list, str)
TEXT_MAP = Shape("an object of strings", dict, str)
NUMBER_MAP = Shape("an object of numbers", dict, (int, float))
RULES = Shape("a set of redaction rules", dict, list, RedactionRules.of_json)
_SHAPES = {Kind.TEXTS: TEXTS, Kind.TEXT_MAP: TEXT_MAP, Kind.NUMBER_MAP: NUMBER_MAP}


def public_part(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """What is moved of a column that is not moved whole, as older versions read it, too."""
    if table == "eval_jobs":
        return {"caller": without_permissions(row)}
    if table == "train_jobs":
        return {"config": _without_grants(row["config"])}
    return {}


def _without_grants(config: str) -> str:
    """How a training job was asked for, without what the key of then allowed."""
    with contextlib.suppress(ValueError):
        told = jsontext.loads_text(config)
        if isinstance(told, dict) and told.pop("grants", None) is not None:
            return jsontext.dumps(told)
    return config


def without_permissions(row: Mapping[str, Any]) -> str:
    """Who asked for a job, without what their key allowed, as the column holds it."""
    caller: dict[str, Any] = {"user": author_of(row), "scopes": [], "entity": None, "project": row.get("project_id")}
    return jsontext.dumps(caller | {"key_id": None})


def author_of(row: Mapping[str, Any]) -> str:
    """Who asked for a job of an archive, empty where it does not say so."""
    caller = row.get("caller")
    with contextlib.suppress(ValueError):
        caller = jsontext.loads_text(caller) if isinstance(caller, str) else None
    user = row.get("user") or (caller.get("user") if isinstance(caller, dict) else None)
    return user[:256] if isinstance(user, str) else ""


class Scope:
    """The projects of an archive; `names` are `entity/project`."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.internal = [refs.internal_project(name) for name in names]


EXPORTED = tuple(table for table in reversed(PROJECT_TABLES) if not table.stays)
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
ENDED = dict.fromkeys((eval_jobs.c.state, train_jobs.c.state), (SUCCEEDED, FAILED, CANCELLED))
"""What a job that is moved may be."""
JSON_COLUMNS = {
    "projects": {"redaction": RULES},
    "object_versions": {"val": ANY},
    "feedback": {"payload": OBJECT, **{name: _SHAPES[kind] for name, kind in STRUCTURES.items()}},
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
PARENTS = {"annotation_queue_items": ("queue_id", "annotation_queues")}
PARENTS |= {moved.table.name: (moved.parent[0], moved.parent[1]) for moved in EXPORTED if moved.parent is not None}
"""The column by which a record lies below one of another table."""
FOLDERS_OF = tuple(column.table.name for column in FOLDER_COLUMNS)
BY_NAME = {moved.table.name: moved for moved in EXPORTED}
DEFAULTS = {
    name: {
        str(c.name): int(str(c.server_default.arg))
        for c in moved.columns
        if isinstance(c.server_default, sa.DefaultClause)
    }
    for name, moved in BY_NAME.items()
}
"""What a column is where a record does not say it, as those of older versions do not."""
