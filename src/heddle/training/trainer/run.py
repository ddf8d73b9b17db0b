"""A whole job as one function: read, train, keep snapshots, and leave a checkpoint that is complete or not there.

The same task gives the same adapter bytes, no matter how often it was interrupted: rows and their order follow from the
payload and the job's id, and a snapshot holds everything that the next step depends on.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import torch

from heddle.models.load import choose_device
from heddle.models.lora import CONFIG, WEIGHTS
from heddle.training import files
from heddle.training.files import add_snapshot, link_or_copy, make_whole, snapshots
from heddle.training.messages import Finished, JobKind, Message, Saved, Started, Stepped, Task
from heddle.training.sequences import Renderer
from heddle.training.trainer.policy import OPTIMIZER, Policy, State, read_state, write_state
from heddle.training.trainer.ranks import Ranks, is_distributed
from heddle.training.trainer.rl import RlJob
from heddle.training.trainer.rows import DpoJob, SftJob
from heddle.wire.jsontypes import Json

SNAPSHOT_SHARE = 20
"""Time between two snapshots over the time that one takes, at least."""

Job = RlJob | SftJob | DpoJob
JOBS: dict[JobKind, Callable[[Task, Json, Renderer, Ranks], Job]] = {"rl": RlJob, "sft": SftJob, "dpo": DpoJob}
Report = Callable[[Message], None]


class PolicyCache:
    """The base model of the last job, kept for the next one."""

    def __init__(self, spread: bool | None = None) -> None:
        """`spread`: ranks share the layers of the base model; None is what several of them do on CUDA."""
        self._spread = spread
        self._key: tuple[str, str, str] | None = None
        self._policy: Policy | None = None

    def policy(self, task: Task) -> Policy:
        """The policy of a task's base model, with some adapter; raises ModelError."""
        return self.load(task.base_folder, task.device, task.dtype)

    def load(self, base_folder: str, device: str, dtype: str) -> Policy:
        """The policy of a base model, read when it is another one than before; raises ModelError."""
        key = (base_folder, device, dtype)
        if self._policy is None or key != self._key:
            self._policy, self._key = None, None
            on_gpus = is_distributed() and choose_device(device).type == "cuda"
            spread = on_gpus if self._spread is None else self._spread
            self._policy, self._key = Policy.load(Path(base_folder), device, dtype, spread), key
        return self._policy


def run_task(
    task: Task,
    renderer: Renderer,
    report: Report,
    cancelled: Callable[[], bool],
    cache: PolicyCache,
    ranks: Ranks | None = None,
) -> None:
    """Do a job and report it; returns without Finished when it is cancelled.

    Raises TrainingError for data that cannot be trained on, and ModelError or OSError when files are broken. Every
    attempt reports Started and all steps that are done already, with the same numbers.
    """
    ranks = Ranks() if ranks is None else ranks
    make_deterministic(task.threads, task.device)
    target = Path(task.target)
    if ranks.share(target.exists() if ranks.rank == 0 else None):
        if ranks.rank == 0:
            replay(read_state(target), report)
            report(read_result(target))
        return
    # The text of the data is forgotten, which may be much larger than its tokens.
    job = JOBS[task.kind](task, files.read_payload(task.payload), renderer, ranks)
    if len(job) and not train(task, job, cache.policy(task), ranks, report, cancelled):
        return
    if ranks.rank == 0:
        if not len(job):
            report(job.started)
        make_whole(target, lambda folder: write_checkpoint(folder, task, job, cache))
        report(read_result(target))


def make_deterministic(threads: int, device: str) -> None:
    """Let torch compute the same way each time; on the CPU the number of threads is all that matters."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if choose_device(device).type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # It imports torch's compiler. Only a warning, as some attention kernels have no deterministic gradient.
        torch.use_deterministic_algorithms(True, warn_only=True)


def write_checkpoint(folder: Path, task: Task, job: Job, cache: PolicyCache) -> None:
    """Write the policy after its training, or the parent again when there was nothing to train."""
    if len(job):
        cache.policy(task).save(folder)
    else:
        parent = Path(task.parent)
        for name in (CONFIG, WEIGHTS, OPTIMIZER):
            if (parent / name).exists():
                link_or_copy(parent / name, folder / name)
        write_state(
            folder,
            replace(
                read_state(parent),
                job_id=task.job_id,
                job_steps=0,
                started=job.started.data,
                num_sequences=0,
                stepped=[],
            ),
        )
    job.keep(folder)


def resume(task: Task, job: Job, policy: Policy, ranks: Ranks) -> None:
    """Bring the policy to the newest snapshot, or to the job's beginning."""
    policy.restore(Path(task.parent), task.kind)
    state = policy.state
    state.kind, state.job_id, state.job_steps, state.stepped = task.kind, task.job_id, 0, []
    state.started, state.num_sequences = job.started.data, len(job)
    job.begin(policy)
    found = [(0, "")] + [(steps, str(folder)) for steps, folder in snapshots(Path(task.work))]
    steps, folder = ranks.share(found[-1] if ranks.rank == 0 else None)
    if steps:
        policy.restore(Path(folder), task.kind)


def train(task: Task, job: Job, policy: Policy, ranks: Ranks, report: Report, cancelled: Callable[[], bool]) -> bool:
    """Take the steps that are left; False when the job was cancelled."""
    resume(task, job, policy, ranks)
    if ranks.rank == 0:
        replay(policy.state, report)
    saved_at, cost = time.monotonic(), 0.0
    for index in range(policy.state.job_steps, len(job)):
        if ranks.share(cancelled() if ranks.rank == 0 else None):
            return False
        data = job.step(index, policy)
        policy.state.job_steps = index + 1
        policy.state.stepped.append(data)
        if ranks.rank:
            continue
        report(Stepped(index, data))
        if index + 1 < len(job) and time.monotonic() - saved_at >= SNAPSHOT_SHARE * cost:
            began = time.monotonic()
            add_snapshot(Path(task.work), index + 1, policy.save)
            saved_at = time.monotonic()
            cost = saved_at - began
            report(Saved(index + 1))
    return True


def replay(state: State, report: Report) -> None:
    """Report what a folder says was done."""
    report(Started(state.num_sequences, state.started or {}))
    for index, data in enumerate(state.stepped):
        report(Stepped(index, data))


def read_result(target: Path) -> Finished:
    """What a checkpoint's folder says about the job that made it; metrics are means over its gradient steps."""
    content = (target / WEIGHTS).read_bytes()
    steps = read_state(target).stepped
    names = dict.fromkeys(name for data in steps for name in data)
    held = {name: [data[name] for data in steps if name in data] for name in names}
    metrics = {name: sum(values) / len(values) for name, values in held.items()}
    size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
    return Finished(sha256(content).hexdigest(), size, metrics)
