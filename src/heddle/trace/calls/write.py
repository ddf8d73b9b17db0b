"""Storing calls: parse, pack, keep the files, commit; only then is the caller told."""

import asyncio
from collections.abc import Callable, Sequence

from heddle.auth import Caller
from heddle.errors import Forbidden, InvalidRequest, NotFound
from heddle.request_body import off_loop, parse_body, validated
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.trace.calls.models import BATCH, COMPLETE, ENDED, STARTED, CallBatchStartMode
from heddle.trace.calls.pack import Packed, Packer
from heddle.wire import refs
from heddle.wire.spans import AgentSpan

Answer = list[dict[str, str]]


class CallWrites:
    """The write requests of the calls group, for one caller; `project` limits them to one (the /v2 routes)."""

    def __init__(self, settings: Settings, store: Store, caller: Caller, project: str | None = None) -> None:
        self._settings = settings
        self._store = store
        self._caller = caller
        self._project = project

    async def start(self, body: bytes) -> dict[str, str]:
        """Store one start; returns its ids."""

        def pack(packer: Packer) -> Answer:
            start = packer.start(validated(STARTED, self._parse(body)).start)
            return [{"id": start.id, "trace_id": start.trace_id}]

        return (await self._keep(body, pack))[0]

    async def end(self, body: bytes, must_exist: bool = False) -> None:
        """Store one end; with `must_exist` an unknown call raises NotFound."""

        def pack(packer: Packer) -> Answer:
            packer.end(validated(ENDED, self._parse(body)).end)
            return []

        await self._keep(body, pack, must_exist)

    async def batch(self, body: bytes) -> Answer:
        """Store starts and ends in any order; returns one answer per item."""

        def pack(packer: Packer) -> Answer:
            answers: Answer = []
            for item in validated(BATCH, self._checked_modes(self._parse(body))).batch:
                if isinstance(item, CallBatchStartMode):
                    start = packer.start(item.req.start)
                    answers.append({"id": start.id, "trace_id": start.trace_id})
                else:
                    packer.end(item.req.end)
                    answers.append({})
            return answers

        return await self._keep(body, pack)

    async def complete(self, body: bytes) -> None:
        """Store whole calls."""

        def pack(packer: Packer) -> Answer:
            for call in validated(COMPLETE, self._parse(body)).batch:
                packer.complete(call)
            return []

        await self._keep(body, pack)

    def _parse(self, body: bytes) -> object:
        return parse_body(body, self._caller)

    @staticmethod
    def _checked_modes(value: object) -> object:
        items = value.get("batch") if isinstance(value, dict) else None
        for item in items if isinstance(items, list) else []:
            mode = item.get("mode") if isinstance(item, dict) else None
            if isinstance(mode, str) and mode not in ("start", "end"):
                raise InvalidRequest(f"Invalid mode: {mode[:100]!r}; known are 'start' and 'end'")
        return value

    def _open(self, project_id: str) -> str:
        if self._project is not None and project_id != self._project:
            raise Forbidden(
                f"project_id '{project_id[:200]}' is not the project of the address, '{self._project[:200]}'"
            )
        return self._caller.open(project_id)

    async def _keep(self, body: bytes, pack: Callable[[Packer], Answer], must_exist: bool = False) -> Answer:
        packer = Packer(_cached(self._open), self._caller.user, self._settings.large_field_bytes)
        answers = await off_loop(len(body), lambda: pack(packer))
        packed = packer.packed
        if must_exist:
            await self._require(packed)
        await self.keep(packed)
        return answers

    async def keep(self, packed: Packed, agents: Sequence[AgentSpan] = ()) -> None:
        """Store what is packed, and the agent spans among it: files first, then the calls that point to them."""
        if packed.files or packed.blobs:
            await self._keep_files(packed)
        await self._store.calls.write(packed.starts, packed.ends, agents)

    async def _require(self, packed: Packed) -> None:
        for end in packed.ends:
            if not await self._store.calls.exists(end.project, end.id):
                raise NotFound(f"Call {end.id} not found in project {refs.external_project(end.project)}")

    async def _keep_files(self, packed: Packed) -> None:
        """Make media and large fields durable before the calls that point to them."""
        for file in packed.files:
            await self._store.files.create(
                file.project, file.name, file.digest, len(file.content), await self._blob(file.content)
            )
        keys = [await self._blob(content) for content in packed.blobs]
        for files, name, index in packed.spills:
            files[name] = keys[index]

    async def _blob(self, content: bytes) -> str:
        return await asyncio.to_thread(self._store.blobs.put_bytes, content)


def _cached(open_project: Callable[[str], str]) -> Callable[[str], str]:
    """The same check, done once per project id of a request."""
    known: dict[str, str] = {}

    def open_once(project_id: str) -> str:
        internal = known.get(project_id)
        if internal is None:
            internal = known[project_id] = open_project(project_id)
        return internal

    return open_once
