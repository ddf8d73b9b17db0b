"""Jobs on the tiny model: rollouts sampled by the engine, and a renderer that counts what it is asked."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

from heddle.inference.served_model import TINY_FOLDER
from heddle.inference.trajectory_renderer import TrajectoryRenderer
from heddle.models.load import load_model
from heddle.training import files
from heddle.training.config import RlConfig
from heddle.training.messages import Message, Task
from heddle.training.trainer.run import PolicyCache, run_task
from tests.support.forward import Runner
from tests.support.models import make_adapter

RENDERER = TrajectoryRenderer.load(TINY_FOLDER)
WORDS = ("yes", "no", "maybe")
END = 2


def question(random: Random) -> list[dict[str, str]]:
    """A prompt with more than one good answer."""
    words = ", ".join(random.sample(WORDS, 3))
    return [{"role": "user", "content": f"respond with {words}"}]


class Sampler:
    """Samples with the engine's own forward pass, one sequence at a time."""

    def __init__(self, adapter: Path | None, seed: int = 0, dtype: str = "float32") -> None:
        self.model = load_model(TINY_FOLDER, dtype=dtype, device="cpu")
        self.adapter = None if adapter is None else "a"
        if adapter is not None:
            self.model.load_adapter("a", adapter)
        self.generator = torch.Generator().manual_seed(seed)

    def choice(self, prompt: list[int], limit: int = 8) -> dict[str, Any]:
        """A sampled choice as clients send it back."""
        runner = Runner(self.model)
        lane = runner.open(len(prompt) + limit)
        scores = runner.prefill(lane, torch.tensor(prompt), adapter=self.adapter)[-1]
        content: list[dict[str, Any]] = []
        while len(content) < limit:
            token = int(torch.multinomial(scores.exp(), 1, generator=self.generator))
            content.append({"token": f"token_id:{token}", "logprob": float(scores[token])})
            if token == END:
                break
            place = len(prompt) + len(content) - 1
            scores = runner.step(decodes=[(lane, token, place, self.adapter)])[0][0]
        message = {"role": "assistant", "content": "an answer"}
        return {"finish_reason": "stop", "index": 0, "message": message, "logprobs": {"content": content}}


def groups_of(sampler: Sampler, groups: int, size: int, seed: int = 0) -> list[dict[str, Any]]:
    """Groups of rollouts; what is short and ends in time is worth more."""
    random = Random(seed)
    made = []
    for _ in range(groups):
        messages = question(random)
        prompt = RENDERER.render(messages, None, generation_prompt=True)
        choices = [sampler.choice(prompt) for _ in range(size)]
        rewards = [random.random() for _ in choices]
        made.append(
            {
                "trajectories": [
                    {"messages_and_choices": [*messages, choice], "reward": reward}
                    for choice, reward in zip(choices, rewards, strict=True)
                ]
            }
        )
    return made


def make_task(folder: Path, body: dict[str, Any], **changes: Any) -> Task:
    """A task in a folder of its own: parent (a random adapter), payload, work."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "payload").write_bytes(files.write_payload(body))
    (folder / "work").mkdir(exist_ok=True)
    parent = folder / "0000"
    if not parent.exists():
        make_adapter(parent, TINY_FOLDER)
    values: dict[str, Any] = {
        "job_id": "job",
        "kind": "rl",
        "base_folder": str(TINY_FOLDER),
        "payload": str(folder / "payload"),
        "config": RlConfig().as_json(),
        "parent": str(parent),
        "target": str(folder / "0001"),
        "work": str(folder / "work"),
        "step": 1,
        "lora": {},
        "device": "cpu",
        "dtype": "float32",
    }
    return Task(**values | changes)


def perform(task: Task, cancelled: Callable[[], bool] = lambda: False, **more: Any) -> list[Message]:
    """Do a task; everything that it reports."""
    messages: list[Message] = []
    run_task(task, RENDERER, messages.append, cancelled, more.pop("cache", None) or PolicyCache(), **more)
    return messages
