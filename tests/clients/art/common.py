"""Shared by the programs that run inside the environment of the ART client (openpipe-art)."""

import json
import os
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import art
import openai
from art.serverless.backend import ServerlessBackend
from openai.types.chat.chat_completion import Choice

SERVER = os.environ["WANDB_BASE_URL"]
ENTITY, PROJECT = os.environ["SCENARIO_PROJECT"].split("/")
KEY = "0123456789abcdef0123456789abcdef01234567"
BASE_MODEL = "heddle-tiny"
Model: TypeAlias = "art.TrainableModel[Any, Any]"


def backend(key: str = KEY) -> ServerlessBackend:
    """The client of heddle's training routes; the key is passed, the variable WANDB_API_KEY stays unset."""
    return ServerlessBackend(api_key=key, base_url=f"{SERVER}/v1")


def trainable(name: str, **fields: Any) -> Model:
    """A model of the test's project, not yet registered."""
    about = {"name": name, "run_name": name, "project": PROJECT, "base_model": BASE_MODEL}
    return art.TrainableModel(**{**about, "entity": ENTITY, **fields})


async def ask(model: Model, messages: list[Any], step: int | None = None, **fields: Any) -> Choice:
    """One sampled choice; neither logprobs nor token ids are asked for, as in the vendor's own examples."""
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(step), messages=messages, **{"max_tokens": 8, "temperature": 1.0, **fields}
    )
    return answer.choices[0]


async def rollout(model: Model, question: str, reward: Callable[[str], float]) -> art.Trajectory:
    """A question, the sampled answer and its reward."""
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": question}])
    choice = await ask(model, trajectory.messages())
    trajectory.messages_and_choices.append(choice)
    trajectory.reward = reward(choice.message.content or "")
    return trajectory


async def groups_of(model: Model, problems: list[Any], size: int) -> list[art.TrajectoryGroup]:
    """For each problem a group of so many rollouts."""
    waiting = (
        art.TrajectoryGroup([rollout(model, problem.question, problem.reward) for _ in range(size)])
        for problem in problems
    )
    return await art.gather_trajectory_groups(waiting, pbar_desc=None)


def mean_reward(groups: list[art.TrajectoryGroup]) -> float:
    """Over all trajectories."""
    rewards = [trajectory.reward for group in groups for trajectory in group]
    return sum(rewards) / len(rewards)


async def failure(awaitable: Awaitable[Any]) -> dict[str, Any]:
    """The class, status and text of the exception that it raises; None where it raises none."""
    try:
        await awaitable
    except openai.APIStatusError as error:
        return {"class": type(error).__name__, "status": error.status_code, "text": str(error)}
    except RuntimeError as error:
        return {"class": type(error).__name__, "status": None, "text": str(error)}
    return {"class": None, "status": None, "text": ""}


async def listed_steps(backend: ServerlessBackend, model: Model) -> list[int]:
    """The steps of all checkpoints, in the order of the list."""
    return [item.step async for item in backend._client.models.checkpoints.list(model_id=model.id, limit=10)]


def report(**values: Any) -> None:
    """Hand what the client saw to the test."""
    print("RESULT " + json.dumps(values), flush=True)
