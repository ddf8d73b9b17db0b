"""The services and their routes in the test's own process, for what has no route of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from heddle.app import create_app
from heddle.services import Services, open_services
from heddle.settings import Settings


class Trace:
    """The trace routes of one project, without a network."""

    def __init__(self, client: httpx.AsyncClient, project: str) -> None:
        self.client = client
        self.project = project

    async def post(self, path: str, **body: Any) -> Any:
        """The JSON answer of a request that must succeed."""
        answer = await self.client.post(path, json=body)
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:2000]}"
        return answer.json()

    async def publish(self, name: str, value: Any) -> str:
        """The ref of a new object version."""
        body = {"project_id": self.project, "object_id": name, "val": value}
        made = await self.post("/obj/create", obj=body)
        return f"weave:///{self.project}/object/{name}:{made['digest']}"

    async def dataset(self, name: str, rows: list[dict[str, Any]]) -> str:
        """The ref of a published dataset."""
        made = await self.post("/table/create", table={"project_id": self.project, "rows": rows})
        table = f"weave:///{self.project}/table/{made['digest']}"
        bases = ["Object", "BaseModel"]
        return await self.publish(
            name, {"_type": "Dataset", "_class_name": "Dataset", "_bases": bases, "name": name, "rows": table}
        )

    async def scorer(self, class_name: str, **fields: Any) -> str:
        """The ref of a published scorer."""
        bases = ["Scorer", "Object", "BaseModel"]
        return await self.publish(
            class_name, {"_type": class_name, "_class_name": class_name, "_bases": bases, **fields}
        )

    async def evaluation(self, name: str, **fields: Any) -> str:
        """The ref of a published evaluation."""
        head = {"_type": "Evaluation", "_class_name": "Evaluation", "_bases": ["Object", "BaseModel"], "name": name}
        return await self.publish(name, {**head, **fields})

    async def calls(self, **body: Any) -> list[dict[str, Any]]:
        """The calls of the project, oldest first."""
        answer = await self.client.post("/calls/stream_query", json={"project_id": self.project, **body})
        assert answer.status_code == 200, answer.text
        return [httpx.Response(200, content=line).json() for line in answer.text.splitlines() if line]


@asynccontextmanager
async def running_services(folder: Path, **settings: Any) -> AsyncIterator[tuple[Services, httpx.AsyncClient]]:
    """Open services without a model, and a client of its routes."""
    chosen = Settings(**{"data": str(folder), "model": "none", **settings})
    async with open_services(chosen) as services:
        transport = httpx.ASGITransport(app=create_app(chosen, services))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield services, client
