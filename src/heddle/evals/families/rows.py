"""The call of one row of a run, `Evaluation.predict_and_score`: what its prediction and scores make of it."""

from collections.abc import Collection
from typing import Any

from heddle.evals.families.common import outward
from heddle.evals.families.records import (
    MARK,
    CallFamily,
    is_marked,
    is_predict_and_score,
    marks,
    now,
    own_summary,
    text_of,
)
from heddle.wire import refs, times
from heddle.wire.jsontypes import Json

SCORE = "score"
PREDICTION = "prediction"


async def row_of(family: CallFamily, prediction: Json) -> Json | None:
    """The call of the row that a prediction answers; None for a prediction that stands alone."""
    parent = await family.call(prediction["parent_id"]) if prediction["parent_id"] else None
    return parent if parent is not None and is_predict_and_score(parent) else None


async def ending(family: CallFamily, row: Json, prediction: Json, added: Json | None = None) -> Json:
    """The end of a row's call as its prediction and scores now are, a score that is being `added` included.

    An end that is there already keeps its time, and one that an SDK wrote all else that it says.
    """
    scores = await _scores(family, row, added)
    if _is_foreign(row):
        return _end(row, {**row["output"], "scores": {**_scores_of(row), **scores}})
    return _end(row, {"output": prediction["output"], "scores": scores, "model_latency": _latency(prediction)})


async def refresh(family: CallFamily, row_id: str, removed: Collection[str]) -> None:
    """Write the end of a row's call anew when it has ended, for its scores are other ones now.

    `removed` are the names of scores that were deleted, for what an SDK wrote keeps all others.
    """
    async with family.lock(row_id):
        row = await family.call(row_id)
        if row is None or row["ended_at"] is None or not is_predict_and_score(row):
            return
        if _is_foreign(row):
            left = {name: value for name, value in _scores_of(row).items() if name not in removed}
            scores = {**left, **await _scores(family, row, None)}
            await family.write([], [_end(row, {**row["output"], "scores": scores})])
            return
        prediction = await family.call(text_of(marks(row).get("predict_call_id")))
        if prediction is not None:
            await family.write([], [await ending(family, row, prediction)])


def _is_foreign(row: Json) -> bool:
    """True for the call of a row that an SDK wrote and ended with an output of its own."""
    return isinstance(row["output"], dict) and "predict_call_id" not in marks(row)


def _scores_of(row: Json) -> Json:
    scores = row["output"].get("scores")
    return scores if isinstance(scores, dict) else {}


def _end(row: Json, output: Json) -> Json:
    return {
        "id": row["id"],
        "ended_at": row["ended_at"] or now(),
        "output": outward(output),
        "summary": own_summary(row),
        "exception": row["exception"],
    }


def scorer_of(score: Json) -> str:
    """The ref of the scorer behind a score call; a scorer that is a plain function is the op itself."""
    return text_of(marks(score).get("scorer"), score["inputs"].get("self"), op_ref(score))


def op_ref(call: Json) -> str | None:
    """The ref of the op of a call; None where its op is only a name."""
    op_name = call.get("op_name")
    return op_name if isinstance(op_name, str) and op_name.startswith(refs.INTERNAL) else None


def scorer_name(ref: str) -> str:
    """The name under which the scores of a scorer are kept: that of its object."""
    return refs.parse(ref).name if ref.startswith(refs.INTERNAL) else ref


async def _scores(family: CallFamily, row: Json, added: Json | None) -> Json:
    """The scores of a row by scorer; of two by the same scorer the later one counts."""
    columns = ["attributes", "inputs", "output"]
    found: list[tuple[str, Any]] = []
    async for slice_ in family.children(row["id"], columns):
        scores = [call for call in slice_ if is_marked(call, SCORE)]
        found += [(scorer_name(scorer_of(call)), call["output"]) for call in scores]
    if added is not None:
        found.append((added["name"], added["value"]))
    return {name: value for name, value in found if value is not None}


def _latency(prediction: Json) -> Json | None:
    began, ended = times.parse(prediction["started_at"]), times.parse(prediction["ended_at"] or "")
    return None if began is None or ended is None else {"mean": (ended - began) / times.SECOND}


def marked(mark: str, **own: Any) -> Json:
    """The attributes of a call with that mark; marks without a value are left out."""
    return {"weave": {mark: MARK, **{key: value for key, value in own.items() if value is not None}}}
