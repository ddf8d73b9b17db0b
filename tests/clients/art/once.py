"""One training job: run while the server goes away, and with the vendor's own variables set."""

import asyncio
import random

import tasks
from common import backend, groups_of, listed_steps, report, trainable


async def main() -> None:
    """Roll out, train once, and say where that led."""
    client, chance = backend(), random.Random(5)
    model = trainable("interrupted")
    await model.register(client)
    groups = await groups_of(model, [tasks.choice(chance) for _ in range(4)], 8)
    for group in groups:
        for number, trajectory in enumerate(group):
            trajectory.reward = float(number % 2)
    result = await client.train(model, groups, learning_rate=1e-3)
    await model.log(groups, split="val", step=result.step)
    report(step=result.step, metrics=result.metrics, steps=await listed_steps(client, model))
    await client.close()


asyncio.run(main())
