"""The fields of calls that filters, orders and columns of a request name, as dotted paths."""

import re
from dataclasses import dataclass
from enum import Enum

from heddle.errors import InvalidField
from heddle.wire.calls import COLUMNS, ColumnType
from heddle.wire.query import split_path


def _fields(kind: ColumnType) -> tuple[str, ...]:
    return tuple(column.field for column in COLUMNS if column.type is kind and column.name != "status")


TEXT_COLUMNS = ("project_id", *_fields(ColumnType.TEXT))
NUMBER_COLUMNS = _fields(ColumnType.INTEGER)
TIME_COLUMNS = (*_fields(ColumnType.INSTANT), "deleted_at", "expire_at")
REF_COLUMNS = ("input_refs", "output_refs")
JSON_COLUMNS = _fields(ColumnType.JSON)
COMPUTED = ("latency_ms", "status", "trace_name")
MULTI_VALUE_FEEDBACK = ("wandb.reaction.1", "wandb.note.1", "wandb.agent_user_feedback")
MAX_PATH_LENGTH = 2000

_FEEDBACK = re.compile(r"feedback\.\[(.+?)\]\.(.+)", re.DOTALL)
DOTTED_COLUMNS = ("attributes", "otel_dump")
_MOST_SPELLED = 8
_DUMPS = {f"{name}_dump": name for name in JSON_COLUMNS if name != "otel_dump"}


class FieldKind(Enum):
    """What sort of thing a field is."""

    TEXT = "text"
    NUMBER = "number"
    TIME = "time"
    REFS = "refs"
    JSON = "json"
    COMPUTED = "computed"
    FEEDBACK = "feedback"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class CallField:
    """A checked field: its column as records name it (or computed name), a path inside JSON, the feedback type."""

    kind: FieldKind
    column: str
    path: tuple[str, ...] = ()
    feedback_type: str = ""

    @property
    def spellings(self) -> tuple[tuple[str, ...], ...]:
        """The paths that the value may lie at, the first with a value counts.

        Attributes have keys with dots, so `a.b.c` is also the key `b.c` below `a`, and the key `a.b.c`.
        """
        if self.column not in DOTTED_COLUMNS or not 1 < len(self.path) <= _MOST_SPELLED:
            return (self.path,)
        dotted = ((*self.path[:at], ".".join(self.path[at:])) for at in range(len(self.path) - 2, -1, -1))
        return (self.path, *dotted)


def resolve_field(path: str) -> CallField:
    """The field that a dotted path names; raises InvalidField when calls have no such field."""
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidField(f"Field path is longer than {MAX_PATH_LENGTH} characters")
    if "\x00" in path:
        raise InvalidField("Field path contains a NUL character")
    for kind, names in _STATIC:
        if path in names:
            return CallField(kind, _NAMES.get(path, path))
    if path.startswith("feedback."):
        return _feedback_field(path)
    if path == "annotation_queue_items.queue_id":
        return CallField(FieldKind.QUEUE, path)
    head, *rest = split_path(path)
    column = _DUMPS.get(head, head)
    if column == "summary" and rest[:1] == ["weave"]:
        return _computed_field(rest[1:])
    if column == "attributes" and rest[:1] == ["otel_span"]:
        column, rest = "otel_dump", rest[1:]
    if column in JSON_COLUMNS:
        return CallField(FieldKind.JSON, column, tuple(rest))
    raise InvalidField(f"Field {path[:200]} is not allowed. Allowed fields: {', '.join(ALLOWED)}")


def _computed_field(rest: list[str]) -> CallField:
    if len(rest) == 1 and rest[0] in COMPUTED:
        return CallField(FieldKind.COMPUTED, rest[0])
    name = ".".join(rest)[:200]
    raise InvalidField(f"Summary field '{name}' is not allowed. Supported fields are: {', '.join(COMPUTED)}")


def _feedback_field(path: str) -> CallField:
    match = _FEEDBACK.fullmatch(path)
    if match:
        column, *rest = match[2].split(".")
        if column == "payload" or (column in ("runnable_ref", "trigger_ref") and not rest):
            return CallField(FieldKind.FEEDBACK, column, tuple(rest), match[1])
    raise InvalidField(
        f"Invalid feedback field path: {path[:200]}. "
        "Expected feedback.[<type or *>].payload[.path], .runnable_ref or .trigger_ref"
    )


_STATIC = (
    (FieldKind.TEXT, TEXT_COLUMNS),
    (FieldKind.NUMBER, NUMBER_COLUMNS),
    (FieldKind.TIME, TIME_COLUMNS),
    (FieldKind.REFS, REF_COLUMNS),
)
_NAMES = {column.field: column.name for column in COLUMNS}
ALLOWED = (
    *TEXT_COLUMNS,
    *NUMBER_COLUMNS,
    *TIME_COLUMNS,
    *REF_COLUMNS,
    *(f"{name}[.path]" for name in JSON_COLUMNS),
    *(f"summary.weave.{name}" for name in COMPUTED),
    "feedback.[type].payload[.path]",
    "annotation_queue_items.queue_id",
)
