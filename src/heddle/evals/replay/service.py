"""Replays as the routes use them: make, read, show side by side, turn into a dataset."""

from collections.abc import Mapping, Sequence
from typing import Any

from heddle.auth import Caller
from heddle.errors import InvalidRequest, NotFound
from heddle.evals.jobs.service import Jobs
from heddle.evals.objects import ObjectReader, is_ref
from heddle.evals.replay.changes import read_changes
from heddle.evals.replay.chats import answer_of, chat_of
from heddle.evals.replay.models import ReplayCreateReq, ReplayDatasetReq, ReplayQueryReq, ReplayResultsReq
from heddle.evals.replay.work import KIND, ReplayWork, answer_id, scoring_id
from heddle.evals.scorers.read import read_scorers
from heddle.store.base import Store
from heddle.store.control.eval_jobs import JobRow
from heddle.store.control.replays import ReplayItem
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.records import Published, Records

_COLUMNS = ["inputs", "output", "attributes", "summary", "exception", "ended_at"]
_RUNNABLE = "wandb.runnable."
_AT_ONCE = 500
_COSTS = (
    "prompt_tokens_total_cost",
    "completion_tokens_total_cost",
    "cache_read_input_tokens_total_cost",
    "cache_creation_input_tokens_total_cost",
)


class Replays:
    """The replays of all projects; `work` does them."""

    def __init__(self, store: Store, records: Records, jobs: Jobs, work: ReplayWork) -> None:
        self._store, self._records, self._jobs = store, records, jobs
        self._work = work
        jobs.register(KIND, work, work.closing)

    async def create(self, caller: Caller, body: ReplayCreateReq) -> str:
        """Queue a replay and return its id; raises HeddleError for what cannot be read, chosen or scored."""
        caller.open(body.project_id)
        reader = ObjectReader(self._store, caller)
        made = body.model_dump(exclude={"project_id"}, exclude_none=True)
        made["scorer_refs"] = [scorer.ref for scorer in await read_scorers(reader, body.scorer_refs, "The replay has")]
        await read_changes(reader, made)
        for name in ("model", "prompt"):
            if is_ref(made.get(name)):
                made[name] = (await reader.read(made[name], f"The {name}")).ref
        await self._try_choice(caller, body)
        return (await self._jobs.submit(KIND, caller, body.project_id, made)).id

    async def _try_choice(self, caller: Caller, body: ReplayCreateReq) -> None:
        """Read one call as the job will, so that a field that cannot be used is refused now."""
        chosen = body.model_dump(include={"filter", "query"}, exclude_none=True)
        async for _ in self._records.read_calls(caller, body.project_id, **chosen, limit=1, columns=["id"]):
            return

    async def query(self, caller: Caller, body: ReplayQueryReq) -> list[Json]:
        """The replays of a project, newest first."""
        caller.open(body.project_id)
        rows = await self._jobs.query(body.project_id, [KIND], body.states, body.limit, body.offset)
        return [await self._shown(row) for row in rows]

    async def read(self, caller: Caller, project_id: str, replay_id: str) -> Json:
        """One replay; raises NotFound."""
        return await self._shown(await self._job(caller, project_id, replay_id))

    async def cancel(self, caller: Caller, project_id: str, replay_id: str) -> Json:
        """Ask for the end of a replay; what was answered stays. Raises NotFound."""
        await self._job(caller, project_id, replay_id)
        return await self._shown(await self._jobs.cancel(project_id, replay_id))

    async def results(self, caller: Caller, body: ReplayResultsReq) -> Json:
        """A page of originals and answers side by side; raises NotFound."""
        await self._job(caller, body.project_id, body.id)
        counts = await self._store.replays.counts(body.id)
        total = sum(number for outcome, number in counts.items() if body.outcomes is None or outcome in body.outcomes)
        items = await self._store.replays.page(body.id, body.outcomes, body.limit, body.offset)
        return {"rows": await self._rows(caller, body.project_id, items), "total": total}

    async def dataset(self, caller: Caller, body: ReplayDatasetReq) -> Json:
        """Publish the results as a dataset; raises NotFound, and InvalidRequest when there are none."""
        await self._job(caller, body.project_id, body.id)
        items = await self._store.replays.page(body.id, body.outcomes, None, 0)
        if not items:
            raise InvalidRequest(f"The replay {body.id} has no call with an outcome of {', '.join(body.outcomes)}")
        rows: list[Json] = []
        for start in range(0, len(items), _AT_ONCE):
            page = items[start : start + _AT_ONCE]
            rows += [_row(shown) for shown in await self._rows(caller, body.project_id, page, with_inputs=True)]
        published = await self._publish(caller, body, rows)
        return {
            "object_id": published.object_id,
            "digest": published.digest,
            "version_index": published.version_index,
            "ref": published.ref,
            "rows": len(rows),
        }

    async def _publish(self, caller: Caller, body: ReplayDatasetReq, rows: Sequence[Json]) -> Published:
        digest, _ = await self._records.put_table(caller, body.project_id, rows)
        value = {
            "_type": "Dataset",
            "_class_name": "Dataset",
            "_bases": ["Object", "BaseModel"],
            "name": body.name,
            "description": body.description,
            "rows": f"{refs.INTERNAL}{caller.open(body.project_id)}/table/{digest}",
        }
        return await self._records.publish(caller, body.project_id, body.name, value)

    async def _job(self, caller: Caller, project_id: str, replay_id: str) -> JobRow:
        caller.open(project_id)
        found = await self._jobs.read(project_id, replay_id)
        if found is None or found.kind != KIND:
            raise NotFound(f"There is no replay {replay_id[:100]!r} in {project_id}")
        return found

    async def _shown(self, job: JobRow) -> Json:
        request = dict(job.body)
        name = request.pop("name", None)
        return {
            "id": job.id,
            "project_id": job.project_id,
            "name": name,
            "state": job.state,
            "error": job.error,
            "created_at": times.to_iso(job.created_at),
            "started_at": times.optional_iso(job.started_at),
            "ended_at": times.optional_iso(job.ended_at),
            "request": request,
            "counts": await self._work.counts(job.id),
            "scoring_job_id": scoring_id(job.id) if request.get("scorer_refs") else None,
        }

    async def _rows(
        self, caller: Caller, project_id: str, items: Sequence[ReplayItem], with_inputs: bool = False
    ) -> list[Json]:
        answers = {item.place: answer_id(item.replay_id, item.place) for item in items}
        wanted = [*(item.call_id for item in items), *answers.values()]
        calls: dict[str, Json] = {}
        for start in range(0, len(wanted), _AT_ONCE):
            page = self._records.read_calls(
                caller,
                project_id,
                filter={"call_ids": wanted[start : start + _AT_ONCE]},
                columns=_COLUMNS,
                include_costs=True,
                include_feedback=True,
            )
            calls |= {call["id"]: call async for slice_ in page for call in slice_}
        rows = []
        for item in items:
            source, answered = calls.get(item.call_id), calls.get(answers[item.place])
            row: Json = {
                "place": item.place,
                "outcome": item.outcome,
                "reason": item.reason,
                "original": _side(item.call_id, source),
                "replay": _side(answered["id"], answered) if answered else None,
            }
            if with_inputs:
                row |= {"inputs": source["inputs"] if source else None, "chat": chat_of(source) if source else None}
            rows.append(row)
        return rows


def _side(call_id: str, call: Mapping[str, Any] | None) -> Json:
    if call is None:
        names = ("trace_id", "op_name", "model", "status", "answer", "output", "exception", "latency_ms")
        return {"call_id": call_id, **dict.fromkeys((*names, "total_tokens", "total_cost")), "scores": {}}
    weave, usage = call["summary"].get("weave") or {}, call["summary"].get("usage") or {}
    costs = weave.get("costs") or {}
    inputs = call["inputs"] if isinstance(call["inputs"], dict) else {}
    return {
        "call_id": call_id,
        "trace_id": call["trace_id"],
        "op_name": call["op_name"],
        "model": inputs.get("model") or (call["attributes"] or {}).get("model"),
        "status": weave.get("status"),
        "answer": answer_of(call["output"]),
        "output": call["output"],
        "exception": call["exception"],
        "latency_ms": weave.get("latency_ms"),
        "total_tokens": sum(map(_tokens, usage.values())) if usage else None,
        "total_cost": sum(entry.get(name) or 0.0 for entry in costs.values() for name in _COSTS) if costs else None,
        "scores": _scores(weave.get("feedback") or ()),
    }


def _tokens(usage: Mapping[str, Any]) -> int:
    parts = ("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens")
    return int(usage.get("total_tokens") or sum(usage.get(name) or 0 for name in parts))


def _scores(feedback: Sequence[Mapping[str, Any]]) -> Json:
    """The newest score of each scorer."""
    found: Json = {}
    for item in sorted(feedback, key=lambda item: str(item["created_at"])):
        if item["feedback_type"].startswith(_RUNNABLE):
            found[item["feedback_type"].removeprefix(_RUNNABLE)] = (item["payload"] or {}).get("output")
    return found


def _row(shown: Json) -> Json:
    """A row of the dataset: what was asked, both answers and their scores, and where they come from."""
    chat, original, replay = shown["chat"], shown["original"], shown["replay"]
    row: Json = {
        "inputs": shown["inputs"],
        "messages": None if chat is None or isinstance(chat, str) else chat.messages,
        "original_output": original["answer"] if original["answer"] is not None else original["output"],
        "replayed_output": replay["answer"] if replay else None,
        "original_model": original["model"],
        "replayed_model": replay["model"] if replay else None,
        "original_scores": original["scores"],
        "replayed_scores": replay["scores"] if replay else {},
        "source_call_id": original["call_id"],
        "replayed_call_id": replay["call_id"] if replay else None,
    }
    return row | ({"reason": shown["reason"]} if shown["reason"] else {})
