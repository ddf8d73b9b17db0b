"""Asking a model with patience: what may pass is tried again, and the tokens are counted."""

import asyncio
import random
import time
from typing import Any

from heddle.auth import Caller
from heddle.errors import HeddleError, InvalidRequest
from heddle.evals.model import DEEPEST_ANSWER
from heddle.wire import jsontext
from heddle.wire.inference import Completions, ProviderFailed
from heddle.wire.jsontypes import Json

PATIENCE_SECONDS = 60.0
"""How long an answer is tried to be had."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_MAY_PASS = frozenset((408, 425, 429))
_NEVER_PASSES = frozenset((501, 507))
_REFUSES_EVERYTHING = frozenset((401, 402, 403, 404, 501))


class Asker:
    """Asks models for one caller in one project."""

    def __init__(self, completions: Completions, caller: Caller, project: str) -> None:
        self._completions = completions
        self._caller = caller
        self._project = project

    async def __call__(self, inputs: Json) -> Json:
        """The answer to the inputs of a completion; raises HeddleError when patience or hope is at its end."""
        deadline, pause = time.monotonic() + PATIENCE_SECONDS, _FIRST_PAUSE
        while True:
            try:
                return _storable(await self._completions.create(inputs, self._caller, self._project))
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
        self.usage: dict[str, Json] = {}

    async def __call__(self, inputs: Json) -> Json:
        """The answer; raises HeddleError."""
        answer = await self._ask(inputs)
        usage = answer.get("usage")
        if isinstance(usage, dict):
            name = _name(str(inputs["model"]), answer.get("model"))
            entry = self.usage.setdefault(name, {"requests": 0, **dict.fromkeys(_COUNTS, 0)})
            entry["requests"] += 1
            for key in _COUNTS:
                entry[key] += usage[key] if isinstance(usage.get(key), int) else 0
            details = usage.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            if isinstance(cached, int) and cached:
                entry["cache_read_input_tokens"] = entry.get("cache_read_input_tokens", 0) + cached
        return answer


def _storable(answer: Json) -> Json:
    """The answer; raises InvalidRequest for one that no call could hold."""
    if jsontext.depth(answer) > DEEPEST_ANSWER:
        raise InvalidRequest(f"The model's answer is nested deeper than {DEEPEST_ANSWER} levels")
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
    said = error.headers.get("Retry-After", "")
    return float(said) if said.isdecimal() and len(said) < 9 else 0.0


def _name(asked: str, answered: Any) -> str:
    """What tokens are counted under: the model as it was asked for, without its provider, if it answers to that."""
    if not isinstance(answered, str) or not answered:
        return asked
    names = (asked, asked.rpartition("::")[2], asked.partition("/")[2])
    return next((name for name in names if name and answered.startswith(name)), answered)
