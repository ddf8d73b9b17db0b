"""The teaching program: samples answers through the OpenAI SDK, rewards them, and has heddle train on them.

The small model says `yes` most and `maybe` least; the reward is the other way round. It speaks the wire of ART (groups
of trajectories, jobs, events) in plain HTTP; prints a JSON line after each step.
"""

import asyncio
import itertools
import json
import random
import sys
import time

import httpx
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionUserMessageParam

from heddle.wire.jsontypes import Json

REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}
_VERBS = ("respond with", "say", "answer with", "reply")
_EVALUATED = 16


def all_questions() -> list[str]:
    """Every question there is: each verb before every order of two or three words."""
    orders = [order for size in (2, 3) for order in itertools.permutations(REWARDS, size)]
    return [f"{verb} {', '.join(words[:-1])} or {words[-1]}" for verb in _VERBS for words in orders]


def split_questions() -> tuple[list[str], list[str]]:
    """The questions for training, and those for the evaluation, which training never sees."""
    shuffled = all_questions()
    random.Random(0).shuffle(shuffled)
    return shuffled[_EVALUATED:], shuffled[:_EVALUATED]


def reward_answer(answer: str) -> float:
    """What an answer is worth; 0 when it is none of the words."""
    return REWARDS.get(answer.strip(), 0.0)


BASE_MODEL = "heddle-tiny"
_GROUPS = 8
_SIZE = 8
_LEARNING_RATE = 5e-3
_LONGEST = 60.0
"""Seconds that one job may take."""


class Teacher:
    """One trainable model and what is done with it."""

    def __init__(self, address: str, project: str, name: str) -> None:
        headers = {"authorization": "Bearer demo"}
        self._http = httpx.AsyncClient(base_url=f"{address}/v1/preview", headers=headers, timeout=_LONGEST)
        self._chats = AsyncOpenAI(base_url=f"{address}/v1", api_key="demo").chat.completions
        entity, _, project_name = project.partition("/")
        self._wanted = {"entity": entity, "project": project_name, "name": name, "base_model": BASE_MODEL}
        self._model = ""
        self._name = f"wandb-artifact:///{project}/{name}"
        self._chance = random.Random(0)

    async def register(self) -> Json:
        """Make the model; it answers from now on."""
        made = await self._post("/models", self._wanted | {"return_existing": True})
        self._model = str(made["id"])
        return made | {"address": self._name}

    async def step(self, questions: list[str]) -> Json:
        """Sample and reward a group of answers to each of some questions, and train on them."""
        began = time.perf_counter()
        asked = self._chance.sample(questions, _GROUPS)
        groups = await asyncio.gather(*(self._group(question) for question in asked))
        sampled = time.perf_counter()
        job = await self._train(list(groups))
        rewards = [trajectory["reward"] for group in groups for trajectory in group["trajectories"]]
        return {
            "reward": sum(rewards) / len(rewards),
            "sampling_seconds": sampled - began,
            "training_seconds": time.perf_counter() - sampled,
            "job": job,
        }

    async def _group(self, question: str) -> Json:
        message: ChatCompletionUserMessageParam = {"role": "user", "content": question}
        answer = await self._chats.create(model=self._name, messages=[message], n=_SIZE, temperature=1.0, max_tokens=8)
        trajectories = [
            {
                "messages_and_choices": [message, choice.model_dump(mode="json")],
                "reward": reward_answer(choice.message.content or ""),
            }
            for choice in answer.choices
        ]
        return {"trajectories": trajectories}

    async def _train(self, groups: list[Json]) -> str:
        """A job, followed by its events to its end; its id."""
        settings = {"learning_rate": _LEARNING_RATE}
        body = {"model_id": self._model, "trajectory_groups": groups, "experimental_config": settings}
        job = (await self._post("/training-jobs", body))["id"]
        seen: Json = {"id": "", "type": ""}
        deadline = time.monotonic() + _LONGEST
        while seen["type"] != "training_ended":
            if seen["type"] == "training_failed":
                raise RuntimeError(f"training job {job} failed: {seen['data']['error_message']}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"training job {job} has not ended after {_LONGEST:g} s")
            answer = await self._http.get(f"/training-jobs/{job}/events", params={"after": seen["id"], "limit": 100})
            new = answer.raise_for_status().json()["data"]
            if not new:
                await asyncio.sleep(0.02)
            seen = new[-1] if new else seen
        return str(job)

    async def _post(self, path: str, body: Json) -> Json:
        answer = await self._http.post(path, json=body)
        return dict(answer.raise_for_status().json())


async def main(address: str, project: str, name: str, steps: str) -> None:
    """Teach one model; with 0 steps it is only made."""
    teacher = Teacher(address, project, name)
    print(json.dumps({"model": await teacher.register()}), flush=True)
    questions, _ = split_questions()
    for number in range(1, int(steps) + 1):
        print(json.dumps({"step": {"number": number, **await teacher.step(questions)}}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
