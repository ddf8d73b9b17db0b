"""The latest versions of objects that are asked for again and again, remembered between the changes of any object."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import sqlalchemy as sa

from heddle.store.control.object_rows import latest_digests
from heddle.store.control.schema import Executor, Instance

_MOST_KNOWN = 20_000
T = TypeVar("T")


class LatestVersions:
    """Digests of latest versions, as the one writer sees them; where several servers write, nothing is remembered.

    Changes are counted in the writer, ahead of their commit, and what is remembered was read there too: so nothing that
    was read before a change is taken for what holds after it.
    """

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        self._executor = executor
        self._is_shared = (instance or Instance()).is_shared
        self._changes = 0
        self._read_at = 0
        self._known: dict[tuple[str, str, str], str] = {}

    def changing(self, work: Callable[[sa.Connection], T]) -> Callable[[sa.Connection], T]:
        """The same work for the writer, counted as a change."""

        def run(connection: sa.Connection) -> T:
            self._changes += 1
            return work(connection)

        return run

    async def digests(self, project: str, kind: str, names: Sequence[str]) -> dict[str, str]:
        """By object_id the digest of the latest live version; what has none is left out."""
        if self._is_shared:
            return await self._executor.read(lambda connection: latest_digests(connection, project, kind, names))
        known = self._known if self._read_at == self._changes else {}
        found = {name: digest for name in names if (digest := known.get((project, kind, name))) is not None}
        if len(found) == len(names):
            return found
        changes, found = await self._executor.write(
            lambda connection: (self._changes, latest_digests(connection, project, kind, names))
        )
        if changes != self._read_at or len(self._known) > _MOST_KNOWN:
            self._known, self._read_at = {}, changes
        self._known.update({(project, kind, name): digest for name, digest in found.items()})
        return found
