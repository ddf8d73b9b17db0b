"""Takes bodies with trajectories in: checked whole, and kept compressed, without holding up the server.

A small body is checked in a thread. A large one is written to the disk as it comes and checked by a process of its
own: reading it as JSON would stop the event loop for seconds, and fill this process's memory for good.
`python -m heddle.training.intake` is that process: it reads `body` in a folder and writes `payload` beside it.
"""

import asyncio
import gc
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter

from heddle.errors import HeddleError, InvalidRequest, TooLarge, Unavailable, ValidationFailed
from heddle.http.routing import validate
from heddle.ipc.bounded import BoundedProcesses, TooMuchWork, answer_jobs
from heddle.store.blobs.base import Blobs
from heddle.store.data_folder import disk_failures
from heddle.training import files
from heddle.training.calls import read_exchanges
from heddle.training.schemas.requests import CreateJob, CreateJobFromSource, is_known
from heddle.training.schemas.trajectories import LogRequest, log_metrics
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json

GROUPS, SETTINGS = "trajectory_groups", "experimental_config"
LARGE = 2 << 20
"""Bytes of a body above which a process of its own checks it; to check this many stops the others for about 0.1 s."""
LARGE_NODES = 50_000
"""The same for JSON values."""
MAX_NODES = 20_000_000
"""JSON values of the largest body that a process of 1 or 2 GiB can check."""
BODY_FILE, PAYLOAD_FILE = "body", "payload"
# One at a time, and none is kept: what the largest body takes of memory is given back.
processes = BoundedProcesses("heddle.training.intake", cpu_seconds=0, wall_seconds=3600, at_once=1, most_idle=0)


Redact = Callable[[Json, list[Any]], Awaitable[list[Any]]]
"""From the other fields of a body, and its trajectory groups, to those that are kept."""
MOST_REDACTED = 64 << 20
"""Bytes of a body that is held in memory, so that nothing of it reaches the disk before it is redacted."""


class TooManyValues(InvalidRequest):
    """A body of more than MAX_NODES JSON values."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A body that is right: everything but its trajectories, and the key of the blob with those."""

    head: Json
    groups: int
    trajectories: int
    metrics: dict[str, float]
    """For a log: what `log_metrics` says."""
    key: str | None = None
    """None where the body has no trajectories (a source)."""


class Intake:
    """One per server; `folder` is where large bodies lie while they are checked."""

    def __init__(self, blobs: Blobs, folder: Path, count_refusal: Callable[[str], None], large: int = LARGE) -> None:
        """`count_refusal` is told the limit that a body was over."""
        self._blobs = blobs
        self._folder = folder
        self._count_refusal = count_refusal
        self._large = large

    async def take(self, kind: str, body: AsyncIterator[bytes], redact: Redact | None = None) -> Taken:
        """Check and keep the body of a `job` or a `log`, without what `redact` takes out.

        Raises ValidationFailed with every place that is wrong, InvalidRequest, TooLarge, StorageFull.
        """
        start = bytearray()
        try:
            if redact is not None:
                return await self._take_redacted(kind, body, redact)
            async for chunk in body:
                start += chunk
                if len(start) > self._large:
                    return await self._take_large(kind, start, body)
            if jsontext.may_exceed(start, LARGE_NODES):
                return await self._take_large(kind, start, body)
            return await asyncio.to_thread(self._take_small, kind, bytes(start))
        except TooManyValues:
            self._count_refusal("max_json_nodes")
            raise

    def _take_small(self, kind: str, body: bytes) -> Taken:
        taken, groups = check(kind, body)
        return taken if groups is None else self._keep(taken, BytesIO(files.write_payload({GROUPS: groups})))

    async def _take_redacted(self, kind: str, body: AsyncIterator[bytes], redact: Redact) -> Taken:
        content = bytearray()
        async for chunk in body:
            content += chunk
            if len(content) > MOST_REDACTED:
                raise TooLarge(f"Request too large: trajectories of more than {MOST_REDACTED} bytes cannot be redacted")
        taken, groups = await asyncio.to_thread(check, kind, bytes(content))
        if groups is None:
            return taken
        groups = await redact(taken.head, groups)
        return await asyncio.to_thread(lambda: self._keep(taken, BytesIO(files.write_payload({GROUPS: groups}))))

    async def _take_large(self, kind: str, start: bytearray, rest: AsyncIterator[bytes]) -> Taken:
        async with self._spool(start, rest) as folder:
            taken = await _check_elsewhere(kind, folder)
            return await asyncio.to_thread(self._keep_file, taken, folder / PAYLOAD_FILE)

    def _keep_file(self, taken: Taken, file: Path) -> Taken:
        if not file.exists():
            return taken
        with file.open("rb") as content:
            return self._keep(taken, content)

    def _keep(self, taken: Taken, content: BinaryIO) -> Taken:
        return replace(taken, key=self._blobs.put(content))

    @asynccontextmanager
    async def _spool(self, start: bytearray, rest: AsyncIterator[bytes]) -> AsyncIterator[Path]:
        """A folder with the body in a file, which is gone afterwards."""
        with disk_failures():
            self._folder.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=".body-", dir=self._folder))
            try:
                with (folder / BODY_FILE).open("wb") as file:
                    await asyncio.to_thread(file.write, start)
                    start.clear()
                    async for chunk in rest:
                        file.write(chunk)
                yield folder
            finally:
                await asyncio.to_thread(shutil.rmtree, folder, True)


def check(kind: str, body: bytes) -> tuple[Taken, list[Any] | None]:
    """Check a body; returns its parts and its trajectory groups as they came. Raises HeddleError."""
    if jsontext.may_exceed(body, MAX_NODES) and jsontext.count_nodes(body) > MAX_NODES:
        raise TooManyValues(f"Request too large: more than {MAX_NODES} JSON values")
    value = jsontext.loads(body, keep_non_finite=True)
    model: Any = LogRequest if kind == "log" else CreateJob
    if kind == "job" and isinstance(value, dict) and value.get("source") is not None:
        model = CreateJobFromSource
    request = validate(TypeAdapter(model), value)
    groups = request.trajectory_groups
    for group in value[GROUPS] if groups is not None else ():
        members = group.get("trajectories") or ()
        group["trajectories"] = [read_exchanges(one) if one.get("exchanges") else one for one in members]
    head = _head(value, set(model.model_fields) - {GROUPS})
    members = sum(len(group.trajectories) for group in groups or ())
    metrics = log_metrics(request.split, groups) if kind == "log" else {}
    return Taken(head, len(groups or ()), members, metrics), None if groups is None else value[GROUPS]


def _head(body: Json, known: set[str]) -> Json:
    """The fields that act; of unknown settings only the names, as what is large must not reach the event loop."""
    head = {name: item for name, item in body.items() if name in known}
    settings = head.get(SETTINGS)
    if isinstance(settings, dict):
        head[SETTINGS] = {name: item if is_known(name) else None for name, item in settings.items()}
    return head


async def _check_elsewhere(kind: str, folder: Path) -> Taken:
    try:
        answer = await processes.answer({"kind": kind, "folder": str(folder)})
    except TooMuchWork:
        raise Unavailable(
            "The body could not be checked: the process that checks it died, possibly out of memory"
        ) from None
    if "taken" in answer:
        return Taken(**answer["taken"])
    if answer["detail"] is not None:
        raise ValidationFailed(answer["detail"])
    raise (TooManyValues if answer["is_too_large"] else InvalidRequest)(answer["reason"])


def _answer(job: Json) -> Json:
    """In the process: check the body in a folder."""
    gc.disable()  # millions of objects, no cycles, and all is over soon
    folder = Path(job["folder"])
    try:
        taken, groups = check(job["kind"], (folder / BODY_FILE).read_bytes())
    except HeddleError as error:
        detail = error.detail if isinstance(error, ValidationFailed) else None
        return {"reason": error.reason, "detail": detail, "is_too_large": isinstance(error, TooManyValues)}
    if groups is not None:
        (folder / PAYLOAD_FILE).write_bytes(files.write_payload({GROUPS: groups}))
    return {"taken": asdict(taken)}


if __name__ == "__main__":
    answer_jobs(_answer, is_limited=False)
