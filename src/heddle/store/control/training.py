"""Trainable models, their checkpoints, and the trajectories that were logged for them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.errors import Conflict
from heddle.store.control.jobs import train_jobs
from heddle.store.control.projects import audit
from heddle.store.control.schema import Executor, metadata

train_models = sa.Table(
    "train_models",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("entity", sa.Text, nullable=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("base_model", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=True),
    sa.Column("lora", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.UniqueConstraint("entity", "project", "name"),
)

train_checkpoints = sa.Table(
    "train_checkpoints",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("model_id", sa.Text, nullable=False),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("parent_step", sa.BigInteger, nullable=True),
    sa.Column("job_id", sa.Text, nullable=True),
    sa.Column("folder", sa.Text, nullable=False, unique=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("metrics", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("model_id", "step"),
)

train_logs = sa.Table(
    "train_logs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("model_id", sa.Text, nullable=False, index=True),
    sa.Column("step", sa.BigInteger, nullable=False),
    sa.Column("split", sa.Text, nullable=False),
    sa.Column("metrics", sa.Text, nullable=False),
    sa.Column("payload", sa.Text, nullable=False, index=True),
    sa.Column("groups", sa.BigInteger, nullable=False),
    sa.Column("trajectories", sa.BigInteger, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One trainable model; `lora` says how its adapters are made (rank, alpha, projections)."""

    id: str
    entity: str
    project: str
    name: str
    base_model: str
    run_id: str | None
    lora: dict[str, Any]
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

    id: str
    model_id: str
    step: int
    parent_step: int | None
    """The step that training started from; None for step 0."""
    job_id: str | None
    folder: str
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

    id: str
    model_id: str
    step: int
    split: str
    metrics: dict[str, float]
    payload: str
    groups: int
    trajectories: int
    created_at: int
    created_by: str


class TrainModels:
    """The tables of models, checkpoints and logs."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def create(self, row: ModelRow, first: CheckpointRow) -> ModelRow:
        """Make a model known together with its step 0; raises Conflict when the name is taken."""

        def work(connection: sa.Connection) -> ModelRow:
            if connection.execute(sa.select(train_models.c.id).where(*_named(row))).first() is not None:
                raise Conflict(f"The model {row.name!r} exists already in {row.project_id}")
            connection.execute(train_models.insert().values(_values(row, "lora")))
            connection.execute(train_checkpoints.insert().values(_values(first, "metrics")))
            details = {"entity": row.entity, "project": row.project, "name": row.name}
            audit(connection, row.created_at, row.created_by, "train_model.create", None, details)
            return row

        return await self._executor.write(work)

    async def find(self, model_id: str) -> ModelRow | None:
        """The model with an id."""
        return await self._one(train_models.c.id == model_id)

    async def find_named(self, entity: str, project: str, name: str) -> ModelRow | None:
        """The model with a name."""
        c = train_models.c
        return await self._one(sa.and_(c.entity == entity, c.project == project, c.name == name))

    async def all(self) -> list[ModelRow]:
        """Every model, oldest first."""
        ordered = sa.select(train_models).order_by(train_models.c.created_at, train_models.c.id)
        return await self._executor.read(lambda connection: [_model(row) for row in connection.execute(ordered)])

    async def delete(self, row: ModelRow, at: int, user: str) -> list[CheckpointRow]:
        """Forget a model with its checkpoints, logs and the bodies of its jobs; returns the checkpoints it had."""

        def work(connection: sa.Connection) -> list[CheckpointRow]:
            c = train_checkpoints.c
            found = [
                _checkpoint(item)
                for item in connection.execute(sa.select(train_checkpoints).where(c.model_id == row.id))
            ]
            connection.execute(train_checkpoints.delete().where(c.model_id == row.id))
            connection.execute(train_logs.delete().where(train_logs.c.model_id == row.id))
            connection.execute(train_models.delete().where(train_models.c.id == row.id))
            connection.execute(train_jobs.update().where(train_jobs.c.model_id == row.id).values(payload=""))
            details = {"entity": row.entity, "project": row.project, "name": row.name}
            audit(connection, at, user, "train_model.delete", None, details)
            return found

        return await self._executor.write(work)

    async def checkpoints(self, model_id: str) -> list[CheckpointRow]:
        """The checkpoints of a model, by step."""
        c = train_checkpoints.c
        chosen = sa.select(train_checkpoints).where(c.model_id == model_id).order_by(c.step)
        return await self._executor.read(lambda connection: [_checkpoint(row) for row in connection.execute(chosen)])

    async def add_checkpoint(self, row: CheckpointRow) -> CheckpointRow:
        """List a step; one that is listed already stays as it is, and is returned."""

        def work(connection: sa.Connection) -> CheckpointRow:
            c = train_checkpoints.c
            there = sa.select(train_checkpoints).where(c.model_id == row.model_id, c.step == row.step)
            found = connection.execute(there).first()
            if found is not None:
                return _checkpoint(found)
            connection.execute(train_checkpoints.insert().values(_values(row, "metrics")))
            return row

        return await self._executor.write(work)

    async def delete_checkpoints(
        self, model_id: str, steps: Collection[int], at: int, user: str
    ) -> list[CheckpointRow]:
        """Forget steps of a model; returns those that were there."""

        def work(connection: sa.Connection) -> list[CheckpointRow]:
            c = train_checkpoints.c
            which = sa.and_(c.model_id == model_id, c.step.in_(list(steps)))
            found = [_checkpoint(row) for row in connection.execute(sa.select(train_checkpoints).where(which))]
            connection.execute(train_checkpoints.delete().where(which))
            details = {"model_id": model_id, "steps": [row.step for row in found]}
            audit(connection, at, user, "checkpoint.delete", None, details)
            return found

        return await self._executor.write(work)

    async def add_metrics(self, model_id: str, metrics: dict[str, float]) -> int | None:
        """Merge metrics into those of the newest step; returns the step, None when the model has none."""
        return await self._executor.write(lambda connection: _add_metrics(connection, model_id, metrics))

    async def add_log(self, row: LogRow) -> LogRow:
        """Keep a log and merge its metrics into the newest step, which the returned row names."""

        def work(connection: sa.Connection) -> LogRow:
            step = _add_metrics(connection, row.model_id, row.metrics)
            stored = replace(row, step=step or 0)
            connection.execute(train_logs.insert().values(_values(stored, "metrics")))
            return stored

        return await self._executor.write(work)

    async def logs(self, model_id: str) -> list[LogRow]:
        """What was logged for a model, oldest first."""
        c = train_logs.c
        chosen = sa.select(train_logs).where(c.model_id == model_id).order_by(c.created_at, c.id)
        return await self._executor.read(
            lambda connection: [LogRow(**_loaded(row, "metrics")) for row in connection.execute(chosen)]
        )

    async def _one(self, which: sa.ColumnElement[bool]) -> ModelRow | None:
        def work(connection: sa.Connection) -> ModelRow | None:
            found = connection.execute(sa.select(train_models).where(which)).first()
            return None if found is None else _model(found)

        return await self._executor.read(work)


def _add_metrics(connection: sa.Connection, model_id: str, metrics: dict[str, float]) -> int | None:
    c = train_checkpoints.c
    newest = sa.select(c.id, c.step, c.metrics).where(c.model_id == model_id).order_by(c.step.desc()).limit(1)
    found = connection.execute(newest).first()
    if found is None:
        return None
    merged = orjson.dumps(orjson.loads(found.metrics) | metrics).decode()
    connection.execute(train_checkpoints.update().where(c.id == found.id).values(metrics=merged))
    return int(found.step)


def _named(row: ModelRow) -> Sequence[sa.ColumnElement[bool]]:
    c = train_models.c
    return (c.entity == row.entity, c.project == row.project, c.name == row.name)


def _values(row: Any, json_column: str) -> dict[str, Any]:
    values = {name: getattr(row, name) for name in type(row).__slots__}
    values[json_column] = orjson.dumps(values[json_column]).decode()
    return values


def _loaded(row: sa.Row[Any], json_column: str) -> dict[str, Any]:
    values = dict(row._mapping)
    values[json_column] = orjson.loads(values[json_column])
    return values


def _model(row: sa.Row[Any]) -> ModelRow:
    return ModelRow(**_loaded(row, "lora"))


def _checkpoint(row: sa.Row[Any]) -> CheckpointRow:
    return CheckpointRow(**_loaded(row, "metrics"))
