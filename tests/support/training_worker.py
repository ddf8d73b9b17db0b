"""A training process without torch: the real one's socket, threads and messages around a runner made of hashes.

The payload says what it does: `{"steps": 3, ...}` with one of `fail` (a TrainingError), `break_at` (another error
before that step), `die_at` and `times` (end before that step, that many attempts), `freeze_at` (stop answering once),
`meet` (wait for a file after making one), `deaf` (never notice a cancellation), `wait_for` (a file that must be there
before the second step), `babble` (say that many bytes at once), `full` (meet a full disk that many times).
"""

import errno
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heddle.trainer_process.serve import serve
from heddle.training.messages import Finished, Message, Request, Saved, Started, Stepped, Task, Warm
from heddle.training.sequences import TrainingError

ADAPTER = "adapter_model.safetensors"


def run(task: Task, report: Callable[[Message], None], cancelled: Callable[[], bool]) -> None:
    """Hash the parent's adapter `steps` times, with a snapshot after each, and make the target."""
    orders = json.loads(Path(task.payload).read_bytes())
    if "fail" in orders:
        raise TrainingError(orders["fail"])
    work = Path(task.work)
    done, state = _restored(task)
    long = {"x" * orders["babble"]: 1.0} if "babble" in orders else {}
    report(Started(orders["steps"], {"num_trainable_tokens": 7.0} | long))
    for index in range(done):
        report(Stepped(index, _figures(index)))
    for index in range(done, orders["steps"]):
        if cancelled() and not orders.get("deaf"):
            return
        _trouble(orders, index, work)
        state = hashlib.sha256(state + task.job_id.encode() + bytes([index])).digest()
        report(Stepped(index, _figures(index)))
        _replace(work / "snapshot.json", json.dumps([index + 1, state.hex()]))
        report(Saved(index + 1))
    if not Path(task.target).exists():
        _make(Path(task.target), state)
    report(Finished(hashlib.sha256(state).hexdigest(), len(state), {"loss/train": 0.5}))


def _restored(task: Task) -> tuple[int, bytes]:
    try:
        done, state = json.loads((Path(task.work) / "snapshot.json").read_text())
        return int(done), bytes.fromhex(state)
    except FileNotFoundError:
        return 0, (Path(task.parent) / ADAPTER).read_bytes()


def _figures(index: int) -> dict[str, float]:
    return {"loss/train": float(index), "loss/probs_corr": 0.9, "loss/grad_norm": float("nan")}


def _trouble(orders: dict[str, Any], index: int, work: Path) -> None:
    if index == 0 and _times(work / "full") <= orders.get("full", 0):
        raise OSError(errno.ENOSPC, "No space left on device")
    if orders.get("break_at") == index:
        raise OSError("No space left on device")
    if orders.get("die_at") == index and _times(work / "deaths") <= orders.get("times", 1):
        sys.exit("ERROR it died as it was told")
    if orders.get("freeze_at") == index and _times(work / "freezes") == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if "meet" in orders:
        own, other = orders["meet"]
        Path(own).touch()
        _wait_for(Path(other))
    if "wait_for" in orders and index == 1:
        _wait_for(Path(orders["wait_for"]))


def _times(counter: Path) -> int:
    times = int(counter.read_text()) + 1 if counter.exists() else 1
    counter.write_text(str(times))
    return times


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def _replace(path: Path, text: str) -> None:
    beside = path.with_suffix(".tmp")
    beside.write_text(text)
    beside.replace(path)


def _make(target: Path, state: bytes) -> None:
    beside = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    (beside / ADAPTER).write_bytes(state)
    beside.rename(target)


class Hashes:
    """One process that runs `run`."""

    rank = 0

    def share(self, request: Request | None) -> Request:
        """The request."""
        assert request is not None
        return request

    def leave(self) -> None:
        """There is nobody to part from."""

    def warm(self, warm: Warm) -> None:
        """There is nothing to read; the folder tells that it was asked."""
        (Path(warm.base_folder) / "warm").touch()

    def run(self, task: Task, report: Callable[[Message], None], cancelled: Callable[[], bool]) -> None:
        """Do a task."""
        run(task, report, cancelled)


if __name__ == "__main__":
    serve(sys.argv[1:], Hashes)
