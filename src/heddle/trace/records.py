"""The trace service as other features use it: the same writes and reads as over HTTP, without HTTP; and prices."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, cast

import orjson
from pydantic import TypeAdapter

from heddle.auth import ROLES, Caller, Grant, Scope
from heddle.errors import InvalidRequest
from heddle.http.routing import OFF_LOOP_BYTES, parse_body, validate
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.coordination import SUCCEEDED
from heddle.store.control.objects import ObjectFilter
from heddle.store.control.training import JobRow
from heddle.store.control.training_models import ModelRow
from heddle.trace.calls.models import (
    CallsFilter,
    CallsQueryReq,
    CompletedCallSchemaForInsert,
    EndedCallSchemaForInsert,
    SortBy,
    StartedCallSchemaForInsert,
)
from heddle.trace.calls.packing import MAX_FIELD_DEPTH, Packer
from heddle.trace.calls.read import CallReader
from heddle.trace.calls.write import CallWrites
from heddle.trace.feedback.models import FeedbackCreateReq
from heddle.trace.feedback.routes import prepare as prepare_feedback
from heddle.trace.objects import ObjSchemaForInsert
from heddle.trace.objects import prepare as prepare_object
from heddle.trace.prices import PricedUsage, default_prices
from heddle.trace.refs import RefReader, readable
from heddle.trace.tables import pack_rows
from heddle.wire import jsontext, refs, times
from heddle.wire.calls import CostOf, ModelUsage, Usage, UsageSum
from heddle.wire.inference import InferenceCall, ModelPrice
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LAZY
from heddle.wire.query import parse_query
from heddle.wire.records import (
    OP_FILE,
    PLACEHOLDER_SOURCE,
    Call,
    CallEnd,
    CallStart,
    NewFeedback,
    Published,
    VersionLabels,
    op_value,
)
from heddle.wire.training import CallSelection, call_id_of


def lenient(value: Any, caller: Caller) -> Any:
    """The value of texts that a model or its user made: refs in internal form; what only looks like one stays text."""
    if isinstance(value, dict):
        return {key: lenient(item, caller) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [lenient(item, caller) for item in value]
    if not isinstance(value, str):
        return value
    value = jsontext.clean_text(value)
    if not value.startswith((refs.EXTERNAL, refs.INTERNAL)):
        return value
    try:
        return refs.convert_ref(value, caller.may_read)
    except InvalidRequest:
        return value if value.startswith(refs.EXTERNAL) else f"{refs.PRIVATE}{value[len(refs.INTERNAL) :]}"


class InferencePrices:
    """What tokens cost in a project, by its own prices and the default ones."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def __call__(self, project: str) -> CostOf:
        """The prices of a project (internal id; empty: the default prices)."""
        own = await self._store.costs.project_rows(project) if project else {}
        prices = default_prices()

        def cost(used: Usage | ModelUsage | UsageSum, at: int) -> float | None:
            price = prices.pick(own, used.model, at)
            return None if price is None else PricedUsage.of(used, price).total

        return cost

    async def changes(self, project: str) -> list[int]:
        """The instants at which the price of some model changes in a project (internal id), in order."""
        return default_prices().changes(await self._store.costs.project_rows(project) if project else {})

    def of_provider(self, provider: str) -> list[ModelPrice]:
        """The newest default price of every model of a provider, by name."""
        return [
            ModelPrice(
                model=row.llm_id,
                since=times.to_iso(row.effective_date)[:10],
                prompt=row.prompt_token_cost,
                completion=row.completion_token_cost,
                cache_read=row.cache_read_input_token_cost,
                cache_creation=row.cache_creation_input_token_cost,
            )
            for row in default_prices().of_provider(provider)
        ]


OP_NAME = "heddle.training_job"
_EXPANDED = ("inputs.messages", "inputs.tools", "output")


def _to_internal(value: Mapping[str, Any] | None, caller: Caller) -> Any:
    """A copy with its refs in internal form."""
    return parse_body(jsontext.dumps_bytes(value or {}), caller)


def _job_call(model: ModelRow, job: JobRow) -> InferenceCall:
    name = f"{model.entity}/{model.project}/{model.name}"
    succeeded = job.state == SUCCEEDED
    output: Json = {"state": job.state, "step": job.step, "metrics": job.metrics or {}, "error": job.error}
    if succeeded and job.step is not None:
        output["policy"] = f"{refs.ARTIFACT}{name}:step{job.step}"
    inputs: Json = {"model": f"{refs.ARTIFACT}{name}", "base_model": model.base_model, "lora": model.lora}
    inputs |= {"kind": job.kind, "parent_step": job.parent_step}
    return InferenceCall(
        caller=Caller(job.created_by, (Grant(model.project_id, ROLES["editor"]),)),
        project=model.project_id,
        op_name=OP_NAME,
        id=call_id_of(job.id),
        trace_id=call_id_of(job.id),
        started_at=times.to_datetime(job.started_at or job.created_at),
        ended_at=times.to_datetime(job.ended_at or times.now()),
        inputs={**inputs, **{key: value for key, value in job.config.items() if value is not None}},
        output=output,
        exception=None if succeeded else (job.error or job.state),
        attributes={"kind": "training", "job_id": job.id, "model_id": model.id},
        display_name=f"train {model.name}" + ("" if job.step is None else f" to step {job.step}"),
    )


_FEEDBACK: TypeAdapter[Sequence[FeedbackCreateReq]] = TypeAdapter(Sequence[FeedbackCreateReq], config=LAZY)
_QUERY: TypeAdapter[CallsQueryReq] = TypeAdapter(CallsQueryReq)
_CALL: TypeAdapter[CompletedCallSchemaForInsert] = TypeAdapter(CompletedCallSchemaForInsert)
_COMPLETED = frozenset(CompletedCallSchemaForInsert.model_fields).intersection(InferenceCall.__slots__)


class TraceRecords:
    """The Records of this server; also a CompletionSink, a CallSource, and the observer that shows jobs as calls."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store

    async def publish(
        self,
        caller: Caller,
        project_id: str,
        object_id: str,
        value: Any,
        after: str | None = None,
        labels: VersionLabels | None = None,
    ) -> Published:
        """Store a version of an object or op; raises Conflict where `after` is not the latest any more."""
        caller = caller.require(Scope.WRITE)
        obj = ObjSchemaForInsert(project_id=project_id, object_id=object_id, val=lenient(value, caller))
        new = prepare_object(obj, caller.open, caller.user)
        await self._store.objects.create(replace(new, after=after, labels=labels))
        found = await self._store.objects.read(new.project, object_id, new.digest, with_value=False)
        assert found is not None, "it was stored a moment ago, and deletion keeps rows"
        return Published(
            object_id, new.digest, found.version_index, refs.object_ref(new.project, new.kind, object_id, new.digest)
        )

    async def put_file(self, caller: Caller, project_id: str, name: str, content: bytes) -> str:
        """Store a file and return its digest."""
        caller = caller.require(Scope.WRITE)
        project, store = caller.open(project_id), self._store
        digest = refs.bytes_digest(content)
        with store.files.note_arrival():
            blob = await asyncio.to_thread(store.blobs.put_bytes, content)
            await store.files.create(project, name, digest, len(content), blob)
        return digest

    async def get_file(self, caller: Caller, project_id: str, digest: str) -> bytes | None:
        """The content of a file, None for an unknown digest."""
        caller = caller.require(Scope.READ)
        found = await self._store.files.find(caller.open(project_id), digest)
        return None if found is None else await asyncio.to_thread(self._store.blobs.read, found.blob)

    async def put_table(
        self, caller: Caller, project_id: str, rows: Sequence[Mapping[str, Any]]
    ) -> tuple[str, list[str]]:
        """Store a table; returns its digest and the digest of each row."""
        caller = caller.require(Scope.WRITE)
        project = caller.open(project_id)

        def pack() -> tuple[list[str], dict[str, str]]:
            return pack_rows([lenient(row, caller) for row in rows])

        row_digests, texts = await asyncio.to_thread(pack)
        digest = refs.table_digest(row_digests)
        await self._store.tables.create(project, digest, row_digests, texts)
        return digest, row_digests

    async def join_table(self, caller: Caller, project_id: str, row_digests: Sequence[str]) -> str:
        """Store a table of rows that are stored already; returns its digest."""
        caller = caller.require(Scope.WRITE)
        digest = refs.table_digest(row_digests)
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
        found = await self._store.objects.query(project, wanted, limit=1)
        if found:
            ref = refs.object_ref(project, "op", name, found[0].digest)
            return Published(name, found[0].digest, found[0].version_index, ref)
        digest = await self.put_file(caller, project_id, OP_FILE, PLACEHOLDER_SOURCE.encode())
        return await self.publish(caller, project_id, name, op_value(digest))

    async def write_calls(
        self, caller: Caller, project_id: str, starts: Sequence[CallStart], ends: Sequence[CallEnd]
    ) -> None:
        """Store halves of calls in one commit."""
        caller = caller.require(Scope.WRITE)

        def pack(packer: Packer) -> None:
            for start in starts:
                given = _given(start, caller) | {"started_at": times.to_datetime(start.started_at)}
                packer.start(StartedCallSchemaForInsert(project_id=project_id, **given))
            for end in ends:
                given = _given(end, caller) | {"ended_at": times.to_datetime(end.ended_at)}
                packer.end(EndedCallSchemaForInsert(project_id=project_id, **given))

        await self._write(caller, project_id, [*starts, *ends], pack)

    async def store(self, call: InferenceCall) -> None:
        """Store a whole call; raises HeddleError when it cannot be stored."""
        caller = cast(Caller, call.caller)

        def pack(packer: Packer) -> None:
            values = {name: getattr(call, name) for name in _COMPLETED}
            values |= {"project_id": call.project, "summary": {"usage": call.usage} if call.usage else {}}
            packer.complete(validate(_CALL, lenient(values, caller)))

        await self._write(caller, call.project, [call], pack)

    async def _write(
        self,
        caller: Caller,
        project_id: str,
        records: Sequence[CallStart | CallEnd | InferenceCall],
        pack: Callable[[Packer], None],
    ) -> None:
        values = [getattr(record, item.name) for record in records for item in fields(record)]
        size = jsontext.estimate_size(values, OFF_LOOP_BYTES)
        await CallWrites(self._settings, self._store, caller, project_id).write(pack, size)

    async def delete_calls(self, caller: Caller, project_id: str, call_ids: Sequence[str]) -> int:
        """Hide calls with their descendants; returns how many."""
        caller = caller.require(Scope.DELETE)
        return await self._store.calls.delete(caller.open(project_id), list(call_ids), caller.user)

    async def add_feedback(self, caller: Caller, project_id: str, rows: Sequence[NewFeedback]) -> list[str]:
        """Store feedback; one with the id of a stored row replaces it."""
        caller = caller.require(Scope.ANNOTATE)
        bodies = [{**_given(row, caller), "project_id": project_id} for row in rows]
        prepared = await prepare_feedback(validate(_FEEDBACK, bodies), caller, self._store)
        await self._store.feedback.create(prepared)
        return [row["id"] for row in prepared]

    async def read_calls(self, caller: Caller, project_id: str, **request: Any) -> AsyncIterator[list[Call]]:
        """The selected calls in slices."""
        caller = caller.require(Scope.READ)
        body = validate(_QUERY, lenient({**request, "project_id": project_id}, caller))
        reader = await CallReader.open(self._store, caller, body)
        async for slice_ in reader.slices():
            yield [_call(orjson.loads(orjson.dumps(line))) for line in slice_]

    async def read(self, caller: Caller, selection: CallSelection) -> AsyncIterator[bytes]:
        """The selected calls with their feedback as JSON lines, refs in messages followed; raises HeddleError."""
        caller = caller.require(Scope.READ)
        request = CallsQueryReq(
            project_id=selection.project_id,
            filter=CallsFilter(**_to_internal(selection.filter, caller)),
            query=parse_query(_to_internal(selection.query, caller)) if selection.query is not None else None,
            sort_by=None if selection.sort_by is None else [SortBy.model_validate(term) for term in selection.sort_by],
            limit=selection.limit,
            columns=["id", "trace_id"] if selection.ids_only else None,
            include_feedback=not selection.ids_only,
            expand_columns=None if selection.ids_only else list(_EXPANDED),
        )
        reader = await CallReader.open(self._store, caller, request)
        async for lines in reader.stream():
            yield lines

    async def ended(self, model: ModelRow, job: JobRow) -> None:
        """Store a job as a call; the same job again is the same call. Raises HeddleError when it cannot be stored."""
        await self.store(_job_call(model, job))


_CALL_FIELDS = frozenset(item.name for item in fields(Call))


def _given(record: CallStart | CallEnd | NewFeedback, caller: Caller) -> Json:
    """The fields that have a value, with refs in internal form; raises InvalidRequest for what is nested too deep."""
    values = {item.name: getattr(record, item.name) for item in fields(record)}
    if any(jsontext.depth(value) > MAX_FIELD_DEPTH for value in values.values()):
        raise InvalidRequest(f"JSON is nested deeper than {MAX_FIELD_DEPTH} levels")
    return {name: lenient(value, caller) for name, value in values.items() if value is not None}


def _call(line: Json) -> Call:
    return Call(**{name: value for name, value in line.items() if name in _CALL_FIELDS})
