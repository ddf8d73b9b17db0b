"""One change of all calls that a selection chooses, as a durable job: delete them, give feedback, make rows of them."""

import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal

import orjson
from fastapi import Request, Response
from pydantic import Field, TypeAdapter

from heddle.auth import Caller, Scope
from heddle.errors import Conflict, InvalidRequest
from heddle.evals.jobs import JobRun, Jobs, JobsDep
from heddle.http.own_bodies import OwnBody, OwnCallsFilter
from heddle.http.parameters import check_repeated
from heddle.http.routing import PricesDep, StoreDep, Writer, answer, group, parse_body, validate
from heddle.store.base import Store
from heddle.store.control.eval_jobs import JobRow
from heddle.trace.feedback.models import FeedbackCreateReq
from heddle.trace.feedback.routes import prepare
from heddle.ui.reads.calls import Chosen, query_of
from heddle.wire import jsontext, refs, times
from heddle.wire.calls import CallRow, CallsQuery, SortTerm
from heddle.wire.inference import PricesOf
from heddle.wire.jsontypes import Json
from heddle.wire.records import NewFeedback, Records, object_value

router = group("Pages")
KIND = "change_calls"
MOST = 100_000
_ATTEMPTS = 20
_NAMES = uuid.UUID("0d0b7a60-6f8e-5b63-8a5f-2c9a1c1f3f11")
_NEWEST_FIRST = (SortTerm("started_at", True), SortTerm("id", True))


class DeleteCalls(OwnBody):
    """They go, and everything that was called inside."""

    type: Literal["delete"]


class GiveFeedback(OwnBody):
    """Each gets the same feedback, once."""

    type: Literal["feedback"]
    feedback_type: str
    payload: dict[str, Any]


class AppendRows(OwnBody):
    """Each becomes a row of a dataset: `columns` name a call's `inputs.<key>`, `output` or `output.<key>`."""

    type: Literal["dataset"]
    name: str = Field(pattern=r"^[\w.-]{1,128}$")
    is_new: bool
    columns: dict[str, str] = Field(min_length=1, max_length=100)


class ChangeReq(Chosen, extra="forbid"):
    """Which calls, and what becomes of them."""

    filter: OwnCallsFilter | None = None
    action: Annotated[DeleteCalls | GiveFeedback | AppendRows, Field(discriminator="type")]


_CHANGE: TypeAdapter[ChangeReq] = TypeAdapter(ChangeReq)


@router.post("/_ui/api/calls/change", include_in_schema=False)
async def change(
    body: ChangeReq, request: Request, caller: Writer, store: StoreDep, prices: PricesDep, jobs: JobsDep
) -> Response:
    """Begin the job, about calls that have started by now; raises InvalidRequest for more than `MOST` calls.

    It is one of /evaluations/jobs/query, and /evaluations/cancel ends it.
    """
    caller = caller.require(Scope.READ)
    caller = caller.require(Scope.DELETE) if isinstance(body.action, DeleteCalls) else caller
    if isinstance(body.action, GiveFeedback):
        check_repeated("action", [body.action.feedback_type, body.action.payload])
        target = refs.call_ref(caller.open(body.project_id), "each")
        given, payload = body.action.feedback_type, body.action.payload
        one = FeedbackCreateReq(project_id=body.project_id, weave_ref=target, feedback_type=given, payload=payload)
        await prepare([one], caller, store)
    asked: Json = jsontext.loads(await request.body())
    asked["to"] = min(times.now() / times.SECOND, asked["to"] if body.end is not None else float("inf"))
    of = await store.calls.count(await query_of(store, prices, caller, body))
    if of > MOST:
        raise InvalidRequest(
            f"{of} calls match, but at most {MOST} can be changed at once; choose a shorter time range"
        )
    if isinstance(body.action, AppendRows):
        await _base_table(store, caller, body, body.action)
    job = await jobs.submit(KIND, caller, body.project_id, asked)
    return answer({"id": job.id, "of": of})


class CallChanges:
    """Does the jobs."""

    def __init__(self, store: Store, records: Records, prices: PricesOf) -> None:
        self._store = store
        self._records = records
        self._prices = prices

    def register(self, jobs: Jobs) -> None:
        """Offer them."""
        jobs.register(KIND, self._change, is_storing=False)

    async def _change(self, job: JobRow, run: JobRun) -> Json:
        caller = run.caller
        body = validate(_CHANGE, parse_body(jsontext.dumps_bytes(job.body), caller))
        query = replace(await query_of(self._store, self._prices, caller, body), sort=_NEWEST_FIRST)
        match body.action:
            case DeleteCalls():
                # Those of an earlier attempt are gone.
                done = int(job.progress.get("done", 0))
                return await self._each(query, run, done, lambda calls: self._delete(caller, body, calls))
            case GiveFeedback() as given:
                return await self._each(query, run, 0, lambda calls: self._give(caller, body, given, job.id, calls))
            case AppendRows() as wanted:
                return await self._append(query, run, body, wanted)

    async def _each(
        self, query: CallsQuery, run: JobRun, done: int, work: Callable[[Sequence[CallRow]], Awaitable[object]]
    ) -> Json:
        of = done + await self._store.calls.count(query)
        await run.progress({"done": done, "of": of})
        async for calls in self._store.calls.stream(query):
            await work(calls)
            done += len(calls)
            await run.progress({"done": done, "of": of})
        return {"done": done}

    async def _delete(self, caller: Caller, body: Chosen, calls: Sequence[CallRow]) -> None:
        await self._records.delete_calls(caller, body.project_id, [call.id for call in calls])

    async def _give(
        self, caller: Caller, body: Chosen, given: GiveFeedback, job_id: str, calls: Sequence[CallRow]
    ) -> None:
        project = caller.open(body.project_id)
        rows = [
            NewFeedback(
                weave_ref=refs.call_ref(project, call.id),
                feedback_type=given.feedback_type,
                payload=given.payload,
                id=str(uuid.uuid5(_NAMES, f"{job_id}/{call.id}")),
            )
            for call in calls
        ]
        await self._records.add_feedback(caller, body.project_id, rows)

    async def _append(self, query: CallsQuery, run: JobRun, body: ChangeReq, wanted: AppendRows) -> Json:
        """Store the rows, then the table, then the version that names it: a dataset has all of them or none."""
        caller, project = run.caller, run.caller.open(body.project_id)
        digests: list[str] = []

        async def store(calls: Sequence[CallRow]) -> None:
            rows = [row_of(call, wanted.columns) for call in calls]
            digests.extend((await self._records.put_table(caller, body.project_id, rows))[1])

        columns = frozenset(path.partition(".")[0] for path in wanted.columns.values()) & {"inputs", "output"}
        done = await self._each(replace(query, columns=columns), run, 0, store)
        for _ in range(_ATTEMPTS):
            base, value, after = await _base_table(self._store, caller, body, wanted)
            before: list[str] = []
            if base:
                count = await self._store.tables.count(project, base) or 0
                known = await self._store.tables.digests_at(project, base, range(count))
                before = [known[place] for place in range(count)]
            table = await self._records.join_table(caller, body.project_id, [*before, *digests])
            value["rows"] = f"{refs.INTERNAL}{project}/table/{table}"
            with suppress(Conflict):
                made = await self._records.publish(caller, body.project_id, wanted.name, value, after)
                return {**done, "name": wanted.name, "digest": made.digest}
        raise Conflict(f"The dataset {wanted.name} was changed by others; try again")


async def _base_table(store: Store, caller: Caller, body: Chosen, wanted: AppendRows) -> tuple[str, Json, str]:
    """The table of the dataset, the value of its next version, and the digest of its latest one; raises InvalidRequest.

    For a new one table and digest are empty.
    """
    found = await store.objects.read(caller.open(body.project_id), wanted.name, "latest")
    if found is None or found.deleted_at is not None:
        return "", object_value("Dataset", name=wanted.name, description=None), ""
    if wanted.is_new:
        raise InvalidRequest(f"A dataset {wanted.name} already exists; select it instead")
    value = orjson.loads(found.val or "null")
    rows = value.get("rows") if isinstance(value, dict) else None
    if not isinstance(rows, str) or not rows.startswith(refs.INTERNAL):
        raise InvalidRequest(f"{wanted.name} is not a dataset with a table of rows")
    return refs.parse(rows).name, value, found.digest


def row_of(call: CallRow, columns: dict[str, str]) -> Json:
    """A row: each column from one field of the call, null where the call has no such field."""
    values = {name: orjson.loads(text) for name in ("inputs", "output") if (text := getattr(call, name)) is not None}
    row: Json = {}
    for name, path in columns.items():
        column, _, key = path.partition(".")
        value = values.get(column)
        row[name] = value if not key else value.get(key) if isinstance(value, dict) else None
    return row
