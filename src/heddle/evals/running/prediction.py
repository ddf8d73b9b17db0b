"""One row, answered once and scored."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from heddle.errors import HeddleError, InvalidRequest
from heddle.evals.model import Model
from heddle.evals.running.asking import Asker, Counted
from heddle.evals.scorers.base import Scorer
from heddle.wire import times
from heddle.wire.jsontypes import Json


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer that another run had stored."""

    output: Any
    seconds: float
    problem: str | None


@dataclass(frozen=True, slots=True)
class Case:
    """One row and trial of a run."""

    key: str
    """Its place in the run, by which the ids of its calls are made."""
    example: Any
    """The internal ref of the row, or the row."""
    value: Json
    trial: int = 0
    answered: Answered | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """What one scorer said, or why it could not; instants in microseconds."""

    scorer: Scorer
    started_at: int
    ended_at: int
    value: Any
    usage: dict[str, Json]
    problem: HeddleError | None = None


@dataclass(slots=True)
class Prediction:
    """An answer to a case and its scores; instants in microseconds."""

    case: Case
    started_at: int
    ended_at: int
    """Of the answer."""
    output: Any = None
    usage: dict[str, Json] = field(default_factory=dict)
    problem: HeddleError | None = None
    scores: list[Score] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long the answer took."""
        return (self.ended_at - self.started_at) / times.SECOND


class Predictor(Protocol):
    """Answers cases."""

    async def predict(self, case: Case) -> Prediction:
        """The answer, without scores; a failure is part of it."""
        ...


class Asking:
    """Lets a model answer."""

    def __init__(self, model: Model, ask: Asker) -> None:
        self._model = model
        self._ask = ask

    async def predict(self, case: Case) -> Prediction:
        """The model's answer."""
        counted, started = Counted(self._ask), times.now()
        output, problem = None, None
        try:
            answer = await counted(self._model.inputs(case.value, case.trial))
            output = self._model.output(answer, case.value)
        except HeddleError as error:
            problem = error
        return Prediction(case, started, max(times.now(), started), output, counted.usage, problem)


class Repeating:
    """Gives the answers that are stored; no model is asked."""

    async def predict(self, case: Case) -> Prediction:
        """The stored answer, as long as it took then."""
        assert case.answered is not None, "only runs over stored answers repeat"
        ended, stored = times.now(), case.answered
        # What failed then is the row's own matter now: nobody is asked, so nobody can be out of reach.
        problem = InvalidRequest(stored.problem) if stored.problem is not None else None
        return Prediction(case, ended - int(stored.seconds * times.SECOND), ended, stored.output, {}, problem)


async def scored(output: Any, row: Json, scorers: Sequence[Scorer], ask: Asker) -> list[Score]:
    """What every scorer says of an answer; a failure is part of it."""
    return [await _score(scorer, output, row, Counted(ask)) for scorer in scorers]


async def _score(scorer: Scorer, output: Any, row: Json, counted: Counted) -> Score:
    started, value, problem = times.now(), None, None
    try:
        value = await scorer.score(output, row, counted)
    except HeddleError as error:
        problem = error
    return Score(scorer, started, max(times.now(), started), value, counted.usage, problem)
