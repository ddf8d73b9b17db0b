"""The CPU seconds of an improvement: counted while its steps are at work, also when its job leaves its place."""

import asyncio
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.improve.timeline import BudgetSpent, Meter, Timeline
from heddle.ipc import usage
from heddle.ipc.usage import CpuMeter
from heddle.wire.jsontypes import Json

BURN = """
import sys, time
while time.process_time() < 0.3:
    pass
print(time.process_time(), flush=True)
sys.stdin.read()
"""


def test_a_timeline_counts_what_the_meter_shows() -> None:
    """A step that goes on elsewhere counts what was used between, a watch nothing; in the end the budget is spent."""
    stored: list[Json] = []
    clock = iter(range(0, 1000, 10))
    meter = Meter(lambda: float(next(clock)))
    job: Any = SimpleNamespace(id="one", progress={})

    async def store(progress: Json) -> None:
        stored.append(progress)

    run: Any = SimpleNamespace(progress=store)

    async def run_steps() -> None:
        first = Timeline(job, run, 1000, meter)

        async def leave() -> Json:
            raise InterruptedError

        async def end() -> Json:
            return {}

        with pytest.raises(InterruptedError):
            await first.do("training", leave, 1)
        begun = first.steps[0]["seconds"]
        job.progress = stored[-1]
        again = Timeline(job, run, 1000, meter)
        await again.do("training", end, 1)
        assert again.steps[0]["seconds"] > begun + 10
        spent = again.spent
        await again.do("watch", end)
        assert again.steps[1]["seconds"] == 0 and spent > 0
        short = Timeline(job, run, 10, meter)
        with pytest.raises(BudgetSpent):
            short.check_budget()

    asyncio.run(run_steps())


def test_processes_count_while_they_live_and_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_FRESH_SECONDS", 0)
    meter = CpuMeter()
    before = meter.read()
    # A process below a process.
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        used = float(process.stdout.readline())
        living = meter.read() - before
    ended = meter.read() - before
    # The system counts in hundredths.
    assert ended >= living >= used - 0.05 >= 0.25


@pytest.mark.thorough
def test_what_processes_took_with_them_is_made_up_for_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that nobody collects takes its seconds with it; those of the next one count all the same."""
    monkeypatch.setattr(usage, "_FRESH_SECONDS", 0)
    meter = CpuMeter()
    ignoring = "import signal, subprocess, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN);"
    command = [sys.executable, "-c", f"{ignoring} subprocess.run([sys.executable, '-c', {BURN!r}])"]
    for _ in range(2):
        before = meter.read()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert meter.read() - before >= 0.25
        meter.read()


def test_own_seconds_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "_FRESH_SECONDS", 1e9)
    meter = CpuMeter()
    before, began = meter.read(), time.process_time()
    while time.process_time() == began:
        pass
    assert meter.read() > before
