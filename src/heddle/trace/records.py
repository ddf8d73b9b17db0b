"""The trace service as other rooms use it: the same writes and reads as over HTTP, without HTTP."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import orjson
from pydantic import TypeAdapter

from heddle.auth import Caller, Scope
from heddle.request_body import validated
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.object_rows import ObjectFilter
from heddle.trace.calls.models import CallsQueryReq
from heddle.trace.calls.read import CallReader, retention_of
from heddle.trace.feedback.models import FeedbackCreateReq
from heddle.trace.feedback.routes import prepare as prepare_feedback
from heddle.trace.inference_calls import LenientWrites, lenient
from heddle.trace.object_models import ObjSchemaForInsert
from heddle.trace.objects import prepare as prepare_object
from heddle.trace.refs import RefReader, readable
from heddle.trace.tables import packed
from heddle.wire import digests, jsontext, refs
from heddle.wire.jsontypes import Json
from heddle.wire.records import OP_FILE, PLACEHOLDER_SOURCE, Published, op_value

_FEEDBACK: TypeAdapter[Sequence[FeedbackCreateReq]] = TypeAdapter(Sequence[FeedbackCreateReq])
_QUERY: TypeAdapter[CallsQueryReq] = TypeAdapter(CallsQueryReq)


class TraceRecords:
    """Records of this server."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store

    async def publish(self, caller: Caller, project_id: str, object_id: str, value: Any) -> Published:
        """Store a version of an object or op."""
        caller.require(Scope.WRITE)
        obj = ObjSchemaForInsert(project_id=project_id, object_id=object_id, val=lenient(value, caller))
        new = prepare_object(obj, caller.open, caller.user)
        await self._store.objects.create(new)
        found = await self._store.objects.read(new.project, object_id, new.digest, with_value=False)
        assert found is not None, "it was stored a moment ago, and deletion keeps rows"
        return Published(
            object_id, new.digest, found.version_index, refs.object_ref(new.project, new.kind, object_id, new.digest)
        )

    async def put_file(self, caller: Caller, project_id: str, name: str, content: bytes) -> str:
        """Store a file and return its digest."""
        caller.require(Scope.WRITE)
        project, store = caller.open(project_id), self._store
        digest = digests.bytes_digest(content)
        with store.files.arriving():
            blob = await asyncio.to_thread(store.blobs.put_bytes, content)
            await store.files.create(project, name, digest, len(content), blob)
        return digest

    async def get_file(self, caller: Caller, project_id: str, digest: str) -> bytes | None:
        """The content of a file, None for an unknown digest."""
        caller.require(Scope.READ)
        found = await self._store.files.find(caller.open(project_id), digest)
        return None if found is None else await asyncio.to_thread(self._store.blobs.read, found.blob)

    async def put_table(
        self, caller: Caller, project_id: str, rows: Sequence[Mapping[str, Any]]
    ) -> tuple[str, list[str]]:
        """Store a table; returns its digest and the digest of each row."""
        caller.require(Scope.WRITE)
        project = caller.open(project_id)

        def pack() -> tuple[list[str], dict[str, str]]:
            return packed([lenient(row, caller) for row in rows])

        row_digests, texts = await asyncio.to_thread(pack)
        digest = digests.table_digest(row_digests)
        await self._store.tables.create(project, digest, row_digests, texts)
        return digest, row_digests

    async def join_table(self, caller: Caller, project_id: str, row_digests: Sequence[str]) -> str:
        """Store a table of rows that are stored already; returns its digest."""
        caller.require(Scope.WRITE)
        digest = digests.table_digest(row_digests)
        await self._store.tables.create(caller.open(project_id), digest, row_digests, {})
        return digest

    async def read_refs(self, caller: Caller, texts: Sequence[str]) -> list[Any]:
        """What internal refs of objects and ops point to."""
        caller.require(Scope.READ)
        return await RefReader(self._store).read([readable(text, caller) for text in texts])

    async def placeholder_op(self, caller: Caller, project_id: str, name: str) -> Published:
        """The newest version of an op, made with a stub of a source where there is none."""
        project = caller.open(project_id)
        wanted = ObjectFilter(is_op=True, latest_only=True, object_ids=[name])
        found = await self._store.objects.query(project, wanted, with_values=False, limit=1)
        if found:
            ref = refs.object_ref(project, "op", name, found[0].digest)
            return Published(name, found[0].digest, found[0].version_index, ref)
        digest = await self.put_file(caller, project_id, OP_FILE, PLACEHOLDER_SOURCE.encode())
        return await self.publish(caller, project_id, name, op_value(digest))

    async def start_call(self, caller: Caller, project_id: str, start: Mapping[str, Any]) -> None:
        """Store the first half of a call."""
        caller.require(Scope.WRITE)
        body = {"start": {**start, "project_id": project_id}}
        await LenientWrites(self._settings, self._store, caller, project_id).start(jsontext.dumps_bytes(body))

    async def end_call(self, caller: Caller, project_id: str, end: Mapping[str, Any]) -> None:
        """Store the second half of a call."""
        caller.require(Scope.WRITE)
        body = {"end": {**end, "project_id": project_id}}
        await LenientWrites(self._settings, self._store, caller, project_id).end(jsontext.dumps_bytes(body))

    async def complete_calls(self, caller: Caller, project_id: str, calls: Sequence[Mapping[str, Any]]) -> None:
        """Store whole calls in one commit."""
        caller.require(Scope.WRITE)
        body = {"batch": [{**call, "project_id": project_id} for call in calls]}
        await LenientWrites(self._settings, self._store, caller, project_id).complete(jsontext.dumps_bytes(body))

    async def write_calls(
        self, caller: Caller, project_id: str, starts: Sequence[Mapping[str, Any]], ends: Sequence[Mapping[str, Any]]
    ) -> None:
        """Store halves of calls in one commit."""
        caller.require(Scope.WRITE)
        batch = [{"mode": "start", "req": {"start": {**start, "project_id": project_id}}} for start in starts]
        batch += [{"mode": "end", "req": {"end": {**end, "project_id": project_id}}} for end in ends]
        await LenientWrites(self._settings, self._store, caller, project_id).batch(
            jsontext.dumps_bytes({"batch": batch})
        )

    async def delete_calls(self, caller: Caller, project_id: str, call_ids: Sequence[str]) -> int:
        """Hide calls with their descendants; returns how many."""
        caller.require(Scope.WRITE)
        return await self._store.calls.delete(caller.open(project_id), list(call_ids), caller.user)

    async def add_feedback(self, caller: Caller, project_id: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Store feedback; one with the id of a stored row replaces it."""
        caller.require(Scope.WRITE)
        bodies = [lenient({**row, "project_id": project_id}, caller) for row in rows]
        prepared = await prepare_feedback(validated(_FEEDBACK, bodies), caller, self._store)
        await self._store.feedback.create(prepared)
        return [row["id"] for row in prepared]

    async def read_calls(self, caller: Caller, project_id: str, **request: Any) -> AsyncIterator[list[Json]]:
        """The selected calls in slices, as parsed lines of /calls/stream_query with refs in internal form."""
        caller.require(Scope.READ)
        body = validated(_QUERY, lenient({**request, "project_id": project_id}, caller))
        retention = await retention_of(self._store, caller.open(project_id))
        async for slice_ in CallReader(self._store, caller, body, retention).slices():
            yield [orjson.loads(orjson.dumps(call)) for call in slice_]
