"""Evaluation runs, predictions and scores: calls with marks under `attributes.weave`, and the calls of rows above them.

The call of a row, `Evaluation.predict_and_score`, holds what its prediction and scores make of it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from inspect import Parameter, Signature
from typing import Annotated, Any
from weakref import WeakValueDictionary

from fastapi import Depends, Request

from heddle.auth import Caller, Scope
from heddle.errors import NotFound, TooLarge
from heddle.evals.v2.versions import Entity, Project, check_page, fetch_first, to_external
from heddle.http.routing import Needs, json_lines
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json
from heddle.wire.records import Call, CallEnd, CallStart, Records
from heddle.wire.trials import EVALUATE, TRIAL_OPS

RUN, PREDICTION, SCORE = "evaluation_run", "prediction", "score"
"""The marks that make a call one of these; their value is MARK."""
MARK = "true"
MAX_DELETED = 1000
"""How many runs, predictions or scores are deleted at once, as /calls/delete allows."""
_MAX_OP_NAME = 128
_ATTEMPTS = 20
_locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()


def is_marked(call: Call, mark: str) -> bool:
    """True for a call with that mark."""
    return bool(call.marks.get(mark) == MARK)


def mark(name: str, **own: Any) -> Json:
    """The attributes of a call with that mark; marks without a value are left out."""
    return {"weave": {name: MARK, **{key: value for key, value in own.items() if value is not None}}}


def is_run(call: Call) -> bool:
    """True for the root call of an evaluation, of whichever SDK."""
    return is_marked(call, RUN) or call.operation == EVALUATE


def is_row(call: Call) -> bool:
    """True for the call of one row and trial, of whichever SDK."""
    return call.operation in TRIAL_OPS


def first_text(*values: Any) -> str:
    """The first of the values that is a text, empty without one."""
    return next((value for value in values if isinstance(value, str)), "")


def equals(path: str, value: str) -> Json:
    """The condition that a mark has a value."""
    return {"$eq": [{"$getField": f"attributes.weave.{path}"}, {"$literal": value}]}


def is_among(path: str, values: Sequence[str]) -> Json:
    """The condition that a mark has one of the values."""
    return {"$in": [{"$getField": f"attributes.weave.{path}"}, [{"$literal": value} for value in values]]}


def evaluation_of(run: Call) -> str:
    """The ref of the evaluation that a run is of."""
    return first_text(run.marks.get("evaluation"), run.inputs.get("self"), run.inputs.get("this"))


def scorer_of(score: Call) -> str:
    """The ref of the scorer behind a score call; a scorer that is a plain function is the op itself."""
    return first_text(score.marks.get("scorer"), score.inputs.get("self"), op_ref(score))


def op_ref(call: Call) -> str | None:
    """The ref of the op of a call; None where its op is only a name."""
    return call.op_name if call.op_name.startswith(refs.INTERNAL) else None


def scorer_name(ref: str) -> str:
    """The name under which the scores of a scorer are kept: that of its object."""
    return refs.parse(ref).name if ref.startswith(refs.INTERNAL) else ref


def scores_of(output: Any) -> Json:
    """The scores in the output of the call of a row."""
    scores = output.get("scores") if isinstance(output, dict) else None
    return scores if isinstance(scores, dict) else {}


class ProjectCalls:
    """The calls of one project, read and written for one caller.

    A write may read what it builds on, of which nothing is answered: keys that only write may do so.
    """

    def __init__(self, records: Records, caller: Caller, project_id: str) -> None:
        self._records = records
        self.caller = caller.with_scope(Scope.READ)
        self.project_id = project_id
        self.project = caller.open(project_id)

    def lock(self, call_id: str) -> asyncio.Lock:
        """Held while something is made of a call's children and written to it, so that two do not mix."""
        return _locks.setdefault((self.project, call_id), asyncio.Lock())

    async def find(self, call_id: str) -> Call | None:
        """One call with its refs in internal form; None for an unknown or deleted one."""
        return next(iter(await self.read([call_id])), None)

    async def find_run(self, run_id: str) -> Call:
        """The call of a run; raises NotFound."""
        call = await self.find(run_id)
        if call is None or not is_run(call):
            raise NotFound(f"Evaluation run {run_id} not found"[:600])
        return call

    async def find_row(self, prediction: Call) -> Call | None:
        """The call of the row that a prediction answers; None for a prediction that stands alone."""
        parent = await self.find(prediction.parent_id) if prediction.parent_id else None
        return parent if parent is not None and is_row(parent) else None

    async def read(self, call_ids: Sequence[str]) -> list[Call]:
        """Those of some calls that are there."""
        return [call async for slice_ in self.stream(filter={"call_ids": list(call_ids)}) for call in slice_]

    async def read_named(self, call_ids: Sequence[str]) -> list[Call]:
        """The same for ids that a request names; raises TooLarge for too many."""
        distinct = list(dict.fromkeys(call_ids))
        if len(distinct) > MAX_DELETED:
            raise TooLarge(f"Request too large: {len(distinct)} ids, at most {MAX_DELETED} are taken at once")
        return await self.read(distinct)

    def stream(self, **request: Any) -> AsyncIterator[list[Call]]:
        """Calls in slices; `request` has the fields of /calls/stream_query."""
        return self._records.read_calls(self.caller, self.project_id, **request)

    async def lines(
        self,
        record: Callable[[list[Call]], Awaitable[list[Json]]],
        conditions: Sequence[Json],
        chosen: Json,
        limit: int | None,
        offset: int | None,
    ) -> AsyncIterator[bytes]:
        """The calls that meet all conditions as JSON lines; `chosen` is a filter of /calls/stream_query."""
        most, skipped = check_page(limit, offset)
        found = self.stream(filter=chosen, query={"$expr": {"$and": list(conditions)}}, limit=most, offset=skipped)

        async def chunks() -> AsyncIterator[bytes]:
            async for slice_ in found:
                yield json_lines(await record(slice_))

        return await fetch_first(chunks())

    async def marked_lines(
        self,
        name: str,
        record: Callable[[Call, str | None], Json],
        run_id: str | None,
        limit: int | None,
        offset: int | None,
    ) -> AsyncIterator[bytes]:
        """The predictions or scores that bear a mark, of one run or of all, as JSON lines."""
        conditions, chosen = [equals(name, MARK)], Json()
        if run_id is not None:
            conditions.append(equals("evaluation_run_id", run_id))
            # Only the trace of the run is looked through, where there is one.
            run = await self.find(run_id)
            chosen = {} if run is None else {"trace_ids": [run.trace_id]}

        async def records(calls: list[Call]) -> list[Json]:
            return [record(call, run) for call, run in zip(calls, await self.runs_of(calls), strict=True)]

        return await self.lines(records, conditions, chosen, limit, offset)

    async def read_parents(self, calls: Sequence[Call]) -> dict[str, Call]:
        """The parents of some calls by their id."""
        wanted = list(dict.fromkeys(call.parent_id for call in calls if call.parent_id))
        parts = [wanted[first : first + 500] for first in range(0, len(wanted), 500)]
        return {call.id: call for part in parts for call in await self.read(part)}

    async def runs_of(self, calls: Sequence[Call]) -> list[str | None]:
        """The run that each of some predictions or scores belongs to: its mark, else the parent of its row's call."""
        parents = await self.read_parents([call for call in calls if "evaluation_run_id" not in call.marks])
        found: list[str | None] = []
        for call in calls:
            run = call.marks.get("evaluation_run_id")
            parent = parents.get(call.parent_id or "")
            if run is None and parent is not None and is_row(parent):
                run = parent.parent_id
            found.append(run if isinstance(run, str) else None)
        return found

    async def read_marked(self, call_ids: Sequence[str], name: str) -> list[Call]:
        """Those of some calls that are predictions or scores: with that mark, or by an SDK below the call of a row."""
        calls = await self.read_named(call_ids)
        parents = await self.read_parents([call for call in calls if not is_marked(call, name)])

        def belongs(call: Call) -> bool:
            if is_marked(call, name):
                return True
            parent = parents.get(call.parent_id or "")
            is_other = any(is_marked(call, other) for other in {PREDICTION, SCORE, RUN} - {name})
            return parent is not None and is_row(parent) and not is_other

        return [call for call in calls if belongs(call)]

    async def find_marked(self, call_id: str, name: str) -> Call:
        """A prediction or score by its id; raises NotFound."""
        found = await self.read_marked([call_id], name)
        if not found:
            raise NotFound(f"{name.capitalize()} {call_id} not found"[:600])
        return found[0]

    async def op(self, name: str) -> str:
        """The op of a name, made where there is none; its external ref."""
        head, dot, tail = name.rpartition(".")
        short = f"{head[: _MAX_OP_NAME - len(dot + tail)]}{dot}{tail}"
        published = await self._records.placeholder_op(self.caller, self.project_id, short)
        return refs.to_external(published.ref)

    async def write(self, starts: Sequence[CallStart], ends: Sequence[CallEnd]) -> None:
        """Store halves of calls in one commit."""
        await self._records.write_calls(self.caller, self.project_id, starts, ends)

    async def delete(self, call_ids: Sequence[str]) -> None:
        """Hide calls with all below them."""
        if call_ids:
            await self._records.delete_calls(self.caller, self.project_id, call_ids)

    async def end_row(self, row: Call, prediction: Call, added: tuple[str, Any] | None = None) -> CallEnd:
        """The end of a row's call as its prediction and scores now are, a score that is being `added` included.

        An end that is there already keeps its time, and one that an SDK wrote all else that it says.
        """
        scores = await self._scores(row, added)
        if _is_foreign(row):
            return _end(row, {**row.output, "scores": {**scores_of(row.output), **scores}})
        began, ended = times.parse(prediction.started_at), times.parse(prediction.ended_at or "")
        latency = None if began is None or ended is None else {"mean": (ended - began) / times.SECOND}
        return _end(row, {"output": prediction.output, "scores": scores, "model_latency": latency})

    async def write_row(
        self, starts: Sequence[CallStart], ends: Sequence[CallEnd], row: Call, prediction: Call, *added: tuple[str, Any]
    ) -> None:
        """Store halves of calls with the end of their row, and that again where another server has changed it, too."""
        end = await self.end_row(row, prediction, *added)
        await self.write(starts, [*ends, end])
        for _ in range(_ATTEMPTS):
            again = await self.end_row(row, prediction, *added)
            if again.output == end.output:
                return
            end = again
            await self.write([], [end])

    async def refresh_row(self, row_id: str, removed: Collection[str]) -> None:
        """Write the end of a row's call anew when it has ended, for its scores are other ones now.

        `removed` are the names of scores that were deleted, for what an SDK wrote keeps all others.
        """
        async with self.lock(row_id):
            row = await self.find(row_id)
            if row is None or row.ended_at is None or not is_row(row):
                return
            if _is_foreign(row):
                left = {name: value for name, value in scores_of(row.output).items() if name not in removed}
                scores = {**left, **await self._scores(row, None)}
                await self.write([], [_end(row, {**row.output, "scores": scores})])
                return
            prediction = await self.find(first_text(row.marks.get("predict_call_id")))
            if prediction is not None:
                await self.write_row([], [], row, prediction)

    async def _scores(self, row: Call, added: tuple[str, Any] | None) -> Json:
        """The scores of a row by scorer; of two by the same scorer the later one counts."""
        found: list[tuple[str, Any]] = []
        async for slice_ in self.stream(filter={"parent_ids": [row.id]}, columns=["attributes", "inputs", "output"]):
            found += [(scorer_name(scorer_of(call)), call.output) for call in slice_ if is_marked(call, SCORE)]
        if added is not None:
            found.append(added)
        return {name: value for name, value in found if value is not None}


def _is_foreign(row: Call) -> bool:
    """True for the call of a row that an SDK wrote and ended with an output of its own."""
    return isinstance(row.output, dict) and "predict_call_id" not in row.marks


def _end(row: Call, output: Json) -> CallEnd:
    return CallEnd(
        id=row.id,
        ended_at=row.end_instant(),
        output=to_external(output),
        summary=row.own_summary,
        exception=row.exception,
    )


class _CallsFor(Needs):
    """Lets only callers with one scope pass, and hands them the calls of the project in the path."""

    # What the description names; without the framework the request is all that there is.
    __signature__ = Signature(
        [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind)
            for name, kind in (("request", Request), ("entity", Entity), ("project", Project))
        ]
    )

    async def __call__(self, request: Request, **_: str) -> ProjectCalls:  # type: ignore[override]
        """The calls; raises Forbidden."""
        caller, path = await super().__call__(request), request.path_params
        return ProjectCalls(request.app.state.services.records, caller, f"{path['entity']}/{path['project']}")


ReadCalls = Annotated[ProjectCalls, Depends(_CallsFor(Scope.READ))]
WriteCalls = Annotated[ProjectCalls, Depends(_CallsFor(Scope.WRITE))]
DeleteCalls = Annotated[ProjectCalls, Depends(_CallsFor(Scope.DELETE))]
