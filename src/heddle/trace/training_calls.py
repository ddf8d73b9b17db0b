"""The trace side of training: calls to learn from, and training jobs shown as calls."""

import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson

from heddle.auth import Caller, Scope
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.jobs import SUCCEEDED, JobRow
from heddle.store.control.training import ModelRow
from heddle.trace.calls.models import CallsFilter, CallsQueryReq, SortBy
from heddle.trace.calls.read import CallReader, retention_of
from heddle.trace.inference_calls import InferenceCalls
from heddle.wire import refs, times
from heddle.wire.inference import InferenceCall
from heddle.wire.jsontypes import Json
from heddle.wire.query import parse_query
from heddle.wire.training import CallSelection

OP_NAME = "heddle.training_job"
_EXPANDED = ("inputs.messages", "inputs.tools", "output")
_NAMES = uuid.UUID("0d2ac7a5-53a5-5f0c-9d4e-3f6b0a1e7c11")
"""What the ids of the jobs' calls are derived under."""


class TrainingCalls:
    """A CallSource over the stored calls, and a JobObserver that stores each job as one call of its project."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store

    async def read(self, caller: Caller, selection: CallSelection) -> AsyncIterator[bytes]:
        """The selected calls with their feedback as JSON lines, refs in messages followed; raises HeddleError."""
        caller.require(Scope.READ)
        project = caller.open(selection.project_id)
        request = CallsQueryReq(
            project_id=selection.project_id,
            filter=CallsFilter(**_converted(selection.filter, caller)),
            query=parse_query(_converted(selection.query, caller)) if selection.query is not None else None,
            sort_by=None if selection.sort_by is None else [SortBy.model_validate(term) for term in selection.sort_by],
            limit=selection.limit,
            columns=["id", "trace_id"] if selection.ids_only else None,
            include_feedback=not selection.ids_only,
            expand_columns=None if selection.ids_only else list(_EXPANDED),
        )
        reader = CallReader(self._store, caller, request, await retention_of(self._store, project))
        async for lines in reader.stream():
            yield lines

    async def ended(self, model: ModelRow, job: JobRow) -> None:
        """Store the job as a call; the same job again is the same call. Raises HeddleError when it cannot be stored."""
        await InferenceCalls(self._settings, self._store).store(_call(model, job))


def call_id_of(job_id: str) -> str:
    """The id of the call that shows a training job."""
    return str(uuid.uuid5(_NAMES, job_id))


def _converted(value: Mapping[str, Any] | None, caller: Caller) -> Any:
    """A copy with its refs in internal form."""
    return refs.convert_in(orjson.loads(orjson.dumps(value or {})), caller.may_read)


def _call(model: ModelRow, job: JobRow) -> InferenceCall:
    name = f"{model.entity}/{model.project}/{model.name}"
    succeeded = job.state == SUCCEEDED
    output: Json = {"state": job.state, "step": job.step, "metrics": job.metrics or {}, "error": job.error}
    if succeeded and job.step is not None:
        output["policy"] = f"wandb-artifact:///{name}:step{job.step}"
    inputs: Json = {"model": f"wandb-artifact:///{name}", "base_model": model.base_model, "lora": model.lora}
    inputs |= {"kind": job.kind, "parent_step": job.parent_step}
    return InferenceCall(
        caller=Caller(job.created_by, frozenset((Scope.READ, Scope.WRITE))),
        project=model.project_id,
        op_name=OP_NAME,
        id=call_id_of(job.id),
        trace_id=call_id_of(job.id),
        started_at=times.to_datetime(job.started_at or job.created_at),
        ended_at=times.to_datetime(job.ended_at or times.now()),
        inputs={**inputs, **{key: value for key, value in job.config.items() if value is not None}},
        output=output,
        exception=None if succeeded else (job.error or job.state),
        attributes={"kind": "training", "job_id": job.id, "model_id": model.id},
        display_name=f"train {model.name}" + ("" if job.step is None else f" to step {job.step}"),
    )
