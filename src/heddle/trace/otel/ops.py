"""The op objects that spans are calls of: the latest of a name, made with a stub of a source where there is none."""

import asyncio
from collections.abc import Iterable

from heddle.auth import Caller
from heddle.store.base import Store
from heddle.wire import refs
from heddle.wire.calls import Start
from heddle.wire.records import OP_FILE, PLACEHOLDER_SOURCE, Records, op_value


class Ops:
    """Turns names of ops into refs."""

    def __init__(self, store: Store, records: Records, caller: Caller) -> None:
        self._store = store
        self._records = records
        self._caller = caller

    async def name(self, starts: list[Start]) -> None:
        """Put refs in the place of the op names of calls."""
        wanted: dict[str, set[str]] = {}
        for start in starts:
            wanted.setdefault(start.project, set()).add(start.op_name)
        known = {project: await self._refs(project, sorted(names)) for project, names in wanted.items()}
        for start in starts:
            start.op_name = known[start.project][start.op_name]

    async def _refs(self, project: str, names: list[str]) -> dict[str, str]:
        digests = await self._store.objects.latest.digests(project, "op", names)
        found = {name: refs.object_ref(project, "op", name, digest) for name, digest in digests.items()}
        return found | await self._made(project, [name for name in names if name not in found])

    async def _made(self, project: str, names: Iterable[str]) -> dict[str, str]:
        """Placeholder ops of these names, stored."""
        missing = list(names)
        if not missing:
            return {}
        records, project_id = self._records, refs.external_project(project)
        assert project_id is not None, "the project was opened by its name"
        digest = await records.put_file(self._caller, project_id, OP_FILE, PLACEHOLDER_SOURCE.encode())
        value = op_value(digest)
        made = await asyncio.gather(*(records.publish(self._caller, project_id, name, value) for name in missing))
        return {published.object_id: published.ref for published in made}
