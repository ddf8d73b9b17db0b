"""Where training and the trace service meet: calls to learn from, and rows to learn from."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class CallSelection:
    """Which calls of a project; the values are those of a body of /calls/stream_query, refs in either form."""

    project_id: str
    """`entity/project`."""
    filter: Mapping[str, Any] | None = None
    query: Mapping[str, Any] | None = None
    sort_by: Sequence[Mapping[str, str]] | None = None
    limit: int | None = None
    ids_only: bool = False
    """Only `id` and `trace_id` of each call are wanted."""


class CallSource(Protocol):
    """Reads calls with somebody's rights."""

    def read(self, caller: Any, selection: CallSelection, /) -> AsyncIterator[bytes]:
        """The selected calls with their feedback (`summary.weave.feedback`), refs in messages followed.

        Each chunk holds whole lines, one call as JSON in each.

        Raises Forbidden outside the caller's reach, InvalidField and InvalidRequest for a condition that cannot be
        used, before the first slice.
        """
        ...
