"""A server in this process, with the trainable models that training would make on it."""

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from heddle.app import create_app
from heddle.inference.policies import Policies
from heddle.inference.served_model import TINY, TINY_FOLDER
from heddle.services import Services, open_services
from heddle.settings import Settings
from heddle.wire.training import PolicyName
from tests.support.chat import API_KEY, USER
from tests.support.models import make_adapter

POLICY = PolicyName("anna", "lab", "writer")
ADDRESS = "wandb-artifact:///anna/lab/writer"


@dataclass(slots=True)
class Served:
    """Open services and a client of its application."""

    services: Services
    policies: Policies
    client: httpx.AsyncClient
    data: Path

    async def ask(self, model: str = ADDRESS, **fields: Any) -> httpx.Response:
        """The raw answer of a short greedy chat."""
        body = {"model": model, "messages": USER, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
        return await self.client.post("/v1/chat/completions", json=body)

    async def answer(self, model: str = ADDRESS, **fields: Any) -> dict[str, Any]:
        """The body of a chat that must succeed."""
        answer = await self.ask(model, **fields)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def said(self, model: str = ADDRESS, **fields: Any) -> tuple[list[int], str]:
        """Tokens, and the policy that made them."""
        answer = await self.ask(model, **fields)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["token_ids"], answer.headers["x-heddle-policy"]

    async def listed(self) -> dict[str, str]:
        """The model list: id to root."""
        answer = await self.client.get("/v1/models")
        return {model["id"]: model["root"] for model in answer.json()["data"]}

    async def offer(self, step: int, policy: PolicyName = POLICY, **settings: Any) -> str:
        """A checkpoint with random weights of its own, offered; returns its folder.

        No job made it, so the sweep of a start, which would remove it, is off in these tests.
        """
        folder = f"training/elsewhere/{policy.name}/checkpoints/{step:04d}"
        make_adapter(self.data / folder, TINY_FOLDER, seed=step + 1, **{"lora_alpha": 800, **settings})
        await self.policies.offer(policy, step, TINY, folder, "me")
        return folder

    async def make(self, steps: int, policy: PolicyName = POLICY) -> None:
        """A trainable model with steps 0 to `steps` - 1, whose name means the last one."""
        for step in range(steps):
            await self.offer(step, policy)
            await self.policies.point(policy, step)


@asynccontextmanager
async def served(data: Path, **settings: Any) -> AsyncIterator[Served]:
    """Open the services on a folder; its engine starts with the first chat."""
    async with AsyncExitStack() as stack:
        stack.enter_context(mock.patch("heddle.training.files.sweep", return_value=[]))
        services = await stack.enter_async_context(open_services(Settings(data=str(data), **settings)))
        transport = httpx.ASGITransport(create_app(services.settings, services))
        headers = {"authorization": f"Bearer {API_KEY}"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1", headers=headers, timeout=120
        ) as client:
            yield Served(services, Policies(services.inference), client, data)


def drop(served: Served, folder: str) -> None:
    """Remove a checkpoint's folder, as its owner does after it was withdrawn."""
    shutil.rmtree(served.data / folder)
