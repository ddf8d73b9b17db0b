"""A whole reinforcement-learning loop: register, roll out and train, list, delete, and be gone.

`SCENARIO_LOOP` is JSON: seed, steps, groups, size (rollouts of a group), learning_rate.
"""

import asyncio
import json
import os
import random
import time
from typing import Any

import tasks
from common import Model, ask, backend, failure, groups_of, listed_steps, mean_reward, report, trainable

SETTINGS = {"seed": 0, "steps": 25, "groups": 8, "size": 8, "learning_rate": 5e-3}
SETTINGS |= json.loads(os.environ.get("SCENARIO_LOOP", "{}"))
QUESTION = [{"role": "user", "content": "say yes, no or maybe"}]


async def one_step(client: Any, model: Model, chance: random.Random) -> dict[str, Any]:
    """Rollouts, a training job, and what it told; the metrics are logged as a user would."""
    started = time.monotonic()
    problems = [tasks.choice(chance) for _ in range(SETTINGS["groups"])]
    groups = await groups_of(model, problems, SETTINGS["size"])
    sampled = time.monotonic()
    result = await client.train(model, groups, learning_rate=SETTINGS["learning_rate"])
    seconds = {"rollout_s": sampled - started, "train_s": time.monotonic() - sampled}
    await model.log(groups, split="train", metrics=result.metrics, step=result.step)
    return {
        "step": result.step,
        "artifact": result.artifact_name,
        "reward": mean_reward(groups),
        "metrics": result.metrics,
        **seconds,
    }


async def tidy_up(client: Any, model: Model, last: int) -> dict[str, Any]:
    """The checkpoints before and after all but two are deleted, and the model's own deletion."""
    before = await listed_steps(client, model)
    early = await ask(model, QUESTION, step=1)
    await client._delete_checkpoint_files(model, [last, last // 2])
    after = await listed_steps(client, model)
    gone = await failure(ask(model, QUESTION, step=1))
    kept = await ask(model, QUESTION, step=last // 2)
    name = model.get_inference_name()
    await client.delete(model)
    return {
        "before": before,
        "after": after,
        "early": early.message.content,
        "kept": kept.message.content,
        "gone": gone,
        "name": name,
        "without_model": await failure(ask(model, QUESTION)),
        "deleted_twice": await failure(client.delete(model)),
    }


async def main() -> None:
    """Everything with one model."""
    started = time.monotonic()
    client, chance = backend(), random.Random(SETTINGS["seed"])
    model = trainable(f"loop-{SETTINGS['seed']}")
    await model.register(client)
    first = await model.get_step()
    steps = [await one_step(client, model, chance) for _ in range(SETTINGS["steps"])]
    wall = time.monotonic() - started
    last = await model.get_step()
    report(first=first, last=last, steps=steps, wall_s=wall, tidy=await tidy_up(client, model, last))
    await client.close()


asyncio.run(main())
