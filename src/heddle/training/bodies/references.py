"""The policies that a job's KL penalty compares with: found, and fixed, when the job comes in."""

import re

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.store.control.jobs import OPEN, TrainJobs
from heddle.store.control.training import ModelRow, TrainModels
from heddle.training.config import RlConfig

_ADDRESS = re.compile(r"wandb-artifact:/{2,3}([^/:@]+)/([^/:@]+)/([^/:@]+)(?::step|@)(\d{1,15})")
_STEP, _PATH = "kl_penalty_reference_step", "kl_ref_adapter_path"


async def reference_folder(
    models: TrainModels, jobs: TrainJobs, model: ModelRow, settings: RlConfig, caller: Caller
) -> str | None:
    """The checkpoint folder of `kl_ref_adapter_path`, relative to the data folder; None where a job names none.

    Raises InvalidRequest for a reference that is not there and will not be.
    """
    if settings.kl_penalty_reference_step is not None:
        await _check_step(models, jobs, model, settings.kl_penalty_reference_step)
    if settings.kl_ref_adapter_path is None:
        return None
    found = _ADDRESS.fullmatch(settings.kl_ref_adapter_path)
    if found is None:
        raise _refused(_PATH, "it is the address of a step, such as wandb-artifact:///entity/project/name:step3")
    entity, project, name, step = found.groups()
    other = await models.find_named(entity, project, name)
    if other is None or not caller.reaches(other.project_id):
        raise _refused(_PATH, f"there is no model {name!r} in {entity}/{project}")
    if (other.base_model, other.lora) != (model.base_model, model.lora):
        raise _refused(_PATH, f"the model {name!r} has another base model or LoRA shape")
    for row in await models.checkpoints(other.id):
        if row.step == int(step):
            return row.folder
    raise _refused(_PATH, f"the model {name!r} has no step {step}")


async def _check_step(models: TrainModels, jobs: TrainJobs, model: ModelRow, step: int) -> None:
    steps = [row.step for row in await models.checkpoints(model.id)]
    to_come = sum(job.state in OPEN for job in await jobs.of_model(model.id))
    newest = max(steps, default=0)
    if step not in steps and not newest < step <= newest + to_come:
        raise _refused(_STEP, f"the model has no step {step}")


def _refused(field: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {reason}", param=field)
