"""Answers of a model and scores of them, with patience: what may pass is tried again, and the tokens are counted."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from heddle.auth import Caller
from heddle.errors import HeddleError, InvalidRequest, QuotaReached
from heddle.evals.objects import DEEPEST_ANSWER, ChatAnswer, ChatRequest, Model
from heddle.evals.scorers import Scorer, is_number
from heddle.wire import jsontext, times
from heddle.wire.inference import Completions, ProviderFailed
from heddle.wire.jsontypes import Json

PATIENCE_SECONDS = 60.0
"""How long an answer is tried to be had."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_MAY_PASS = frozenset((408, 425, 429))
_NEVER_PASSES = frozenset((501, 507))
_REFUSES_EVERYTHING = frozenset((401, 402, 403, 404, 501))


TokenCounts = dict[str, dict[str, int]]
"""Counts of requests and tokens by model."""


class Asker:
    """Asks models for one caller in one project."""

    def __init__(self, completions: Completions, caller: Caller, project: str) -> None:
        self._completions = completions
        self._caller = caller
        self._project = project

    async def __call__(self, inputs: ChatRequest) -> ChatAnswer:
        """The answer to the inputs of a completion; raises HeddleError when patience or hope is at its end."""
        deadline, pause = time.monotonic() + PATIENCE_SECONDS, _FIRST_PAUSE
        while True:
            try:
                answer = await self._completions.create(inputs, self._caller, self._project)
                if jsontext.depth(answer) > DEEPEST_ANSWER:
                    raise InvalidRequest(f"The model's answer is nested deeper than {DEEPEST_ANSWER} levels")
                return answer
            except HeddleError as error:
                wait = _wanted_pause(error) or pause * random.uniform(0.5, 1.0)
                if not may_pass(error) or time.monotonic() + wait > deadline:
                    raise
            await asyncio.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)


class Counted:
    """An asker that counts the tokens of what goes through it, by model."""

    def __init__(self, ask: Asker) -> None:
        self._ask = ask
        self.usage: TokenCounts = {}

    async def __call__(self, inputs: ChatRequest) -> ChatAnswer:
        """The answer; raises HeddleError."""
        answer = await self._ask(inputs)
        usage = answer.get("usage")
        if isinstance(usage, dict):
            name = _name(str(inputs["model"]), answer.get("model"))
            entry = self.usage.setdefault(name, {"requests": 0, **dict.fromkeys(_COUNTS, 0)})
            entry["requests"] += 1
            for key in _COUNTS:
                count = usage.get(key)
                # JSON knows integers beyond every count.
                entry[key] += count if isinstance(count, int) and is_number(count) else 0
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            if isinstance(cached, int) and cached:
                entry["cache_read_input_tokens"] = entry.get("cache_read_input_tokens", 0) + cached
        return answer


def may_pass(error: HeddleError) -> bool:
    """True for a failure that the same request may not meet a little later."""
    if isinstance(error, ProviderFailed) and not error.answered:
        return True
    status = _status(error)
    return status in _MAY_PASS or (status >= 500 and status not in _NEVER_PASSES)


def is_not_the_rows(error: HeddleError) -> bool:
    """True for a failure that any other row would meet as well: the model is not there, or nobody answers."""
    return may_pass(error) or _status(error) in _REFUSES_EVERYTHING


def _status(error: HeddleError) -> int:
    return error.answered if isinstance(error, ProviderFailed) else error.status


def _wanted_pause(error: HeddleError) -> float:
    """In seconds; providers say them, parts of them, or a date (RFC 9110, 10.2.3). 0 where nothing is said."""
    said = error.headers.get("Retry-After", "")
    try:
        found = float(said) if said[:1].isdecimal() else parsedate_to_datetime(said).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return max(found, 0.0)


def _name(asked: str, answered: Any) -> str:
    """What tokens are counted under: the model as it was asked for, without its provider, if it answers to that."""
    if not isinstance(answered, str) or not answered:
        return asked
    names = (asked, asked.rpartition("::")[2], asked.partition("/")[2])
    return next((name for name in names if name and answered.startswith(name)), answered)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
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
    answered: StoredAnswer | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """What one scorer said, or why it could not; instants in microseconds."""

    scorer: Scorer
    started_at: int
    ended_at: int
    value: Any
    usage: TokenCounts
    problem: HeddleError | None = None


@dataclass(slots=True)
class Prediction:
    """An answer to a case and its scores; instants in microseconds."""

    case: Case
    started_at: int
    ended_at: int
    """Of the answer."""
    output: Any = None
    usage: TokenCounts = field(default_factory=dict)
    problem: HeddleError | None = None
    scores: list[Score] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long the answer took."""
        return (self.ended_at - self.started_at) / times.SECOND


Predict = Callable[[Case], Awaitable[Prediction]]
"""The answer to a case, without scores; a failure is part of it. Raises QuotaReached."""


def ask_model(model: Model, ask: Asker) -> Predict:
    """Let a model answer."""

    async def predict(case: Case) -> Prediction:
        counted, started = Counted(ask), times.now()
        output, problem = None, None
        try:
            answer = await counted(model.inputs(case.value, case.trial))
            output = model.output(answer, case.value)
        except QuotaReached:
            raise
        except HeddleError as error:
            problem = error
        return Prediction(case, started, max(times.now(), started), output, counted.usage, problem)

    return predict


async def repeat_answer(case: Case) -> Prediction:
    """The answer that is stored, as long as it took then; no model is asked."""
    assert case.answered is not None, "only runs over stored answers repeat"
    ended, stored = times.now(), case.answered
    # What failed then is the row's own matter now: nobody is asked, so nobody can be out of reach.
    problem = InvalidRequest(stored.problem) if stored.problem is not None else None
    return Prediction(case, ended - int(stored.seconds * times.SECOND), ended, stored.output, {}, problem)


async def score_output(output: Any, row: Json, scorers: Sequence[Scorer], ask: Asker) -> list[Score]:
    """What every scorer says of an answer; a failure is part of it. Raises QuotaReached."""
    return [await _score_one(scorer, output, row, Counted(ask)) for scorer in scorers]


async def _score_one(scorer: Scorer, output: Any, row: Json, counted: Counted) -> Score:
    started, value, problem = times.now(), None, None
    try:
        value = await scorer.score(output, row, counted)
    except QuotaReached:
        raise
    except HeddleError as error:
        problem = error
    return Score(scorer, started, max(times.now(), started), value, counted.usage, problem)
