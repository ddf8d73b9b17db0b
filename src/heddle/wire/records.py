"""Where evaluations and the trace service meet: what one room needs of the other to write and read records."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from heddle.wire.jsontypes import Json

OP_FILE = "obj.py"
PLACEHOLDER_SOURCE = "def func(*args, **kwargs):\n    ...  # Code-free op: its calls were written by a service\n"
"""The source of ops that stand for code which is not there."""


def op_value(source_digest: str) -> Json:
    """The value of an op whose source is a stored file."""
    return {"_type": "CustomWeaveType", "weave_type": {"type": "Op"}, "files": {OP_FILE: source_digest}}


@dataclass(frozen=True, slots=True)
class Published:
    """A version of an object or op that is stored."""

    object_id: str
    digest: str
    version_index: int
    ref: str
    """Internal: `weave-trace-internal:///<project>/<object|op>/<object_id>:<digest>`."""


class Records(Protocol):
    """Writes and reads of the trace service with the rights of a caller (`auth.Caller`).

    `project_id` is `entity/project`. Items have the fields of the HTTP routes; refs in them may be internal or
    external. Every write returns after its commit. Raises what the routes answer: InvalidRequest, Forbidden, NotFound,
    ValidationFailed, Conflict.
    """

    async def publish(self, caller: Any, project_id: str, object_id: str, value: Any) -> Published:
        """Store a version of an object (or of an op, where the value is one), as /obj/create does."""
        ...

    async def put_file(self, caller: Any, project_id: str, name: str, content: bytes) -> str:
        """Store a file and return its digest."""
        ...

    async def get_file(self, caller: Any, project_id: str, digest: str) -> bytes | None:
        """The content of a file, None for an unknown digest."""
        ...

    async def put_table(self, caller: Any, project_id: str, rows: Sequence[Mapping[str, Any]]) -> tuple[str, list[str]]:
        """Store a table; returns its digest and the digest of each row."""
        ...

    async def join_table(self, caller: Any, project_id: str, row_digests: Sequence[str]) -> str:
        """Store a table of rows that are stored already; returns its digest."""
        ...

    async def read_refs(self, caller: Any, texts: Sequence[str]) -> list[Any]:
        """What internal refs of objects and ops point to, as /refs/read_batch does, however many there are."""
        ...

    async def placeholder_op(self, caller: Any, project_id: str, name: str) -> Published:
        """The newest version of an op, made with a stub of a source where there is none; for ops without code."""
        ...

    async def start_call(self, caller: Any, project_id: str, start: Mapping[str, Any]) -> None:
        """Store the first half of a call: the item of /call/start, `project_id` not needed."""
        ...

    async def end_call(self, caller: Any, project_id: str, end: Mapping[str, Any]) -> None:
        """Store the second half of a call: the item of /call/end."""
        ...

    async def complete_calls(self, caller: Any, project_id: str, calls: Sequence[Mapping[str, Any]]) -> None:
        """Store whole calls in one commit: items of /v2/.../calls/complete. The same ids again replace."""
        ...

    async def write_calls(
        self, caller: Any, project_id: str, starts: Sequence[Mapping[str, Any]], ends: Sequence[Mapping[str, Any]]
    ) -> None:
        """Store halves of calls in one commit: items of /call/start and of /call/end. The same ids again replace."""
        ...

    async def delete_calls(self, caller: Any, project_id: str, call_ids: Sequence[str]) -> int:
        """Hide calls with their descendants; returns how many."""
        ...

    async def add_feedback(self, caller: Any, project_id: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Store feedback: items of /feedback/create; one with the `id` of a stored row replaces it. Returns the ids."""
        ...

    def read_calls(self, caller: Any, project_id: str, **request: Any) -> AsyncIterator[list[Json]]:
        """The selected calls in slices, as parsed lines of /calls/stream_query with refs in internal form.

        `request` has the fields of that route's body (`filter` and `query` as plain JSON).
        """
        ...
