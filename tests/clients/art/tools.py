"""A task of two turns with a tool call: the sampled ids of both turns are trained as they were sampled."""

import asyncio
import itertools
import json
import os
import random

import art
import tasks
from common import Model, ask, backend, mean_reward, report, trainable

SETTINGS = {"seed": 0, "steps": 4, "groups": 8, "size": 8, "learning_rate": 3e-3}
SETTINGS |= json.loads(os.environ.get("SCENARIO_LOOP", "{}"))


SEEDS = itertools.count(1)
"""Of rollouts, so that the program samples alike each time."""


async def rollout(model: Model, problem: tasks.Sum, seed: int) -> art.Trajectory:
    """The question, the call, the tool's result and the answer; a rollout without a call ends after its first turn."""
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": problem.question}], tools=[tasks.ADD])
    turn = await ask(model, trajectory.messages(), tools=trajectory.tools, max_tokens=48, seed=seed)
    trajectory.messages_and_choices.append(turn)
    calls = [(call.function.name, call.function.arguments) for call in turn.message.tool_calls or []]
    answer = ""
    if calls:
        for call in turn.message.tool_calls or []:
            result = tasks.run_tool(call.function.name, call.function.arguments)
            message = {"role": "tool", "tool_call_id": call.id, "content": result}
            trajectory.messages_and_choices.append(message)
        last = await ask(model, trajectory.messages(), tools=trajectory.tools, max_tokens=24, seed=seed)
        trajectory.messages_and_choices.append(last)
        answer = last.message.content or ""
    trajectory.reward = problem.reward(calls, answer)
    trajectory.metrics = {"right_call": problem.is_right_call(calls), "turns": len(trajectory.messages_and_choices)}
    return trajectory


def trained_tokens(groups: list[art.TrajectoryGroup]) -> int:
    """Sampled tokens of all trajectories whose reward is not their group's mean."""
    return sum(
        len(item.logprobs.content)
        for group in groups
        for trajectory in group
        if trajectory.reward != mean_reward([group])
        for item in trajectory.messages_and_choices
        if not isinstance(item, dict)
    )


def another(chance: random.Random, left_alone: list[tasks.Sum]) -> tasks.Sum:
    """A problem that is not among the held-out ones."""
    while (problem := tasks.tool_sum(chance)) in left_alone:
        pass
    return problem


async def main() -> None:
    """The loop; what it learned is measured on problems that training left alone."""
    client, chance = backend(), random.Random(SETTINGS["seed"])
    model = trainable(f"tools-{SETTINGS['seed']}")
    await model.register(client)
    held_out = [tasks.tool_sum(random.Random(1_000 + number)) for number in range(32)]

    async def measured() -> float:
        done = await asyncio.gather(*(rollout(model, problem, next(SEEDS)) for problem in held_out))
        return mean_reward([art.TrajectoryGroup(done)])

    before, steps = await measured(), []
    for _ in range(SETTINGS["steps"]):
        problems = [another(chance, held_out) for _ in range(SETTINGS["groups"])]
        groups = await art.gather_trajectory_groups(
            (
                art.TrajectoryGroup([rollout(model, problem, next(SEEDS)) for _ in range(SETTINGS["size"])])
                for problem in problems
            ),
            pbar_desc=None,
        )
        result = await client.train(model, groups, learning_rate=SETTINGS["learning_rate"])
        steps.append({"reward": mean_reward(groups), "tokens": trained_tokens(groups), "metrics": result.metrics})
    report(before=before, after=await measured(), steps=steps)
    await client.close()


asyncio.run(main())
