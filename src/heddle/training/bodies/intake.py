"""Takes bodies with trajectories in: checked whole, and kept compressed, without holding up the server.

A small body is checked in a thread. A large one is written to the disk as it comes and checked by a process of its
own: reading it as JSON would stop the event loop for seconds, and fill this process's memory for good.
`python -m heddle.training.bodies.intake KIND FOLDER` is that process: it reads `body`, writes `payload` and prints
the rest.
"""

import asyncio
import contextlib
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import orjson
from pydantic import TypeAdapter, ValidationError

from heddle import failures
from heddle.errors import HeddleError, InvalidRequest, Unavailable, ValidationFailed
from heddle.request_body import MOST_ERRORS, invalid
from heddle.store.blobs.base import Blobs
from heddle.store.disk import room
from heddle.training import payload
from heddle.training.bodies.experimental_config import is_known
from heddle.training.bodies.log_metrics import log_metrics
from heddle.training.bodies.requests import CreateJob, CreateJobFromSource
from heddle.training.bodies.trajectories import LogRequest
from heddle.wire import jsonpieces, jsontext
from heddle.wire.jsontypes import Json

GROUPS, SETTINGS = "trajectory_groups", "experimental_config"
LARGE = 2 << 20
"""Bytes of a body above which a process of its own checks it; to check this many stops the others for about 0.1 s."""
LARGE_NODES = 50_000
"""The same for JSON values."""
MAX_NODES = 20_000_000
"""JSON values of the largest body that a process of 1 or 2 GiB can check."""
BODY_FILE, PAYLOAD_FILE = "body", "payload"
_REFUSED = 3


@dataclass(slots=True)
class Taken:
    """A body that is right: everything but its trajectories, and the key of the blob with those."""

    head: Json
    key: str | None
    """None where the body has no trajectories (a source)."""
    groups: int
    trajectories: int
    metrics: dict[str, float]
    """For a log: what `log_metrics` says."""


@dataclass(slots=True)
class Checked:
    """What checking gives, apart from the payload."""

    head: Json
    groups: int
    trajectories: int
    metrics: dict[str, float]


class Intake:
    """One per server; `folder` is where large bodies lie while they are checked."""

    def __init__(self, blobs: Blobs, folder: Path, large: int = LARGE) -> None:
        self._blobs = blobs
        self._folder = folder
        self._large = large
        self._turn = asyncio.Semaphore(1)

    async def take(self, kind: str, body: AsyncIterator[bytes]) -> Taken:
        """Check and keep the body of a `job` or a `log`.

        Raises ValidationFailed with every place that is wrong, InvalidRequest, StorageFull.
        """
        start = bytearray()
        async for chunk in body:
            start += chunk
            if len(start) > self._large:
                return await self._take_large(kind, start, body)
        if jsonpieces.may_exceed(start, LARGE_NODES):
            return await self._take_large(kind, start, body)
        return await asyncio.to_thread(self._take_small, kind, bytes(start))

    def _take_small(self, kind: str, body: bytes) -> Taken:
        checked, groups = check(kind, body)
        content = None if groups is None else BytesIO(payload.write({GROUPS: groups}))
        return self._kept(checked, content)

    async def _take_large(self, kind: str, start: bytearray, rest: AsyncIterator[bytes]) -> Taken:
        async with self._spooled(start, rest) as folder:
            async with self._turn:  # one process at a time; nobody waits for a slow client
                checked = await _check_elsewhere(kind, folder)
            return await asyncio.to_thread(self._keep_file, checked, folder / PAYLOAD_FILE)

    def _keep_file(self, checked: Checked, file: Path) -> Taken:
        if not file.exists():
            return self._kept(checked, None)
        with file.open("rb") as content:
            return self._kept(checked, content)

    def _kept(self, checked: Checked, content: BinaryIO | None) -> Taken:
        key = None if content is None else self._blobs.put(content)
        return Taken(checked.head, key, checked.groups, checked.trajectories, checked.metrics)

    @asynccontextmanager
    async def _spooled(self, start: bytearray, rest: AsyncIterator[bytes]) -> AsyncIterator[Path]:
        """A folder with the body in a file, which is gone afterwards."""
        with room():
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


def check(kind: str, body: bytes) -> tuple[Checked, list[Any] | None]:
    """Check a body; returns its parts and its trajectory groups as they came. Raises HeddleError."""
    if jsonpieces.may_exceed(body, MAX_NODES) and jsonpieces.count_nodes(body) > MAX_NODES:
        raise InvalidRequest(f"Request too large: more than {MAX_NODES} JSON values")
    value = jsontext.loads(body, keep_non_finite=True)
    model: Any = LogRequest if kind == "log" else CreateJob
    if kind == "job" and isinstance(value, dict) and value.get("source") is not None:
        model = CreateJobFromSource
    try:
        request = TypeAdapter(model).validate_python(value)
    except ValidationError as error:
        if error.error_count() > MOST_ERRORS:
            raise invalid(error, ["body"]) from None
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise ValidationFailed([{**item, "loc": ["body", *item["loc"]]} for item in failures.details(found)]) from None
    groups = request.trajectory_groups
    head = _head(value, set(model.model_fields) - {GROUPS})
    members = sum(len(group.trajectories) for group in groups or ())
    metrics = log_metrics(request.split, groups) if kind == "log" else {}
    return Checked(head, len(groups or ()), members, metrics), None if groups is None else value[GROUPS]


def _head(body: Json, known: set[str]) -> Json:
    """The fields that act; of unknown settings only the names, as what is large must not reach the event loop."""
    head = {name: item for name, item in body.items() if name in known}
    settings = head.get(SETTINGS)
    if isinstance(settings, dict):
        head[SETTINGS] = {name: item if is_known(name) else None for name, item in settings.items()}
    return head


async def _check_elsewhere(kind: str, folder: Path) -> Checked:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __name__, kind, str(folder)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in sys.path), "PYTHONIOENCODING": "utf-8"},
    )
    try:
        printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == 0:
        return Checked(**orjson.loads(printed))
    if process.returncode != _REFUSED:
        raise Unavailable("The body could not be checked: the process died of it; perhaps it needs too much memory")
    answer = orjson.loads(printed)
    raise ValidationFailed(answer["detail"]) if answer["detail"] else InvalidRequest(answer["reason"])


def main() -> int:
    """Check the body in a folder; the exit code says whether it is right."""
    kind, folder = sys.argv[1], Path(sys.argv[2])
    gc.disable()  # millions of objects, no cycles, and all is over soon
    try:
        checked, groups = check(kind, (folder / BODY_FILE).read_bytes())
    except HeddleError as error:
        detail = error.detail if isinstance(error, ValidationFailed) else None
        sys.stdout.buffer.write(orjson.dumps({"reason": error.reason, "detail": detail}))
        return _REFUSED
    if groups is not None:
        (folder / PAYLOAD_FILE).write_bytes(payload.write({GROUPS: groups}))
    sys.stdout.buffer.write(jsontext.dumps_bytes(asdict(checked)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
