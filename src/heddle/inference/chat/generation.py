"""Runs the choices of one request side by side and hands on what they add, in the order in which it comes."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from heddle.inference.chat.choice import Choice, Delta
from heddle.inference.chat.response import Facts
from heddle.inference.engine.base import (
    Engine,
    EngineBusy,
    EngineFailed,
    RequestRefused,
    TokenEvent,
    TokenRequest,
    as_answer,
)

Step = tuple[int, list[Delta]]
"""The index of a choice, and what each of its new tokens added."""


class Generation:
    """The choices of one request at work; close it in any case."""

    def __init__(
        self, engine: Engine, requests: Sequence[TokenRequest], choices: Sequence[Choice], facts: Facts
    ) -> None:
        self._engine = engine
        self._requests = requests
        self.choices = choices
        self.facts = facts
        self.started = time.perf_counter()
        self.first_token_seconds: float | None = None
        self._steps = self._merged() if len(requests) > 1 else self._one(0)
        self._ahead: list[Step] = []

    async def begin(self) -> None:
        """Wait for the first tokens, so that what fails before them is an ordinary answer."""
        async for step in self._steps:
            self._ahead.append(step)
            break

    async def steps(self) -> AsyncIterator[Step]:
        """What comes, until every choice has its finish reason; raises HeddleError."""
        while self._ahead:
            yield self._ahead.pop(0)
        async for step in self._steps:
            yield step

    async def finish(self) -> None:
        """Run to the end without looking at the parts."""
        async for _ in self.steps():
            pass

    async def close(self) -> None:
        """Abort what still runs."""
        await self._steps.aclose()

    async def _one(self, index: int) -> AsyncGenerator[Step]:
        choice = self.choices[index]
        events = self._engine.generate(self._requests[index])
        try:
            async with contextlib.aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    self._note(index, event)
                    yield index, choice.feed(event)
                    if choice.finish_reason is not None:
                        return
        except (EngineFailed, EngineBusy, RequestRefused) as error:
            raise as_answer(error) from error

    def _note(self, index: int, event: TokenEvent) -> None:
        if self.first_token_seconds is None:
            self.first_token_seconds = time.perf_counter() - self.started
        if index == 0:
            self.facts.cached_tokens = event.cached_tokens or self.facts.cached_tokens
            self.facts.prompt_logprobs = event.prompt_logprobs or self.facts.prompt_logprobs
            if event.kv_transfer_params is not None:
                self.facts.kv_transfer_params = dict(event.kv_transfer_params)

    async def _merged(self) -> AsyncGenerator[Step]:
        """All choices at once; the first failure ends them all."""
        waiting: asyncio.Queue[Step | Exception | None] = asyncio.Queue()

        async def work(index: int) -> None:
            try:
                async with contextlib.aclosing(self._one(index)) as steps:
                    async for step in steps:
                        waiting.put_nowait(step)
            except Exception as error:  # handed to the one who waits, who raises it
                waiting.put_nowait(error)
            finally:
                waiting.put_nowait(None)

        tasks = [asyncio.create_task(work(index)) for index in range(len(self._requests))]
        try:
            running = len(tasks)
            while running:
                step = await waiting.get()
                if step is None:
                    running -= 1
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
