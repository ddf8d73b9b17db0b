"""The call families: evaluation runs, predictions and scores as calls with marks under `attributes.weave`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from heddle.auth import Caller
from heddle.errors import NotFound, TooLarge
from heddle.evals.families.common import MAX_DELETED, bounded, inside, opened
from heddle.http import line
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

EVALUATE = "Evaluation.evaluate"
PREDICT_AND_SCORE = "Evaluation.predict_and_score"
SUMMARIZE = "Evaluation.summarize"
MARK = "true"
"""The value of the marks that make a call a run, a prediction or a score."""
_PREDICT_AND_SCORE = frozenset((PREDICT_AND_SCORE, "Evaluation.predictAndScore"))
_MAX_OP_NAME = 128
_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

Shown = Callable[[list[Json]], Awaitable[list[Json]]]


def marks(call: Json) -> Json:
    """`attributes.weave` of a call."""
    found = call["attributes"].get("weave")
    return found if isinstance(found, dict) else {}


def is_marked(call: Json, mark: str) -> bool:
    """True for a call with that mark."""
    return bool(marks(call).get(mark) == MARK)


def is_predict_and_score(call: Json) -> bool:
    """True for the call of one row and trial, of whichever SDK."""
    return refs.operation_name(call["op_name"]) in _PREDICT_AND_SCORE


def text_of(*values: Any) -> str:
    """The first of the values that is a text, empty without one."""
    return next((value for value in values if isinstance(value, str)), "")


def equals(path: str, value: str) -> Json:
    """The condition that a mark has a value."""
    return {"$eq": [{"$getField": f"attributes.weave.{path}"}, {"$literal": value}]}


def among(path: str, values: Sequence[str]) -> Json:
    """The condition that a mark has one of the values."""
    return {"$in": [{"$getField": f"attributes.weave.{path}"}, [{"$literal": value} for value in values]]}


class CallFamily:
    """The calls of one project as the families see them, read for one caller."""

    def __init__(self, records: Records, caller: Caller, project_id: str) -> None:
        self._records = records
        self.caller = inside(caller)
        self.project_id = project_id
        self.project = caller.open(project_id)

    def lock(self, call_id: str) -> asyncio.Lock:
        """Held while something is made of a call's children and written to it, so that two do not mix."""
        return _locks.setdefault((self.project, call_id), asyncio.Lock())

    async def call(self, call_id: str) -> Json | None:
        """One call with its refs in internal form; None for an unknown or deleted one."""
        return next(iter(await self.calls([call_id])), None)

    async def calls(self, call_ids: Sequence[str]) -> list[Json]:
        """Those of some calls that are there."""
        return [call async for slice_ in self.stream(filter={"call_ids": list(call_ids)}) for call in slice_]

    async def named(self, call_ids: Sequence[str]) -> list[Json]:
        """The same for ids that a request names; raises TooLarge for too many."""
        distinct = list(dict.fromkeys(call_ids))
        if len(distinct) > MAX_DELETED:
            raise TooLarge(f"Request too large: {len(distinct)} ids, at most {MAX_DELETED} are taken at once")
        return await self.calls(distinct)

    def children(self, call_id: str, columns: Sequence[str] | None = None) -> AsyncIterator[list[Json]]:
        """The direct children of a call in slices, oldest first."""
        return self.stream(filter={"parent_ids": [call_id]}, columns=columns)

    def stream(self, **request: Any) -> AsyncIterator[list[Json]]:
        """Calls in slices; `request` has the fields of /calls/stream_query."""
        return self._records.read_calls(self.caller, self.project_id, **request)

    async def lines(
        self, shown: Shown, conditions: Sequence[Json], chosen: Json, limit: int | None, offset: int | None
    ) -> AsyncIterator[bytes]:
        """The calls that meet all conditions as JSON lines; `chosen` is a filter of /calls/stream_query."""
        most, skipped = bounded(limit, offset)
        found = self.stream(filter=chosen, query={"$expr": {"$and": list(conditions)}}, limit=most, offset=skipped)

        async def chunks() -> AsyncIterator[bytes]:
            async for slice_ in found:
                yield b"".join(line(record) for record in await shown(slice_))

        return await opened(chunks())

    async def marked_lines(
        self,
        mark: str,
        record: Callable[[Json, str | None], Json],
        run_id: str | None,
        limit: int | None,
        offset: int | None,
    ) -> AsyncIterator[bytes]:
        """The predictions or scores that bear a mark, of one run or of all, as JSON lines."""
        conditions, chosen = [equals(mark, MARK)], Json()
        if run_id is not None:
            conditions.append(equals("evaluation_run_id", run_id))
            chosen = await self.trace_of(run_id)

        async def shown(calls: list[Json]) -> list[Json]:
            return [record(call, run) for call, run in zip(calls, await self.runs_of(calls), strict=True)]

        return await self.lines(shown, conditions, chosen, limit, offset)

    async def parents(self, calls: Sequence[Json]) -> dict[str, Json]:
        """The parents of some calls by their id."""
        wanted = list(dict.fromkeys(call["parent_id"] for call in calls if call["parent_id"]))
        parts = [wanted[first : first + 500] for first in range(0, len(wanted), 500)]
        return {call["id"]: call for part in parts for call in await self.calls(part)}

    async def runs_of(self, calls: Sequence[Json]) -> list[str | None]:
        """The run that each of some predictions or scores belongs to: its mark, else the parent of its row's call."""
        parents = await self.parents([call for call in calls if "evaluation_run_id" not in marks(call)])
        found: list[str | None] = []
        for call in calls:
            run = marks(call).get("evaluation_run_id")
            parent = parents.get(call["parent_id"] or "")
            if run is None and parent is not None and is_predict_and_score(parent):
                run = parent["parent_id"]
            found.append(run if isinstance(run, str) else None)
        return found

    async def trace_of(self, run_id: str) -> Json:
        """The filter that narrows a list to the trace of a run, empty for an unknown run."""
        run = await self.call(run_id)
        return {} if run is None else {"trace_ids": [run["trace_id"]]}

    async def member(self, call_id: str, mark: str, what: str) -> Json:
        """A prediction or score by its id: a marked call, or one that an SDK wrote below the call of a row.

        Raises NotFound.
        """
        found = await self.members([call_id], mark)
        if not found:
            raise NotFound(f"{what} {call_id} not found"[:600])
        return found[0]

    async def members(self, call_ids: Sequence[str], mark: str) -> list[Json]:
        """Those of some calls that are predictions or scores."""
        calls = await self.named(call_ids)
        unmarked = [call for call in calls if not is_marked(call, mark)]
        parents = await self.parents(unmarked)
        others = {"prediction", "score", "evaluation_run"} - {mark}

        def belongs(call: Json) -> bool:
            if is_marked(call, mark):
                return True
            parent = parents.get(call["parent_id"] or "")
            return parent is not None and is_predict_and_score(parent) and not any(is_marked(call, o) for o in others)

        return [call for call in calls if belongs(call)]

    async def op(self, name: str) -> str:
        """The op of a name, made where there is none; its external ref."""
        head, dot, tail = name.rpartition(".")
        short = f"{head[: _MAX_OP_NAME - len(dot + tail)]}{dot}{tail}"
        published = await self._records.placeholder_op(self.caller, self.project_id, short)
        return refs.to_external(published.ref)

    async def write(self, starts: Sequence[Json], ends: Sequence[Json]) -> None:
        """Store halves of calls in one commit."""
        await self._records.write_calls(self.caller, self.project_id, starts, ends)

    async def delete(self, call_ids: Sequence[str]) -> None:
        """Hide calls with all below them."""
        if call_ids:
            await self._records.delete_calls(self.caller, self.project_id, call_ids)


def whole(start: Json, output: Any, ended_at: str) -> tuple[Json, Json]:
    """Start and end of a call."""
    return start, {"id": start["id"], "ended_at": ended_at, "output": output, "summary": {}}


def now() -> str:
    """This instant as text."""
    return times.to_iso(times.now())


def own_summary(call: Json) -> Json:
    """The part of a call's summary that its writer gave."""
    return {key: value for key, value in (call["summary"] or {}).items() if key != "weave"}
