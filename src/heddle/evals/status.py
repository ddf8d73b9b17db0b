"""Where an evaluation stands, read from its calls, whoever runs it."""

import orjson

from heddle.auth import Caller
from heddle.errors import HeddleError, InvalidRequest
from heddle.evals.dataset import read_dataset
from heddle.evals.objects import ObjectReader
from heddle.evals.running.calls import EVALUATE
from heddle.store.base import Store
from heddle.wire import refs
from heddle.wire.calls import CallsQuery, Filter
from heddle.wire.jsontypes import Json
from heddle.wire.query import parse_query
from heddle.wire.records import Records

_IS_RUNNING: Json = {"$eq": [{"$getField": "summary.weave.status"}, {"$literal": "running"}]}
_ENDED = parse_query({"$expr": {"$not": [_IS_RUNNING]}})
_COLUMNS = ["id", "op_name", "inputs", "output", "exception", "ended_at"]


async def status_of(store: Store, records: Records, caller: Caller, project_id: str, call_id: str) -> Json:
    """The status of a call; raises InvalidRequest for one that is no evaluation."""
    found = records.read_calls(caller, project_id, filter={"call_ids": [call_id]}, columns=_COLUMNS)
    call = next(iter([call async for calls in found for call in calls]), None)
    if call is None:
        return {"code": "not_found"}
    if EVALUATE not in refs.operation_name(call["op_name"]):
        raise InvalidRequest("Call is not an evaluation")
    if call.get("exception"):
        return {"code": "failed", "error": _message(call["exception"])}
    if call.get("ended_at") is not None:
        output = call["output"]
        return {"code": "complete", "output": output if isinstance(output, dict) else {"output": output}}
    done = await _ended_children(store, caller.open(project_id), call_id)
    rows = await _rows(ObjectReader(store, caller), call["inputs"])
    return {"code": "running", "completed_rows": done, "total_rows": max(rows, done)}


async def _ended_children(store: Store, project: str, call_id: str) -> int:
    return await store.calls.count(CallsQuery(project, Filter(parent_ids=(call_id,)), query=_ENDED))


async def _rows(reader: ObjectReader, inputs: Json) -> int:
    """The rows of the evaluation's dataset; 0 when they cannot be counted."""
    ref = inputs.get("self") or inputs.get("this")
    try:
        found = await reader.read(str(ref), "The evaluation")
        return (await read_dataset(reader, found.value.get("dataset"), found.target.name)).count
    except HeddleError:
        return 0


def _message(exception: str) -> str:
    """The text of an exception, of the JSON that SDKs write, or of a plain one."""
    try:
        value = orjson.loads(exception)
    except orjson.JSONDecodeError:
        return exception
    said = value.get("message") if isinstance(value, dict) else None
    return said if isinstance(said, str) and said else exception
