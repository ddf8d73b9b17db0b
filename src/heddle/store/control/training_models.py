"""Trainable models, their checkpoints, and the trajectories that clients log for them."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypedDict

import sqlalchemy as sa

from heddle.errors import Conflict
from heddle.store.control.audit import audit
from heddle.store.control.repository import Indexed, Key, Mapped, Repository, Unique, writes
from heddle.store.control.training import train_jobs
from heddle.wire import refs


class LoraShape(TypedDict):
    """How the adapters of a model are made."""

    rank: int
    alpha: float
    target_modules: list[str]


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One trainable model."""

    id: Key[str]
    entity: str
    project: str
    name: str
    base_model: str
    run_id: str | None
    lora: LoraShape
    created_at: int
    """Microseconds."""
    created_by: str

    @property
    def project_id(self) -> str:
        """`entity/project`, as the trace service names it."""
        return f"{self.entity}/{self.project}"


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One step of a model: an immutable folder."""

    id: Key[str]
    model_id: str
    step: int
    parent_step: int | None
    """The step that training started from; None for step 0."""
    job_id: str | None
    folder: Unique[str]
    """Relative to the data folder."""
    digest: str
    """SHA-256 of `adapter_model.safetensors`."""
    bytes: int
    """Of the whole folder."""
    metrics: dict[str, float]
    created_at: int


@dataclass(frozen=True, slots=True)
class LogRow:
    """Trajectories that a client logged; the payload is a blob."""

    id: Key[str]
    model_id: Indexed[str]
    step: int
    split: str
    metrics: dict[str, float]
    payload: Indexed[str]
    groups: int
    trajectories: int
    created_at: int
    created_by: str


_models = Mapped(ModelRow, "train_models", sa.UniqueConstraint("entity", "project", "name"))
_checkpoints = Mapped(CheckpointRow, "train_checkpoints", sa.UniqueConstraint("model_id", "step"))
_logs = Mapped(LogRow, "train_logs")
train_models, train_checkpoints, train_logs = _models.table, _checkpoints.table, _logs.table
_m, _c = train_models.c, train_checkpoints.c


class TrainModels(Repository):
    """The tables of models, checkpoints and logs."""

    @writes
    def create(self, connection: sa.Connection, row: ModelRow, first: CheckpointRow) -> ModelRow:
        """Make a model known together with its step 0; raises Conflict when the name is taken."""
        named = (_m.entity == row.entity, _m.project == row.project, _m.name == row.name)
        if _models.first(connection, _models.select(*named)) is not None:
            raise Conflict(f"The model {row.name!r} already exists in {row.project_id}")
        _models.insert(connection, row)
        _checkpoints.insert(connection, first)
        details = {"entity": row.entity, "project": row.project, "name": row.name}
        audit(
            connection,
            row.created_at,
            row.created_by,
            "train_model.create",
            refs.internal_project(row.project_id),
            details,
        )
        return row

    async def find(self, model_id: str) -> ModelRow | None:
        """The model with an id."""
        return await self._first(_models, _m.id == model_id)

    async def find_named(self, entity: str, project: str, name: str) -> ModelRow | None:
        """The model with a name."""
        return await self._first(_models, _m.entity == entity, _m.project == project, _m.name == name)

    async def all(self) -> list[ModelRow]:
        """Every model, oldest first."""
        return await self._all(_models, _models.select().order_by(_m.created_at, _m.id))

    @writes
    def delete(self, connection: sa.Connection, row: ModelRow, at: int, user: str) -> list[CheckpointRow]:
        """Forget a model with its checkpoints, logs and the bodies of its jobs; returns the checkpoints it had."""
        found = _checkpoints.all(connection, _checkpoints.select(_c.model_id == row.id))
        connection.execute(train_checkpoints.delete().where(_c.model_id == row.id))
        connection.execute(train_logs.delete().where(train_logs.c.model_id == row.id))
        was_known = connection.execute(train_models.delete().where(_m.id == row.id)).rowcount > 0
        project = refs.internal_project(row.project_id)
        mine = train_jobs.update().where(train_jobs.c.model_id == row.id)
        connection.execute(mine.values(payload="", former_project=project))
        if was_known:
            details = {"entity": row.entity, "project": row.project, "name": row.name}
            audit(connection, at, user, "train_model.delete", project, details)
        return found

    async def checkpoints(self, model_id: str) -> list[CheckpointRow]:
        """The checkpoints of a model, by step."""
        return await self._all(_checkpoints, _checkpoints.select(_c.model_id == model_id).order_by(_c.step))

    @writes
    def add_checkpoint(self, connection: sa.Connection, row: CheckpointRow) -> CheckpointRow:
        """List a step; one that is listed already stays as it is, and is returned. Raises NotFound."""
        _models.require(connection, row.model_id)
        there = _checkpoints.select(_c.model_id == row.model_id, _c.step == row.step)
        found = _checkpoints.first(connection, there)
        if found is None:
            _checkpoints.insert(connection, row)
        return found or row

    @writes
    def delete_checkpoints(
        self, connection: sa.Connection, model_id: str, steps: Collection[int], at: int, user: str
    ) -> list[CheckpointRow]:
        """Forget steps of a model; returns those that were there."""
        which = sa.and_(_c.model_id == model_id, _c.step.in_(list(steps)))
        found = _checkpoints.all(connection, _checkpoints.select(which))
        connection.execute(train_checkpoints.delete().where(which))
        details = {"model_id": model_id, "steps": [row.step for row in found]}
        model = _models.first(connection, _models.select(_m.id == model_id))
        project = None if model is None else refs.internal_project(model.project_id)
        audit(connection, at, user, "checkpoint.delete", project, details)
        return found

    @writes
    def add_log(self, connection: sa.Connection, row: LogRow) -> LogRow:
        """Keep a log and merge its metrics into the newest step, which the returned row names; raises NotFound."""
        _models.require(connection, row.model_id)
        newest = _checkpoints.select(_c.model_id == row.model_id).order_by(_c.step.desc())
        step = _checkpoints.first(connection, newest.limit(1))
        if step is not None:
            merged = train_checkpoints.update().where(_c.id == step.id).values(metrics=step.metrics | row.metrics)
            connection.execute(merged)
        stored = replace(row, step=step.step if step is not None else 0)
        _logs.insert(connection, stored)
        return stored

    async def logs(self, model_id: str) -> list[LogRow]:
        """What was logged for a model, oldest first."""
        c = train_logs.c
        return await self._all(_logs, _logs.select(c.model_id == model_id).order_by(c.created_at, c.id))
