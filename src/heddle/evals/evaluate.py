"""Running an evaluation: every row is answered and scored, so many at a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from heddle.auth import Caller
from heddle.errors import Busy, HeddleError
from heddle.evals.plan import Plan, Row
from heddle.evals.scorers import number_of
from heddle.wire.evaluations import Sampling
from heddle.wire.inference import Chat

Json = dict[str, Any]
PARALLEL = 20
"""As many rows as SDKs evaluate at the same time by default."""
_PATIENCE_SECONDS = 60.0
_NOT_THE_ROWS_FAULT = frozenset((401, 403, 404, 429))

Told = Callable[["Prediction"], Awaitable[None]]


@dataclass(slots=True)
class Prediction:
    """One row, answered once and scored."""

    row: Row
    place: int
    trial: int
    started_at: datetime
    seconds: float = 0.0
    output: str | None = None
    scores: Json = field(default_factory=dict)
    usage: Json | None = None
    exception: str | None = None

    def mean(self, scorers: int) -> float:
        """The mean score, between 0 and 1 for built-in scorers; a failed answer counts 0."""
        numbers = [number_of(value) or 0.0 for value in self.scores.values()]
        return sum(numbers) / scorers


class Model:
    """A chat model that answers rows, and the models that judge its answers."""

    def __init__(self, chat: Chat, name: str, caller: Caller, project: str, sampling: Sampling) -> None:
        self._chat = chat
        self._caller = caller
        self._project = project
        self._fields: Json = {"model": name, "temperature": sampling.temperature}
        if sampling.max_tokens is not None:
            self._fields["max_tokens"] = sampling.max_tokens

    async def answer(self, row: Row, seed: int) -> Json:
        """The `chat.completion` of a row; raises HeddleError."""
        tools = {"tools": row.tools} if row.tools else {}
        return await self.ask({**self._fields, "messages": row.messages, "seed": seed, **tools})

    async def ask(self, body: Json) -> Json:
        """The answer to any request; waits a while where the server is busy. Raises HeddleError."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                answer = await self._chat.complete(body, self._caller, self._project, traced=True)
            except Busy as busy:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(min(float(busy.headers.get("Retry-After", 1)), 1.0))
                continue
            assert isinstance(answer, Mapping), "no stream was asked for"
            return dict(answer)


async def evaluate(plan: Plan, model: Model, told: Told) -> list[Prediction]:
    """Answer and score every row `trials` times, and tell about each; in the order of the rows, then the trials.

    A row that the model refuses counts as failed. Raises HeddleError when the model cannot be asked at all.
    """
    free = asyncio.Semaphore(PARALLEL)

    async def one(place: int, trial: int) -> Prediction:
        async with free:
            prediction = await _predict(plan, model, place, trial)
            await told(prediction)
            return prediction

    tasks: list[asyncio.Task[Prediction]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for place in range(len(plan.rows)):
                tasks += [group.create_task(one(place, trial)) for trial in range(plan.trials)]
    except ExceptionGroup as errors:
        raise _first(errors) from None
    return [task.result() for task in tasks]


async def _predict(plan: Plan, model: Model, place: int, trial: int) -> Prediction:
    row = plan.rows[place]
    prediction = Prediction(row, place, trial, datetime.now(UTC))
    started = time.perf_counter()
    try:
        answer = await model.answer(row, trial)
        prediction.seconds = time.perf_counter() - started
        prediction.output = str(answer["choices"][0]["message"].get("content") or "")
        prediction.usage = answer.get("usage")
        for scorer in plan.scorers:
            prediction.scores[scorer.name] = await scorer.score(prediction.output, row.value, model.ask)
    except HeddleError as error:
        if error.status >= 500 or error.status in _NOT_THE_ROWS_FAULT:
            raise
        prediction.exception = error.reason
    return prediction


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
