"""The job of a replay: choose the calls once, then ask again call by call, each answer stored as a call of its own.

The id of an answer's call follows from the replay and the place of its call, so that a job that is begun again finds
what it has stored and asks for nothing twice.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heddle.auth import Caller
from heddle.errors import HeddleError, InvalidRequest
from heddle.evals.jobs import JobRun, Jobs
from heddle.evals.objects import (
    CLASS_NAME,
    ChatAnswer,
    ChatRequest,
    Message,
    ObjectReader,
    fill_template,
    find_calls,
    is_ref,
    prompt_messages,
    read_structured,
    template_names,
)
from heddle.evals.predictions import Asker, Counted, is_not_the_rows, may_pass
from heddle.evals.replay.chats import Chat, read_chat
from heddle.evals.replay.schemas import ReplayCreateReq
from heddle.evals.scoring import Scoring
from heddle.jobs.runner import TaskGroup
from heddle.store.base import Store
from heddle.store.control.coordination import FAILED
from heddle.store.control.eval_jobs import REPLAYED, SKIPPED, JobRow, ReplayItem
from heddle.wire import times
from heddle.wire.inference import Completions
from heddle.wire.jsontypes import Json
from heddle.wire.records import Call, CallEnd, CallStart, Records

KIND = "replay"
ROOT_OP, CALL_OP = "heddle.replay", "heddle.replay.chat"
_NAMES = uuid.UUID("3f6f2f0c-52f5-5c2f-9f7e-6a1f7d3c5b11")
_PAGE = 100
_SYSTEM = ("system", "developer")
_PROVIDER_MODEL = "ProviderModel"


def answer_id(replay_id: str, place: int) -> str:
    """The id of the call that shows the replay of one call."""
    return str(uuid.uuid5(_NAMES, f"{replay_id}/{place}"))


def scoring_id(replay_id: str) -> str:
    """The id of the job that scores a replay."""
    return str(uuid.uuid5(_NAMES, f"{replay_id}/scores"))


@dataclass(frozen=True, slots=True)
class Changes:
    """What is other for every call of a replay."""

    model: str | None
    prompt: Sequence[Message] | None
    """Messages that stand in the place of the recorded system messages."""
    params: Json

    def request(self, chat: Chat) -> ChatRequest:
        """The request to send; raises InvalidRequest where the call does not have what it takes."""
        model = self.model or chat.model
        if model is None:
            raise InvalidRequest("neither the call nor the replay names a model")
        made: ChatRequest = {**chat.fields, **self.params, "model": model, "messages": chat.messages}
        if self.params.keys() & {"max_completion_tokens", "max_tokens"}:
            for name in {"max_completion_tokens", "max_tokens"} - self.params.keys():
                made.pop(name, None)
        if chat.variables:
            made["template_vars"] = chat.variables
        if self.prompt is None:
            return made | ({"prompt": chat.prompt} if chat.prompt else {})
        first = next((n for n, item in enumerate(chat.messages) if item["role"] not in _SYSTEM), len(chat.messages))
        filled = fill_template(list(self.prompt), chat.variables)
        return made | {"messages": [*filled, *chat.messages[first:]]}


async def read_changes(reader: ObjectReader, spec: ReplayCreateReq) -> Changes:
    """The changes that a replay asks for; raises HeddleError for what cannot be read or used."""
    model, prompt, params = spec.model, None, spec.changed_params
    if is_ref(model):
        found = await reader.read(model, "The model")
        if found.is_a(CLASS_NAME):
            stored = await read_structured(reader, found)
            model, prompt = stored.model_id, stored.messages(None) or None
            given = stored.request([])
            params = {name: given[name] for name in given if name not in ("model", "messages")} | params
        elif not found.is_a(_PROVIDER_MODEL):
            raise InvalidRequest(f"The model {found.target.name} is neither a {CLASS_NAME} nor a {_PROVIDER_MODEL}")
    if spec.prompt:
        named = await reader.read(spec.prompt, "The prompt")
        prompt = prompt_messages(named.value)
        if prompt is None:
            raise InvalidRequest(f"The prompt {named.target.name} has no messages")
    for message in prompt or ():
        try:
            template_names(message)
        except ValueError as error:
            raise InvalidRequest(f"The prompt cannot be rendered: {error}") from None
    return Changes(model, prompt, params)


class ReplayJobs:
    """Does the jobs of kind `replay`; `parallel` calls are worked on at the same time."""

    def __init__(
        self, store: Store, records: Records, completions: Completions, scoring: Scoring, jobs: Jobs, parallel: int
    ) -> None:
        self._store, self._records = store, records
        self._completions, self._scoring = completions, scoring
        self._jobs, self._parallel = jobs, parallel

    def register(self) -> None:
        """Offer the jobs."""
        self._jobs.register(KIND, self._run, self._close)

    async def counts(self, replay_id: str) -> Json:
        """How many calls have which outcome."""
        found = await self._store.replays.counts(replay_id)
        known = {outcome: found.get(outcome, 0) for outcome in (REPLAYED, FAILED, SKIPPED)}
        return {"selected": sum(found.values()), **known, "waiting": found.get(None, 0)}

    async def scoring(self, job: JobRow) -> Json:
        """The job that scores a replay: its id, state and problem; None each as far as there is none."""
        scored = scoring_id(job.id) if job.body.get("scorer_refs") else None
        found = await self._store.eval_jobs.find(job.project_id, scored) if scored else None
        told = (found.result if found else None) or {}
        problems = (found.error if found else None, *told.get("refused_scorers", ()), told.get("reason"))
        return {
            "scoring_job_id": scored,
            "scoring_state": found.state if found else None,
            "scoring_problem": "; ".join(filter(None, problems)) or None,
        }

    async def _run(self, job: JobRow, run: JobRun) -> Json:
        """Choose, ask, store; returns the counts."""
        spec = ReplayCreateReq.model_validate({**job.body, "project_id": job.project_id})
        changes = await read_changes(ObjectReader(self._store, run.caller), spec)
        if not job.progress.get("chosen"):
            await self._choose(job, run, spec)
        await self._start_root(job, run.caller)
        while items := await self._store.replays.left(job.id, _PAGE):
            await self._check_root(job, run.caller)
            await self._replay(job, run, changes, items)
        await self._check_root(job, run.caller)
        await self._score(job, run.caller, spec)
        counts = await self.counts(job.id)
        await self._end_root(job, run.caller, counts, None)
        return counts

    async def _close(self, job: JobRow, run: JobRun, problem: str) -> None:
        """End the call of a replay that failed or was cancelled."""
        project = run.caller.open(job.project_id)
        if job.progress.get("chosen") or await self._store.calls.exists(project, job.id):
            await self._end_root(job, run.caller, await self.counts(job.id), problem)

    async def _choose(self, job: JobRow, run: JobRun, spec: ReplayCreateReq) -> None:
        """Fix which calls are replayed; later ones that match are none of this replay."""
        if not await self._store.replays.counts(job.id):
            slices = self._records.read_calls(
                run.caller,
                job.project_id,
                **spec.chosen,
                limit=spec.limit,
                columns=["id"],
                sort_by=[{"field": "started_at", "direction": "desc"}],
            )
            await self._store.replays.choose(job.id, [call.id async for page in slices for call in page])
        await run.progress({"chosen": True, **await self.counts(job.id)})

    async def _start_root(self, job: JobRow, caller: Caller) -> None:
        """Start the call that the answers lie under; the same again changes nothing."""
        start = CallStart(
            id=job.id,
            trace_id=job.id,
            op_name=ROOT_OP,
            display_name=job.body.get("name"),
            started_at=job.created_at,
            attributes={"kind": "replay"},
            inputs={name: value for name, value in job.body.items() if name != "name" and value},
        )
        await self._records.write_calls(caller, job.project_id, [start], [])

    async def _end_root(self, job: JobRow, caller: Caller, counts: Json, problem: str | None) -> None:
        end = CallEnd(id=job.id, ended_at=times.now(), output=counts, exception=problem)
        await self._records.write_calls(caller, job.project_id, [], [end])

    async def _check_root(self, job: JobRow, caller: Caller) -> None:
        """Raise InvalidRequest when the call of the replay was deleted; answers that came since go, too."""
        if job.id in await self._read(job, caller, [job.id], ["exception"]):
            return
        below = {"parent_ids": [job.id]}
        async for calls in self._records.read_calls(caller, job.project_id, filter=below, columns=["id"]):
            await self._records.delete_calls(caller, job.project_id, [call.id for call in calls])
        raise InvalidRequest("The call of the replay was deleted")

    async def _replay(self, job: JobRow, run: JobRun, changes: Changes, items: Sequence[ReplayItem]) -> None:
        """Some calls, so many at a time; raises what concerns the job as a whole."""
        wanted = [item.call_id for item in items]
        sources = await self._read(job, run.caller, wanted, ["inputs", "attributes", "exception"])
        stored = await self._read(job, run.caller, [answer_id(job.id, item.place) for item in items], ["exception"])
        done_here: list[int] = []

        async def replay_one(item: ReplayItem) -> None:
            done = stored.get(answer_id(job.id, item.place))
            if done is not None:
                decided = _decide(item, done.exception)
            else:
                decided = await self._ask_again(job, run.caller, changes, item, sources.get(item.call_id))
            await self._store.replays.decide([decided])
            done_here.append(item.place)

        try:
            async with TaskGroup(self._parallel) as group:
                for item in items:
                    group.add(replay_one, item)
        finally:
            # Also where something fails: an attempt that got somewhere is no attempt in vain.
            if done_here:
                await run.progress({"chosen": True, **await self.counts(job.id)})

    async def _score(self, job: JobRow, caller: Caller, spec: ReplayCreateReq) -> None:
        """Have the originals and the answers scored, in a job of its own."""
        items = await self._store.replays.page(job.id, [REPLAYED], None, 0)
        if items and spec.scorer_refs:
            ids = [call_id for item in items for call_id in (item.call_id, answer_id(job.id, item.place))]
            await self._scoring.submit_pinned(caller, job.project_id, ids, spec.scorer_refs, scoring_id(job.id))

    async def _read(self, job: JobRow, caller: Caller, ids: Sequence[str], columns: list[str]) -> dict[str, Call]:
        return await find_calls(self._records, caller, job.project_id, ids, columns)

    async def _ask_again(
        self, job: JobRow, caller: Caller, changes: Changes, item: ReplayItem, source: Call | None
    ) -> ReplayItem:
        if source is None:
            return replace(item, outcome=SKIPPED, reason="it is no longer there")
        chat = read_chat(source.inputs, source.attributes)
        if isinstance(chat, str):
            return replace(item, outcome=SKIPPED, reason=chat)
        try:
            request = changes.request(chat)
        except InvalidRequest as error:
            return replace(item, outcome=SKIPPED, reason=error.reason)
        started, ask = times.now(), Counted(Asker(self._completions, caller, job.project_id))
        answer: ChatAnswer | None = None
        problem: str | None = None
        try:
            answer = await ask(request)
        except HeddleError as error:
            if may_pass(error) or (changes.model is not None and is_not_the_rows(error)):
                raise
            problem = error.reason
        origin = {"id": job.id, "source_call_id": item.call_id, "source_trace_id": source.trace_id}
        start = CallStart(
            id=answer_id(job.id, item.place),
            trace_id=job.id,
            parent_id=job.id,
            op_name=CALL_OP,
            started_at=started,
            attributes={"kind": "llm", "model": request["model"], "replay": origin},
            inputs=request,
        )
        summary = {"usage": ask.usage} if ask.usage else {}
        end = CallEnd(id=start.id, ended_at=times.now(), output=answer, exception=problem, summary=summary)
        await self._records.write_calls(caller, job.project_id, [start], [end])
        return _decide(item, problem)


def _decide(item: ReplayItem, problem: str | None) -> ReplayItem:
    return replace(item, outcome=FAILED if problem else REPLAYED, reason=problem or None)
