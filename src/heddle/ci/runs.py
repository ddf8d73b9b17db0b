"""Finding what a command names, running an evaluation on the server, and waiting for its end."""

import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from heddle.errors import HeddleError, NotFound
from heddle.remote import Project, Refused, Unreachable
from heddle.wire.jsontypes import Json
from heddle.wire.trials import trials_of

EXTERNAL = "weave:///"
EVALUATION, MODEL = "Evaluation", "LLMStructuredCompletionModel"
_REF = re.compile(r"weave:///(?P<project>[^/]+/[^/]+)/object/(?P<name>[^/:]+):(?P<version>[^/:]+)")
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{16}")
_UNSAFE = re.compile(r"[^\w.-]+")
_PUBLISHED = "served-"
"""What the names of the objects begin with that stand for served models."""
_PATIENCE_SECONDS = 60.0
"""How long a run may be unknown, or the server away, before that is a failure."""
_FASTEST_LOOK, _SLOWEST_LOOK = 0.1, 2.0
Progress = Callable[[int, int], None]
"""Hears how many rows of how many are done."""


class RunFailed(HeddleError):
    """An evaluation run ended without scores."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object version."""

    name: str
    ref: str
    value: Json


def read_project(ref: str) -> str | None:
    """The `entity/project` of a full ref, None for anything else."""
    found = _REF.fullmatch(ref)
    return found["project"] if found else None


def find_object(project: Project, named: str) -> StoredObject | None:
    """The object that a name, `name:version` or a full ref means; None when there is none."""
    found = _REF.fullmatch(named)
    owner = found["project"] if found else project.id
    name, _, version = (found["name"], "", found["version"]) if found else named.partition(":")
    if not found and "/" in named:
        return None
    body = {"project_id": owner, "object_id": name, "digest": version or "latest"}
    try:
        obj = project.remote.post("/obj/read", body)["obj"]
    except Refused as refusal:
        if refusal.answered in (400, 404, 422) and not found:
            return None
        raise
    value = obj["val"] if isinstance(obj["val"], dict) else {}
    return StoredObject(name, f"{EXTERNAL}{owner}/object/{name}:{obj['digest']}", value)


def find_evaluation(project: Project, named: str) -> StoredObject:
    """The evaluation of that name; raises NotFound for none, HeddleError for another kind of object."""
    found = find_object(project, named)
    if found is None:
        raise NotFound(f"evaluation {named!r} not found in {project.id}")
    if EVALUATION not in (found.value.get("_class_name"), found.value.get("_type")):
        raise HeddleError(f"{found.ref} is not an Evaluation but {found.value.get('_class_name') or 'another object'}")
    return found


def find_model(project: Project, named: str, parameters: Json) -> str:
    """The ref of a stored model; a model that the server serves is published as one first.

    `parameters` (temperature, max_tokens) are those of such a published model, and HeddleError is raised where they
    are given for a stored one. Raises NotFound for neither.
    """
    found = find_object(project, named)
    if found is not None and parameters:
        raise HeddleError(f"{found.ref} has its own parameters; {', '.join(parameters)} cannot be set for it")
    if found is not None:
        return found.ref
    if "/" not in named and not _serves(project, named):
        raise NotFound(
            f"{named!r} is neither an object of {project.id} nor a model that {project.remote.server} serves"
        )
    # Under a name of its own: `named` must go on meaning the model that is served.
    name = (_PUBLISHED + _UNSAFE.sub("_", named.rpartition("///")[2]).strip("_"))[:128]
    settings = {"response_format": "text", "temperature": 0.0, **parameters}
    value = {"name": name, "llm_model_id": named, "default_params": settings}
    made = project.remote.post(
        "/obj/create",
        {"obj": {"project_id": project.id, "object_id": name, "val": value, "builtin_object_class": MODEL}},
    )
    return f"{EXTERNAL}{project.id}/object/{name}:{made['digest']}"


def _serves(project: Project, named: str) -> bool:
    served = [item["id"] for item in project.remote.get("/v1/models")["data"]]
    return named.partition("@")[0].partition(":")[0] in served or named in served


def list_unscored(project: Project, run_id: str) -> list[str]:
    """A sentence for each scorer that gave answers of a run no score."""
    unscored = project.post("/evaluations/status", call_id=run_id)["status"].get("unscored") or {}
    return [
        f"{told['answers']} answers of run {run_id} have no score of {scorer}: {told['reason']}"
        for scorer, told in unscored.items()
    ]


def find_run(project: Project, named: str) -> str | None:
    """The id of a stored run; None when `named` is not the id of a call. Raises NotFound for one that is none."""
    if not _ID.fullmatch(named):
        return None
    check_run(project, named)
    return named


def check_run(project: Project, call_id: str) -> None:
    """Raise NotFound for an unknown call, HeddleError for one that is no evaluation run or has failed."""
    call = project.post("/call/read", id=call_id)["call"]
    if call is None:
        raise NotFound(f"call {call_id} not found in {project.id}")
    if "Evaluation.evaluate" not in call["op_name"]:
        raise HeddleError(f"the call {call_id} is not an evaluation run but {call['op_name']}")


def trials_per_row(project: Project, run_id: str) -> int:
    """How often a run answered each row of its data, as its evaluation says."""
    call = project.post("/call/read", id=run_id)["call"] or {}
    ref = call.get("inputs", {}).get("self") or call.get("inputs", {}).get("this")
    found = find_object(project, ref) if isinstance(ref, str) and _REF.fullmatch(ref) else None
    return trials_of(found.value if found else None)


def read_failure(project: Project, run_id: str) -> str:
    """What the first answer of a run failed with."""
    failed = {"$expr": {"$eq": [{"$getField": "summary.weave.status"}, {"$literal": "error"}]}}
    chosen = {"filter": {"parent_ids": [run_id]}, "query": failed, "columns": ["exception"], "limit": 1}
    found = project.lines("/calls/stream_query", **chosen)
    return str(found[0]["exception"]) if found else "no reason was stored"


def list_runs(project: Project, ref: str | None = None, status: str | None = None, limit: int = 20) -> list[Json]:
    """The newest runs of an evaluation (None: of any), as calls without inputs' refs resolved."""
    names = ["Evaluation.evaluate", f"{EXTERNAL}{project.id}/op/Evaluation.evaluate:*"]
    chosen: Json = {"filter": {"op_names": names, "input_refs": [ref] if ref else None}}
    if status:
        chosen["query"] = {"$expr": {"$eq": [{"$getField": "summary.weave.status"}, {"$literal": status}]}}
    newest = [{"field": "started_at", "direction": "desc"}]
    return project.lines("/calls/stream_query", **chosen, sort_by=newest, limit=limit)


def run_evaluation(
    project: Project, evaluation_ref: str, model_ref: str, progress: Progress, seconds: float | None = None
) -> str:
    """Run an evaluation to its end and return the id of its call; Ctrl-C or SIGTERM cancels it.

    Raises RunFailed, Unreachable.
    """
    body = {"evaluation_ref": evaluation_ref, "model_ref": model_ref}
    call_id = ""
    try:
        with _postpone_interrupt():
            call_id = str(project.post("/evaluations/evaluate_model", **body)["call_id"])
        with _record_interrupt() as pressed:
            wait_for_run(project, call_id, progress, seconds, pressed)
    except KeyboardInterrupt:
        if call_id:
            project.post("/evaluations/cancel", call_id=call_id)
        raise
    return call_id


@contextmanager
def _on_interrupt(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Calls a handler at Ctrl-C, and at the signal with which CI systems end a job that was cancelled."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _postpone_interrupt() -> Iterator[None]:
    """Lets an interrupt wait until the end, where what was begun is known and can be cancelled."""
    pressed = list[int]()
    with _on_interrupt(lambda number, _frame: pressed.append(number)):
        yield
    if pressed:
        raise KeyboardInterrupt


@contextmanager
def _record_interrupt() -> Iterator[list[int]]:
    """KeyboardInterrupt at once, and a list of signals: Python drops what is raised while it collects garbage."""
    pressed = list[int]()

    def interrupt(number: int, _frame: object) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    with _on_interrupt(interrupt):
        yield pressed


def wait_for_run(
    project: Project, call_id: str, progress: Progress, seconds: float | None = None, pressed: Sequence[int] = ()
) -> None:
    """Wait for the end of a run; a server that is away for a while is waited for. Ends once something is `pressed`."""
    deadline = None if seconds is None else time.monotonic() + seconds
    heard, pause = time.monotonic(), _FASTEST_LOOK
    while True:
        if pressed:
            raise KeyboardInterrupt
        status = _status(project, call_id)
        if status is not None:
            heard = time.monotonic()
            if _has_ended(status, call_id, progress):
                return
        elif time.monotonic() - heard > _PATIENCE_SECONDS:
            raise RunFailed(f"the status of run {call_id} could not be read for {_PATIENCE_SECONDS:g} s")
        if deadline is not None and time.monotonic() > deadline:
            raise RunFailed(f"run {call_id} did not finish within {seconds:g} s; it is still running")
        time.sleep(pause)
        pause = min(pause * 1.3, _SLOWEST_LOOK)


def _status(project: Project, call_id: str) -> Any:
    """The status of a run; None while the server does not know it, or is away."""
    try:
        status = project.post("/evaluations/status", call_id=call_id)["status"]
    except Unreachable:
        return None
    return None if status["code"] == "not_found" else status


def _has_ended(status: Json, call_id: str, progress: Progress) -> bool:
    if status["code"] == "failed":
        raise RunFailed(f"run {call_id} failed: {status.get('error') or 'unknown reason'}")
    if status["code"] == "running":
        progress(int(status.get("completed_rows") or 0), int(status.get("total_rows") or 0))
    return bool(status["code"] == "complete")
