"""The job of a replay: choose the calls once, then ask again call by call, each answer stored as a call of its own.

The id of an answer's call follows from the replay and the place of its call, so that a job that is begun again finds
what it has stored and asks for nothing twice.
"""

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from heddle.auth import Caller
from heddle.errors import HeddleError, InvalidRequest
from heddle.evals.jobs.run import JobRun
from heddle.evals.monitors.service import Submit
from heddle.evals.objects import ObjectReader
from heddle.evals.replay.changes import Changes, read_changes
from heddle.evals.replay.chats import chat_of
from heddle.evals.running.asking import Asker, Counted, is_not_the_rows, may_pass
from heddle.store.base import Store
from heddle.store.control.eval_jobs import JobRow
from heddle.store.control.replays import FAILED, REPLAYED, SKIPPED, ReplayItem
from heddle.wire import times
from heddle.wire.inference import Completions
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

KIND = "replay"
ROOT_OP, CALL_OP = "heddle.replay", "heddle.replay.chat"
_NAMES = uuid.UUID("3f6f2f0c-52f5-5c2f-9f7e-6a1f7d3c5b11")
_PAGE = 100


def answer_id(replay_id: str, place: int) -> str:
    """The id of the call that shows the replay of one call."""
    return str(uuid.uuid5(_NAMES, f"{replay_id}/{place}"))


def scoring_id(replay_id: str) -> str:
    """The id of the job that scores a replay."""
    return str(uuid.uuid5(_NAMES, f"{replay_id}/scores"))


class ReplayWork:
    """Does the jobs of kind `replay`."""

    def __init__(self, store: Store, records: Records, completions: Completions, submit: Submit, parallel: int) -> None:
        self._store, self._records = store, records
        self._completions, self._submit = completions, submit
        self._parallel = parallel

    async def __call__(self, job: JobRow, run: JobRun) -> Json:
        """Choose, ask, store; returns the counts."""
        changes = await read_changes(ObjectReader(self._store, run.caller), job.body)
        if not (job.progress or {}).get("chosen"):
            await self._choose(job, run)
        await self._root(job, run.caller)
        while items := await self._store.replays.left(job.id, _PAGE):
            await self._insist(job, run.caller)
            await self._replay(job, run, changes, items)
        await self._insist(job, run.caller)
        await self._score(job, run.caller)
        counts = await self.counts(job.id)
        await self._end(job, run.caller, counts, None)
        return counts

    async def closing(self, job: JobRow, run: JobRun, problem: str) -> None:
        """End the call of a replay that failed or was cancelled."""
        if (job.progress or {}).get("chosen") or await self._store.calls.exists(
            run.caller.open(job.project_id), job.id
        ):
            await self._end(job, run.caller, await self.counts(job.id), problem)

    async def counts(self, replay_id: str) -> Json:
        """How many calls have which outcome."""
        found = await self._store.replays.counts(replay_id)
        known = {outcome: found.get(outcome, 0) for outcome in (REPLAYED, FAILED, SKIPPED)}
        return {"selected": sum(found.values()), **known, "waiting": found.get(None, 0)}

    async def _choose(self, job: JobRow, run: JobRun) -> None:
        """Fix which calls are replayed; later ones that match are none of this replay."""
        if not await self._store.replays.counts(job.id):
            chosen = {name: job.body[name] for name in ("filter", "query") if job.body.get(name)}
            slices = self._records.read_calls(
                run.caller,
                job.project_id,
                **chosen,
                limit=job.body["limit"],
                columns=["id"],
                sort_by=[{"field": "started_at", "direction": "desc"}],
            )
            await self._store.replays.choose(job.id, [call["id"] async for page in slices for call in page])
        await run.progress({"chosen": True, **await self.counts(job.id)})

    async def _root(self, job: JobRow, caller: Caller) -> None:
        """Start the call that the answers lie under; the same again changes nothing."""
        shown = ("filter", "query", "limit", "model", "prompt", "params", "scorer_refs")
        start = {
            "id": job.id,
            "trace_id": job.id,
            "op_name": ROOT_OP,
            "display_name": job.body.get("name"),
            "started_at": times.to_iso(job.created_at),
            "attributes": {"kind": "replay"},
            "inputs": {name: job.body[name] for name in shown if job.body.get(name)},
        }
        await self._records.start_call(caller, job.project_id, start)

    async def _end(self, job: JobRow, caller: Caller, counts: Json, problem: str | None) -> None:
        end = {"id": job.id, "ended_at": _now(), "output": counts, "exception": problem, "summary": {}}
        await self._records.end_call(caller, job.project_id, end)

    async def _insist(self, job: JobRow, caller: Caller) -> None:
        """Raise InvalidRequest when the call of the replay was deleted; answers that came since go, too."""
        if job.id in await self._read(job, caller, [job.id], whole=False):
            return
        below = {"parent_ids": [job.id]}
        async for calls in self._records.read_calls(caller, job.project_id, filter=below, columns=["id"]):
            await self._records.delete_calls(caller, job.project_id, [call["id"] for call in calls])
        raise InvalidRequest("The call of the replay was deleted")

    async def _replay(self, job: JobRow, run: JobRun, changes: Changes, items: Sequence[ReplayItem]) -> None:
        """Some calls, so many at a time; raises what concerns the job as a whole."""
        sources = await self._read(job, run.caller, [item.call_id for item in items], whole=True)
        stored = await self._read(job, run.caller, [answer_id(job.id, item.place) for item in items], whole=False)
        free = asyncio.Semaphore(self._parallel)

        async def one(item: ReplayItem) -> None:
            async with free:
                done = stored.get(answer_id(job.id, item.place))
                if done is not None:
                    decided = _decided(item, done["exception"])
                else:
                    decided = await self._ask_again(job, run.caller, changes, item, sources.get(item.call_id))
                await self._store.replays.decide([decided])
                done_here.append(item.place)

        done_here = list[int]()
        try:
            async with asyncio.TaskGroup() as group:
                for item in items:
                    group.create_task(one(item))
        except ExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            # Also where something fails: an attempt that got somewhere is no attempt in vain.
            if done_here:
                await run.progress({"chosen": True, **await self.counts(job.id)})

    async def _score(self, job: JobRow, caller: Caller) -> None:
        """Have the originals and the answers scored, in a job of its own."""
        items = await self._store.replays.page(job.id, [REPLAYED], None, 0)
        if items and job.body.get("scorer_refs"):
            ids = [call_id for item in items for call_id in (item.call_id, answer_id(job.id, item.place))]
            await self._submit(caller, job.project_id, ids, job.body["scorer_refs"], job_id=scoring_id(job.id))

    async def _read(self, job: JobRow, caller: Caller, ids: Sequence[str], whole: bool) -> dict[str, Json]:
        columns = ["inputs", "attributes", "exception"] if whole else ["exception"]
        slices = self._records.read_calls(caller, job.project_id, filter={"call_ids": list(ids)}, columns=columns)
        return {call["id"]: call async for page in slices for call in page}

    async def _ask_again(
        self, job: JobRow, caller: Caller, changes: Changes, item: ReplayItem, source: Json | None
    ) -> ReplayItem:
        if source is None:
            return replace(item, outcome=SKIPPED, reason="it is no longer there")
        chat = chat_of(source)
        if isinstance(chat, str):
            return replace(item, outcome=SKIPPED, reason=chat)
        try:
            request = changes.request(chat)
        except InvalidRequest as error:
            return replace(item, outcome=SKIPPED, reason=error.reason)
        started, ask = _now(), Counted(Asker(self._completions, caller, job.project_id))
        answer: Json | None = None
        problem: str | None = None
        try:
            answer = await ask(request)
        except HeddleError as error:
            if may_pass(error) or (changes.model is not None and is_not_the_rows(error)):
                raise
            problem = error.reason
        call = _call(job, item, source, request, started)
        call |= {"output": answer, "exception": problem, "summary": {"usage": ask.usage} if ask.usage else {}}
        await self._records.complete_calls(caller, job.project_id, [call])
        return _decided(item, problem)


def _call(job: JobRow, item: ReplayItem, source: Json, request: Json, started: str) -> Json:
    """The call that shows an answer, but for the answer."""
    return {
        "id": answer_id(job.id, item.place),
        "trace_id": job.id,
        "parent_id": job.id,
        "op_name": CALL_OP,
        "started_at": started,
        "ended_at": _now(),
        "attributes": {
            "kind": "llm",
            "model": request["model"],
            "replay": {"id": job.id, "source_call_id": item.call_id, "source_trace_id": source["trace_id"]},
        },
        "inputs": request,
    }


def _decided(item: ReplayItem, problem: str | None) -> ReplayItem:
    return replace(item, outcome=FAILED if problem else REPLAYED, reason=problem or None)


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
