"""An event loop on a virtual clock, whose tasks belong to machines that can stand still and die at any await."""

import asyncio
import contextlib
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, ContextVar, copy_context
from typing import Any


class Machine:
    """What tasks run on: from its death on none of them takes another step, as none does after `kill -9`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.steps = 0
        self.dies_at: int | None = None
        """The step before which it dies."""
        self.stands_until = 0.0
        """It does nothing before this instant."""
        self.on_death: Callable[[], None] = lambda: None

    def stand(self, until: float) -> None:
        """Stand still until an instant, or as long as it does already: what was put off runs with the rest."""
        self.stands_until = max(self.stands_until, until)

    def die(self) -> None:
        """Die now."""
        if not self.is_dead:
            self.is_dead = True
            self.on_death()


MACHINE: ContextVar[Machine | None] = ContextVar("machine", default=None)
"""On which machine a task runs; None: outside of all."""


class Step:
    """A callback that is due; as `asyncio.Handle`."""

    __slots__ = ("arguments", "callback", "context", "is_cancelled", "machine", "when")

    def __init__(self, when: float, callback: Callable[..., Any], arguments: Any, context: Context | None) -> None:
        self.when_due(when)
        self.callback = callback
        self.arguments = arguments
        self.context = copy_context() if context is None else context
        self.machine = self.context.get(MACHINE)
        self.is_cancelled = False

    def when_due(self, when: float) -> None:
        """Be due at an instant."""
        self.when = when

    def cancel(self) -> None:
        """Never run."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """True once it was cancelled."""
        return self.is_cancelled


class SimulatedTask(asyncio.Task[Any]):
    """A task whose place in a set depends on nothing but the order in which tasks were made."""

    _numbers = itertools.count()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._number = next(SimulatedTask._numbers)
        super().__init__(*arguments, **named)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.AbstractEventLoop):
    """Runs what is due; when nothing is, the clock goes on to the next timer. Threads run at once, in place."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ready: deque[Step] = deque()
        self._timers: list[tuple[float, int, Step]] = []
        self._numbers = itertools.count()
        self.failures: list[str] = []
        """What nobody caught."""
        self.tasks: list[asyncio.Task[Any]] = []
        """Tasks of machines that died; kept, so that nothing of them runs when they are collected."""
        SimulatedTask._numbers = itertools.count()

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        step = Step(self._now, callback, args, context)
        self._ready.append(step)
        return step

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> Any:
        step = Step(when, callback, args, context)
        heapq.heappush(self._timers, (when, next(self._numbers), step))
        return step

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **named: Any) -> Any:  # type: ignore[override]
        task = SimulatedTask(coro, loop=self, **named)
        context = named.get("context")
        if (context.get(MACHINE) if context is not None else MACHINE.get()) is not None:
            self.tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not context["message"].startswith("Task was destroyed"):
            self.failures.append(f"{context['message']}: {context.get('exception')!r}")

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run until a coroutine ends; what else is left is forgotten, and nothing of it runs any more."""
        with self._running():
            task = self.create_task(main)
            while not task.done():
                self._run_next()
            task.result()

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        asyncio._set_running_loop(self)
        try:
            yield
        finally:
            for task in self.tasks:
                with contextlib.suppress(BaseException):
                    task.get_coro().close()  # type: ignore[union-attr]
            asyncio._set_running_loop(None)
            self.tasks.clear()
            self._ready.clear()
            self._timers.clear()

    def _run_next(self) -> None:
        if self._ready:
            step = self._ready.popleft()
        else:
            assert self._timers, "everybody waits for ever"
            when, _, step = heapq.heappop(self._timers)
            if not step.is_cancelled:
                self._now = max(self._now, when)
        if step.is_cancelled:
            return
        machine = step.machine
        if machine is not None:
            if machine.is_dead:
                return
            if machine.stands_until > self._now:
                heapq.heappush(self._timers, (machine.stands_until, next(self._numbers), step))
                return
            machine.steps += 1
            if machine.steps == machine.dies_at:
                machine.die()
                return
        step.context.run(step.callback, *step.arguments)
