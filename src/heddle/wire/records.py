"""Where evaluations and the trace service meet: the records that one of them writes and reads in the other."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from heddle.wire import refs, times
from heddle.wire.jsontypes import Json

OP_FILE = "obj.py"
PLACEHOLDER_SOURCE = "def func(*args, **kwargs):\n    ...  # Code-free op: its calls were written by a service\n"
"""The source of ops that stand for code which is not there."""


def op_value(source_digest: str) -> Json:
    """The value of an op whose source is a stored file."""
    return {"_type": "CustomWeaveType", "weave_type": {"type": "Op"}, "files": {OP_FILE: source_digest}}


def object_value(class_name: str, *bases: str, **fields: Any) -> Json:
    """The value of an object of a class of the SDKs."""
    return {"_type": class_name, "_class_name": class_name, "_bases": [*bases, "Object", "BaseModel"], **fields}


@dataclass(frozen=True, slots=True)
class Published:
    """A version of an object or op that is stored."""

    object_id: str
    digest: str
    version_index: int
    ref: str
    """Internal: `weave-trace-internal:///<project>/<object|op>/<object_id>:<digest>`."""


@dataclass(frozen=True, slots=True)
class VersionLabels:
    """Aliases of a new version, and the tags of all versions of its object; None are those that any of them has."""

    aliases: Sequence[str] = ()
    tags: Sequence[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStart:
    """The first half of a call to be stored; instants in microseconds, refs in either form."""

    id: str
    trace_id: str
    op_name: str
    started_at: int
    parent_id: str | None = None
    display_name: str | None = None
    attributes: Json = field(default_factory=dict)
    inputs: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEnd:
    """The second half."""

    id: str
    ended_at: int
    output: Any = None
    exception: str | None = None
    summary: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFeedback:
    """Feedback to be stored; the `id` of a stored row replaces it."""

    weave_ref: str
    feedback_type: str
    payload: Json
    id: str | None = None
    runnable_ref: str | None = None
    call_ref: str | None = None
    trigger_ref: str | None = None


@dataclass(slots=True, kw_only=True)
class Call:
    """A stored call, as far as its columns were asked for; refs are internal, times ISO texts."""

    id: str
    trace_id: str
    op_name: str
    started_at: str
    ended_at: str | None = None
    parent_id: str | None = None
    inputs: Json = field(default_factory=dict)
    output: Any = None
    attributes: Json = field(default_factory=dict)
    summary: Json = field(default_factory=dict)
    exception: str | None = None
    wb_user_id: str | None = None

    @property
    def operation(self) -> str:
        """The name of its op."""
        return refs.operation_name(self.op_name)

    @property
    def marks(self) -> Json:
        """`attributes.weave`."""
        found = self.attributes.get("weave")
        return found if isinstance(found, dict) else {}

    @property
    def own_summary(self) -> Json:
        """The part of the summary that its writer gave."""
        return {key: value for key, value in self.summary.items() if key != "weave"}

    def end_instant(self) -> int:
        """When it ended, or now."""
        ended = times.parse(self.ended_at) if self.ended_at else None
        return times.now() if ended is None else ended


class Records(Protocol):
    """Writes and reads of the trace service with the rights of a caller (`auth.Caller`).

    `project_id` is `entity/project`; refs in what is written may be internal or external. Every write returns after its
    commit. Raises what the routes answer: InvalidRequest, Forbidden, NotFound, ValidationFailed, Conflict.
    """

    async def publish(
        self,
        caller: Any,
        project_id: str,
        object_id: str,
        value: Any,
        after: str | None = None,
        labels: VersionLabels | None = None,
    ) -> Published:
        """Store a version of an object (or of an op, where the value is one), as /obj/create does, with its labels.

        Raises Conflict where `after` is not the digest of the latest version any more, empty for none.
        """

    async def put_file(self, caller: Any, project_id: str, name: str, content: bytes) -> str:
        """Store a file and return its digest."""

    async def get_file(self, caller: Any, project_id: str, digest: str) -> bytes | None:
        """The content of a file, None for an unknown digest."""

    async def put_table(self, caller: Any, project_id: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
        """Store a table; returns its digest and the digest of each row."""

    async def join_table(self, caller: Any, project_id: str, row_digests: Sequence[str]) -> str:
        """Store a table of rows that are stored already; returns its digest."""

    async def read_refs(self, caller: Any, texts: Sequence[str]) -> list[Any]:
        """What internal refs of objects and ops point to, as /refs/read_batch does, however many there are."""

    async def placeholder_op(self, caller: Any, project_id: str, name: str) -> Published:
        """The newest version of an op, made with a stub of a source where there is none; for ops without code."""

    async def write_calls(
        self, caller: Any, project_id: str, starts: Sequence[CallStart], ends: Sequence[CallEnd]
    ) -> None:
        """Store halves of calls in one commit. The same ids again replace."""

    async def delete_calls(self, caller: Any, project_id: str, call_ids: Sequence[str]) -> int:
        """Hide calls with their descendants; returns how many."""

    async def add_feedback(self, caller: Any, project_id: str, rows: Sequence[NewFeedback]) -> list[str]:
        """Store feedback; returns the ids."""

    def read_calls(self, caller: Any, project_id: str, **request: Any) -> AsyncIterator[list[Call]]:
        """The selected calls in slices.

        `request` has the fields of that route's body (`filter` and `query` as plain JSON).
        """


async def publish_dataset(
    records: Records, caller: Any, project_id: str, object_id: str, rows: Sequence[Mapping[str, Any]], **fields: Any
) -> tuple[Published, list[str]]:
    """Store rows, and a version of the dataset that has them; returns it and the digest of each row."""
    digest, row_digests = await records.put_table(caller, project_id, rows)
    table = f"{refs.INTERNAL}{refs.internal_project(project_id)}/table/{digest}"
    value = object_value("Dataset", **fields, rows=table)
    return await records.publish(caller, project_id, object_id, value), row_digests
