"""Rollouts of an improvement: answers of a step of the policy to some chats, each a call with its reward."""

import hashlib
from typing import Any, TypedDict

import orjson

from heddle.errors import HeddleError, InvalidRequest
from heddle.evals.objects import ChatAnswer, ChatModel
from heddle.evals.predictions import Asker, Counted, is_not_the_rows, score_output
from heddle.evals.run import derived_id
from heddle.evals.scorers import number_of
from heddle.improve.dataset import ROLLOUT_OP
from heddle.improve.timeline import Loop
from heddle.jobs.runner import TaskGroup
from heddle.store.base import Store
from heddle.wire import refs, times
from heddle.wire.inference import Completions
from heddle.wire.jsontypes import Json
from heddle.wire.means import mean
from heddle.wire.records import CallEnd, CallStart, Records
from heddle.wire.training import Sampling

ROOT_OP = "heddle.improve.rollouts"


class Sampled(TypedDict):
    """What the rollouts of a step of training came to."""

    call_id: str
    """The call that they lie under."""
    step: int
    """The step of the policy that answered."""
    answers: int
    scored: int
    reward: float
    """The mean over the scored answers."""
    uneven: int
    """Chats of which one answer earned more than another."""


class Rollouts:
    """Samples rollouts, `parallel` answers at the same time."""

    def __init__(self, store: Store, records: Records, completions: Completions, parallel: int) -> None:
        self._store, self._records, self._completions = store, records, completions
        self._parallel = parallel

    async def sample(self, loop: Loop, dataset: str, number: int, step: int) -> Sampled:
        """Answers of a step to some chats, each a call with its reward; those that are stored are not asked again."""
        asked, caller, rows = loop.asked, loop.caller, await self._read_rows(dataset)
        root = derived_id(f"{loop.job.id}/rollouts/{number}")
        chosen = _choose_rows(len(rows), asked.rollouts.chats, asked.seed, number)
        started = CallStart(
            id=root,
            trace_id=root,
            op_name=ROOT_OP,
            started_at=times.now(),
            display_name=f"rollouts {number} of {loop.model.name} step {step}",
            attributes={"kind": "improve", "improvement": loop.job.id},
            inputs={"model": loop.address(step), "rows": chosen},
        )
        rewards: dict[str, Any] = {}
        below = self._records.read_calls(
            caller, asked.project_id, filter={"parent_ids": [root]}, columns=["id", "summary", "ended_at"]
        )
        async for calls in below:
            rewards |= {call.id: call.summary.get("reward") for call in calls if call.ended_at}
        await self._records.write_calls(caller, asked.project_id, [started], [])
        wanted = {
            derived_id(f"{root}/{place}/{answer}"): (place, answer)
            for place in chosen
            for answer in range(asked.rollouts.answers)
        }

        async def roll_out(call_id: str, place: int, answer: int) -> None:
            loop.log.check_budget()
            drawn = hashlib.sha256(f"{asked.seed}/{number}/{place}/{answer}".encode()).digest()
            seed = int.from_bytes(drawn[:4], "big") >> 1
            rewards[call_id] = await self._roll_out(loop, root, call_id, rows[place], step, seed)

        async with TaskGroup(self._parallel) as group:
            for call_id, (place, answer) in wanted.items():
                if call_id not in rewards:
                    group.add(roll_out, call_id, place, answer)
        by_place: dict[int, list[float]] = {}
        for call_id, (place, _) in wanted.items():
            if rewards[call_id] is not None:
                by_place.setdefault(place, []).append(float(rewards[call_id]))
        earned = [reward for some in by_place.values() for reward in some]
        if not earned:
            raise InvalidRequest(f"None of the {len(wanted)} answers could be scored; see the calls below {root}")
        result: Sampled = {
            "call_id": root,
            "step": step,
            "answers": len(wanted),
            "scored": len(earned),
            "reward": mean(earned),
            "uneven": sum(min(some) < max(some) for some in by_place.values()),
        }
        await self._records.write_calls(
            caller, asked.project_id, [], [CallEnd(id=root, ended_at=times.now(), output=result)]
        )
        return result

    async def _read_rows(self, ref: str) -> list[Json]:
        version = refs.parse(refs.to_internal(ref))
        found = await self._store.objects.read(version.project, version.name, version.version)
        if found is None or found.deleted_at is not None:
            raise InvalidRequest("The dataset of the improvement was deleted")
        table = refs.parse(orjson.loads(found.val or "null")["rows"])
        rows = await self._store.tables.query(table.project, table.name, limit=None)
        if not rows:
            raise InvalidRequest("The rows of the dataset of the improvement were removed")
        return [orjson.loads(row.val) for row in rows]

    async def _roll_out(self, loop: Loop, root: str, call_id: str, row: Json, step: int, seed: int) -> float | None:
        """One answer and its reward, stored as a call; None where it cannot be scored."""
        asked = loop.asked
        model = ChatModel(loop.address(step), Sampling(asked.rollouts.temperature, loop.max_tokens))
        request, started = model.inputs(row, seed), times.now()
        ask = Asker(self._completions, loop.caller, asked.project_id)
        counted = Counted(ask)
        output: ChatAnswer | None = None
        problem, reward, scores = None, None, {}
        try:
            output = await counted(request)
            given = await score_output(model.output(output, row), row, loop.scorers, ask)
            problem = next((score.problem for score in given if score.problem is not None), None)
            scores = {score.scorer.name: score.value for score in given if score.problem is None}
            if problem is None:
                numbers = [number_of(score.scorer.measured(score.value)) or 0.0 for score in given]
                reward = mean(numbers)
        except HeddleError as error:
            problem = error
        if problem is not None and is_not_the_rows(problem):
            raise problem
        start = CallStart(
            id=call_id,
            trace_id=root,
            parent_id=root,
            op_name=ROLLOUT_OP,
            started_at=started,
            attributes={"kind": "llm", "model": request["model"], "improvement": loop.job.id},
            inputs=request,
        )
        summary = {"usage": counted.usage, "reward": reward, "scores": scores}
        end = CallEnd(
            id=call_id,
            ended_at=times.now(),
            output=output,
            exception=None if problem is None else str(problem),
            summary={name: value for name, value in summary.items() if value not in (None, {})},
        )
        await self._records.write_calls(loop.caller, asked.project_id, [start], [end])
        return reward


def _choose_rows(count: int, wanted: int, seed: int, number: int) -> list[int]:
    """The places of the chats of a step: each comes once before one comes again, in an order by the seed."""
    ordered: list[int] = []
    first, turn = (number - 1) * wanted, 0
    while len(ordered) < first + wanted:
        keys = {place: hashlib.sha256(f"{seed}/{turn}/{place}".encode()).digest() for place in range(count)}
        ordered += sorted(keys, key=keys.__getitem__)
        turn += 1
    return list(dict.fromkeys(ordered[first : first + wanted]))
