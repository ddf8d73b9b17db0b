"""The answers of an earlier run, of whichever SDK, as cases of a new one."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heddle.auth import Caller
from heddle.errors import HeddleError
from heddle.evals.model import CLASS_NAME
from heddle.evals.objects import is_ref
from heddle.evals.running.calls import EVALUATE
from heddle.evals.running.prediction import Answered, Case
from heddle.wire import refs
from heddle.wire.jsontypes import Json
from heddle.wire.records import Records

_ROW_OPS = ("Evaluation.predict_and_score", "Evaluation.predictAndScore")
_COLUMNS = ["id", "op_name", "inputs", "output", "exception", "ended_at"]


@dataclass(frozen=True, slots=True)
class Source:
    """A run that was stored."""

    id: str
    evaluation: str
    model: str
    ended: bool

    @property
    def predict_op(self) -> str:
        """The name of the op that its answers are shown as."""
        return f"{CLASS_NAME}.predict" if is_ref(self.model) else "Model.predict"


async def read_source(records: Records, caller: Caller, project: str, run_id: str) -> Source | None:
    """The run with an id; None when there is none, or the call is no evaluation."""
    async for calls in records.read_calls(caller, project, filter={"call_ids": [run_id]}, columns=_COLUMNS):
        for call in calls:
            if EVALUATE not in refs.operation_name(call["op_name"]):
                return None
            inputs = call["inputs"]
            evaluation, model = inputs.get("self") or inputs.get("this"), inputs.get("model")
            return Source(run_id, _text(evaluation), _text(model), call.get("ended_at") is not None)
    return None


async def cases_of(records: Records, caller: Caller, project: str, source: Source) -> AsyncIterator[Case]:
    """The rows of a run with their answers, in the order of their calls."""
    children = records.read_calls(caller, project, filter={"parent_ids": [source.id]}, columns=_COLUMNS)
    async for calls in children:
        rows = [call for call in calls if refs.operation_name(call["op_name"]) in _ROW_OPS and call.get("ended_at")]
        values = await resolved(records, caller, [call["inputs"].get("example") for call in rows])
        for call, value in zip(rows, values, strict=True):
            yield Case(call["id"], call["inputs"].get("example"), _row(value), 0, _answered(call))


async def resolved(records: Records, caller: Caller, values: Sequence[Any]) -> list[Any]:
    """The values, with what refs among them point to; a ref that leads nowhere stays as it is."""
    wanted = list(dict.fromkeys(value for value in values if is_ref(value)))
    try:
        known = dict(zip(wanted, await records.read_refs(caller, wanted), strict=True)) if wanted else {}
    except HeddleError:
        known = {ref: await _one(records, caller, ref) for ref in wanted}
    return [_put(value, known) for value in values]


async def _one(records: Records, caller: Caller, ref: str) -> Any:
    try:
        return (await records.read_refs(caller, [ref]))[0]
    except HeddleError:
        return ref


def _put(value: Any, known: Mapping[str, Any]) -> Any:
    return known[value] if is_ref(value) else value


def _row(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _answered(call: Json) -> Answered:
    """The answer of a row as the SDKs store it: `output`, or `model_output` (TypeScript, old versions)."""
    output = call["output"] if isinstance(call["output"], dict) else {}
    said = output["output"] if "output" in output else output.get("model_output")
    latency = output.get("model_latency")
    latency = latency.get("mean") if isinstance(latency, dict) else latency
    is_number = isinstance(latency, int | float) and not isinstance(latency, bool) and 0 <= latency < 10**7
    problem = None
    if said is None:
        problem = str(call.get("exception") or "The run that is scored again has no answer for this row")
    return Answered(said, float(latency) if is_number and latency is not None else 0.0, problem)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
