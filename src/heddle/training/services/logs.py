"""Trajectories that clients log: kept as they came, with their figures on the model's newest checkpoint."""

from heddle.auth import Caller
from heddle.errors import NotFound
from heddle.store.control.training import LogRow, ModelRow, TrainModels
from heddle.training.bodies.intake import Taken
from heddle.wire import ids, times


class TrainingLogs:
    """The logs of models."""

    def __init__(self, models: TrainModels) -> None:
        self._models = models

    async def add(self, model: ModelRow, taken: Taken, caller: Caller) -> LogRow:
        """Keep a log whose body is durable already; its metrics join those of the newest checkpoint."""
        assert taken.key is not None
        row = LogRow(
            id=ids.uuid7(),
            model_id=model.id,
            step=0,
            split=taken.head["split"],
            metrics=taken.metrics,
            payload=taken.key,
            groups=taken.groups,
            trajectories=taken.trajectories,
            created_at=times.now(),
            created_by=caller.user,
        )
        return await self._models.add_log(row)

    async def of_model(self, model: ModelRow) -> list[LogRow]:
        """What was logged for a model, oldest first."""
        return await self._models.logs(model.id)

    async def find(self, model: ModelRow, log_id: str) -> LogRow:
        """One log of a model; raises NotFound."""
        for row in await self._models.logs(model.id):
            if row.id == log_id.lower():
                return row
        raise NotFound("Log not found")
