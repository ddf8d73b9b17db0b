"""A supervisor over a real store and real processes, whose trainer is `training_worker` and whose serving is a list."""

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from prometheus_client import CollectorRegistry, generate_latest

from heddle import settings as table
from heddle.jobs.metrics import JobMetrics
from heddle.store.control.training import OPEN, EventRow, JobRow
from heddle.store.control.training_models import CheckpointRow, ModelRow
from heddle.store.sqlite.store import SqliteStore, open_store
from heddle.training import files, handover
from heddle.training.queue.events import TrainingMetrics
from heddle.training.queue.process import ProcessOptions
from heddle.training.queue.supervisor import Supervisor
from heddle.wire.training import BaseModel, PolicyName

ROOT = Path(__file__).parent.parent.parent
MODULE = "tests.support.training_worker"
PATIENCE = 60.0


@dataclass
class Host:
    """A PolicyHost that only remembers; `before` is called with the name of each verb, and may raise."""

    folder: Path
    pointers: dict[PolicyName, int] = field(default_factory=dict)
    offered: dict[tuple[PolicyName, int], str] = field(default_factory=dict)
    before: Callable[[str], Awaitable[None]] | None = None
    base_ids: tuple[str, ...] = ("tiny",)

    async def base_models(self) -> list[BaseModel]:
        return [BaseModel(name, self.folder, "00000000", 10, 128, {}) for name in self.base_ids]

    async def offer(self, policy: PolicyName, step: int, base_model: str, folder: str, user: str) -> None:
        await self._before("offer")
        assert base_model == "tiny" and user == "somebody"
        self.offered[policy, step] = folder

    async def point(self, policy: PolicyName, step: int, instead_of: int | None = None) -> None:
        await self._before("point")
        assert (policy, step) in self.offered
        assert instead_of is None
        self.pointers[policy] = step

    async def latest(self, policy: PolicyName) -> int | None:
        return self.pointers.get(policy)

    async def withdraw(self, policy: PolicyName, steps: list[int], user: str) -> None:
        for step in steps:
            self.offered.pop((policy, step), None)

    async def forget(self, policy: PolicyName, user: str) -> None:
        self.pointers.pop(policy, None)

    async def _before(self, verb: str) -> None:
        if self.before is not None:
            await self.before(verb)


class Bench:
    """One data folder; supervisors come and go."""

    def __init__(self, store: SqliteStore, folder: Path, **settings: object) -> None:
        self.store = store
        self.folder = folder
        values = {"data": str(folder), "training_lease": "30"} | {name: str(value) for name, value in settings.items()}
        self.settings = table.load(values, {})
        self.host = Host(folder)
        self.registry = CollectorRegistry()
        self.figures = TrainingMetrics(self.registry, JobMetrics(self.registry))

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path, **settings: object) -> "AsyncIterator[Bench]":
        """A bench over a new store."""
        store = await open_store(table.load({"data": str(folder)}, {}))
        try:
            yield cls(store, folder, **settings)
        finally:
            await store.close()

    @asynccontextmanager
    async def supervisor(self, prepare: Callable[[Supervisor], None] | None = None) -> AsyncIterator[Supervisor]:
        """A supervisor that works until the end of the block; `prepare` may set hooks."""
        offered = self.folder / handover.ROOT if self.settings.trainer == "torchrun" else None
        options = ProcessOptions(1, self.settings.training_lease, MODULE, offered)
        jobs, models = self.store.train_jobs, self.store.train_models
        path = self.store.blobs.path
        supervisor = Supervisor(self.settings, models, jobs, self.host, path, self.figures, options)
        if prepare is not None:
            prepare(supervisor)
        with patch.dict(os.environ, {"PYTHONPATH": str(ROOT)}):
            await supervisor.start()
            try:
                yield supervisor
            finally:
                await supervisor.stop()

    async def model(self, name: str = "policy") -> ModelRow:
        """A trainable model with step 0."""
        lora = {"rank": 8, "alpha": 16.0, "target_modules": ["q_proj"]}
        row = ModelRow(
            str(uuid.uuid4()), "team", "project", name, "tiny", None, lora, time.time_ns() // 1000, "somebody"
        )
        folder = files.checkpoint_folder(row.id, 0)
        (self.folder / folder).mkdir(parents=True)
        (self.folder / folder / files.ADAPTER_FILE).write_bytes(b"step 0")
        first = CheckpointRow(str(uuid.uuid4()), row.id, 0, None, None, folder, "", 6, {}, row.created_at)
        await self.store.train_models.create(row, first)
        policy = PolicyName("team", "project", name)
        self.host.offered[policy, 0] = folder
        self.host.pointers[policy] = 0
        return row

    async def job(self, model: ModelRow, job_id: str | None = None, promotion: Any = None, **orders: Any) -> str:
        """Queue a job for the worker; returns its id."""
        payload = self.store.blobs.put_bytes(json.dumps({"steps": 3} | orders).encode())
        config = {"settings": {}, "threads": 1, "dtype": "float32", "device": "cpu", "sequence": 64}
        config["promotion"] = promotion
        row = JobRow(
            id=job_id or str(uuid.uuid4()),
            model_id=model.id,
            kind="rl",
            config=config,
            payload=payload,
            created_at=time.time_ns() // 1000,
            created_by="somebody",
        )
        await self.store.train_jobs.add(row, 64)
        return row.id

    async def find(self, job_id: str) -> JobRow:
        """The row of a job."""
        job = await self.store.train_jobs.find(job_id)
        assert job is not None
        return job

    async def events(self, job_id: str) -> list[EventRow]:
        """The events of a job."""
        return await self.store.train_jobs.events(job_id)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition; fails after a while."""
        async with asyncio.timeout(PATIENCE):
            while not await condition():
                await asyncio.sleep(0.01)

    async def ended(self, supervisor: Supervisor, job_id: str) -> JobRow:
        """Let the supervisor work until a job is done; its row."""
        supervisor.wake()
        async with asyncio.timeout(PATIENCE):
            await supervisor.wait_until_ended(job_id)
        job = await self.find(job_id)
        assert job.state not in OPEN
        return job

    async def has_events(self, job_id: str, count: int) -> None:
        """Wait until a job has that many events."""

        async def enough() -> bool:
            return len(await self.events(job_id)) >= count

        await self.until(enough)

    def adapter(self, model: ModelRow, step: int) -> bytes:
        """The adapter of a step."""
        return (self.folder / files.checkpoint_folder(model.id, step) / files.ADAPTER_FILE).read_bytes()

    def metrics(self) -> str:
        """The figures as Prometheus reads them."""
        return generate_latest(self.registry).decode()
