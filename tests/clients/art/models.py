"""Models by name, what is logged about them, and the typed error of everything that cannot be."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import art
from art.serverless.backend import ServerlessBackend
from common import BASE_MODEL, ENTITY, PROJECT, ask, backend, failure, report, rollout, trainable

QUESTION = [{"role": "user", "content": "say yes, no or maybe"}]


async def names(client: ServerlessBackend) -> dict[str, Any]:
    """A name is one model: registering again finds it, creating it again is a conflict."""
    first, second = trainable("same"), trainable("same")
    await first.register(client)
    await second.register(client)
    fields = {"entity": ENTITY, "project": PROJECT, "name": "same", "base_model": BASE_MODEL}
    alone = trainable(f"alone-{uuid.uuid4().hex[:8]}", entity=None)
    await alone.register(client)
    fresh = await ask(alone, QUESTION)
    return {
        "same_id": first.id == second.id,
        "again": await failure(client._client.models.create(**fields, return_existing=False)),
        "other_base": await failure(trainable("same", base_model="nobody/knows").register(client)),
        "unknown_base": await failure(trainable("new", base_model="nobody/knows").register(client)),
        "entity": alone.entity,
        "fresh_step": await alone.get_step(),
        "fresh_logprobs": [item.token for item in fresh.logprobs.content] if fresh.logprobs else [],
    }


async def log(client: ServerlessBackend) -> dict[str, Any]:
    """Trajectories logged on the client's own disk and, as older clients do, on the server."""
    model = trainable("logged")
    await model.register(client)
    trajectories = [await rollout(model, "say yes or no", len) for _ in range(3)]
    for number, trajectory in enumerate(trajectories):
        trajectory.reward, trajectory.metrics = float(number), {"length": number, "good": number == 1}
    group = art.TrajectoryGroup([*trajectories, ValueError("a rollout broke")], metrics={"hard": 0.5})
    await model.log([group], split="val")
    await model.log([group], split="train", metrics={"extra": 2.0})
    for split in ("val", "train"):
        await client._client.models.log(model_id=model.id, trajectory_groups=[group], split=split)
    checkpoints = [item async for item in client._client.models.checkpoints.list(model_id=model.id)]
    folder = Path(model._get_output_dir())
    return {
        "model": model.id,
        "metrics": checkpoints[-1].metrics,
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()),
    }


async def errors(client: ServerlessBackend) -> dict[str, Any]:
    """What cannot be found, is not allowed or makes no sense."""
    model, unknown = trainable("errors"), str(uuid.uuid4())
    await model.register(client)
    group = art.TrajectoryGroup([art.Trajectory(reward=1.0)])
    create = client._client.training_jobs.create
    return {
        "no_model": await failure(create(model_id=unknown, trajectory_groups=[group])),
        "no_uuid": await failure(create(model_id="seventeen", trajectory_groups=[group])),
        "no_job": await failure(anext(aiter(client._client.training_jobs.events.list(training_job_id=unknown)))),
        "no_log": await failure(client._client.models.log(model_id=unknown, trajectory_groups=[group], split="val")),
        "bad_setting": await failure(
            create(model_id=model.id, trajectory_groups=[group], experimental_config={"advantage_balance": 2.0})
        ),
        "bad_level": await failure(client.train(model, [group], importance_sampling_level="word")),
        "no_step": await failure(ask(model, QUESTION, step=77)),
        "not_deleted": dict(await client._client.models.checkpoints.delete(model_id=model.id, steps=[77])),
        "no_data": await failure(
            client._client.sft_training_jobs.create(
                model_id=model.id, training_data_url=f"wandb-artifact:///{ENTITY}/{PROJECT}/nothing:v0"
            )
        ),
    }


async def main() -> None:
    """All parts."""
    client = backend()
    seen = {"names": await names(client), "log": await log(client), "errors": await errors(client)}
    report(**seen)
    await client.close()


asyncio.run(main())
