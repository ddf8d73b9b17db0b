"""From a job's row to the task of a training process: which checkpoint, which base model, which folders."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from heddle.errors import NotFound
from heddle.paths import OutsideRoot
from heddle.store.control.jobs import JobRow
from heddle.store.control.training import CheckpointRow, ModelRow, TrainModels
from heddle.training import folders
from heddle.training.base import Task
from heddle.wire.policies import PolicyHost, PolicyName


class Impossible(Exception):
    """A job that can never be done; the text is for the client."""


def policy_name(model: ModelRow) -> PolicyName:
    """How inference calls a model."""
    return PolicyName(model.entity, model.project, model.name)


@dataclass(frozen=True, slots=True)
class TaskBuilder:
    """Looks up what a task needs; `payload` gives the path of a blob, `ranks` is the processes of one job."""

    models: TrainModels
    policies: PolicyHost
    data: Path
    payload: Callable[[str], Path]
    ranks: int

    async def first_steps(self, model: ModelRow) -> tuple[int, int]:
        """Where a job that begins now starts from (`latest`), and the step that it makes. Raises Impossible."""
        parent = await self.policies.latest(policy_name(model))
        if parent is None:
            raise Impossible(f"the model {model.name} has no policy to start from")
        rows = await self.models.checkpoints(model.id)
        return parent, max((row.step for row in rows), default=parent) + 1

    async def build(self, model: ModelRow, job: JobRow) -> Task:
        """The task of a job whose steps are fixed. Raises Impossible."""
        assert job.step is not None and job.parent_step is not None
        bases = {base.id: base for base in await self.policies.base_models()}
        base = bases.get(model.base_model)
        if base is None:
            served = ", ".join(sorted(bases)) or "none"
            raise Impossible(f"the base model {model.base_model} is not served any more (served: {served})")
        rows = await self.models.checkpoints(model.id)
        config = job.config
        return Task(
            job_id=job.id,
            kind="sft" if job.kind == "sft" else "rl",
            base_folder=str(base.folder),
            payload=str(self._payload(job)),
            config=config["settings"],
            parent=self._folder(rows, job.parent_step, "the step to start from"),
            target=str(self.data / folders.checkpoint_folder(model.id, job.step)),
            work=str(self.data / folders.work_folder(model.id, job.id)),
            step=job.step,
            parent_step=job.parent_step,
            lora=model.lora,
            device=config["device"],
            dtype=config["dtype"],
            threads=config["threads"],
            ranks=self.ranks,
            max_length=config["sequence"],
            kl_reference=self._reference(job, rows),
        )

    def _reference(self, job: JobRow, rows: Sequence[CheckpointRow]) -> str | None:
        """The folder that the KL penalty compares with; None is the base model."""
        assert job.parent_step is not None
        settings = job.config["settings"]
        if not settings.get("kl_penalty_coef"):
            return None
        if job.config.get("kl_reference") is not None:
            with contextlib.suppress(OutsideRoot):
                folder = folders.resolved(self.data, job.config["kl_reference"])
                if folder.is_dir():
                    return str(folder)
            raise Impossible("the checkpoint that kl_ref_adapter_path names was deleted")
        step, lag = settings.get("kl_penalty_reference_step"), settings.get("kl_penalty_step_lag")
        if step is None and lag is not None:
            step = max(0, job.parent_step - lag)
        return None if step is None else self._folder(rows, step, "the KL reference")

    def _folder(self, rows: Sequence[CheckpointRow], step: int, what: str) -> str:
        for row in rows:
            if row.step == step:
                with contextlib.suppress(OutsideRoot):
                    return str(folders.resolved(self.data, row.folder))
        raise Impossible(f"{what}: there is no step {step}; it was deleted or never made")

    def _payload(self, job: JobRow) -> Path:
        try:
            return self.payload(job.payload).resolve()
        except NotFound as error:
            raise Impossible(f"the data of the job is gone: {error}") from None
