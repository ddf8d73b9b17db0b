"""Work in processes that may die of it: what waits for one takes nothing from the rest of the server."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from heddle.evals.scorers import BuiltinScorer, read_builtin
from heddle.ipc.bounded import OWNER, BoundedProcesses, FairSemaphore, TooMuchWork

MODULE = "heddle.evals.scorer_kinds"


def job(pattern: str, output: str = "a" * 40 + "!") -> dict[str, Any]:
    """A search."""
    settings = {"pattern": pattern, "ignore_case": False, "full_match": False}
    return {"kind": "RegexMatchScorer", "output": output, "target": None, "settings": settings}


ENDLESS = job("(a+)+$")
QUICK = job("a", "a")
FOUND = {"score": {"regex_match": True}}


@pytest.fixture
def endless() -> Iterator[BoundedProcesses]:
    """Processes whose work may take minutes."""
    processes = BoundedProcesses(MODULE, cpu_seconds=600)
    yield processes
    processes.close()


def wait_until(is_so: Callable[[], Any]) -> None:
    """Until something is so."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def at_work(processes: BoundedProcesses, count: int = 1) -> None:
    """Until so many processes work."""
    await asyncio.to_thread(wait_until, lambda: sum(bool(turn._process) for turn in processes._at_work) >= count)


def test_closing_ends_what_is_at_work(endless: BoundedProcesses) -> None:
    problems: list[TooMuchWork] = []

    def ask() -> None:
        with pytest.raises(TooMuchWork) as caught:
            endless.ask(ENDLESS)
        problems.append(caught.value)

    worker = threading.Thread(target=ask)
    worker.start()
    wait_until(lambda: endless._at_work)
    endless.close()
    worker.join(60)
    assert len(problems) == 1 and endless.refused == 0, "it was not the work that ended the process"


def test_a_job_that_ended_a_process_is_refused_without_another_one() -> None:
    processes = BoundedProcesses(MODULE, cpu_seconds=0.2)
    for _ in range(3):
        with pytest.raises(TooMuchWork, match=r"needs more than 0\.2 s or too much memory"):
            processes.ask(ENDLESS)
    assert (processes.started, processes.refused) == (1, 3)
    assert processes.ask(QUICK) == FOUND
    assert processes.started == 2
    processes.close()


def test_a_program_that_ended_several_processes_is_refused_whatever_it_is_given() -> None:
    processes = BoundedProcesses(MODULE, cpu_seconds=0.2)
    for length in range(40, 46):
        with pytest.raises(TooMuchWork):
            processes.ask(job("(a+)+$", "a" * length + "!"), "(a+)+$")
    with pytest.raises(TooMuchWork, match="as in an earlier attempt"):
        processes.ask(QUICK, "(a+)+$")
    assert processes.started == 3
    OWNER.set("another")
    assert processes.ask(QUICK, "(a+)+$") == FOUND, "others may have inputs that it is quick with"
    OWNER.set("")
    processes.close()


def test_who_goes_away_ends_the_process_and_frees_its_place(endless: BoundedProcesses) -> None:
    async def main() -> None:
        asking = asyncio.create_task(endless.answer(ENDLESS))
        await at_work(endless)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        async with asyncio.timeout(60):
            assert await endless.answer(QUICK) == FOUND
        assert endless.refused == 0, "nobody knows whether the work was too much"

    asyncio.run(main())


def test_one_owner_leaves_a_place_to_the_others(endless: BoundedProcesses) -> None:
    async def slow() -> None:
        OWNER.set("greedy")
        await endless.answer(job("(a+)+$", "a" * 40 + str(time.monotonic_ns())))

    async def main() -> None:
        asking = [asyncio.create_task(slow()) for _ in range(30)]
        await at_work(endless)
        OWNER.set("modest")
        async with asyncio.timeout(60):
            assert await endless.answer(QUICK) == FOUND
        assert not any(task.done() for task in asking)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert (endless._places._free, len(endless._places._waiting)) == (2, 0) or endless._at_work

    asyncio.run(main())


def test_owners_who_wait_are_served_in_turn() -> None:
    places, order = FairSemaphore(2), []

    def wait(owner: str) -> None:
        OWNER.set(owner)
        places.acquire().add_done_callback(lambda future: order.append(future.result()))

    for owner in ("a", "a", "a", "b", "c", "c"):
        wait(owner)
    assert order == ["a", "b"]
    for owner in ("a", "b", "a", "c"):
        places.release(owner)
    assert order == ["a", "b", "a", "c", "a", "c"]
    OWNER.set("")


def test_answers_are_remembered_up_to_so_many_bytes() -> None:
    processes = BoundedProcesses(MODULE, kept_bytes=100)
    searches = [job("a", "a" * count) for count in range(1, 7)]
    for search in searches:
        assert processes.ask(search) == FOUND
    kept = processes._answers._kept
    assert 0 < len(kept) < 6 and sum(map(len, kept.values())) <= 100
    processes.close()
    assert processes.ask(searches[-1]) == FOUND and processes.started == 1, "no process was asked"


def test_scorers_that_wait_leave_the_threads_of_the_server_alone() -> None:
    made = read_builtin("slow", "", {"_class_name": "RegexMatchScorer", "pattern": "(a+)+$"})
    assert isinstance(made, BuiltinScorer)

    async def nobody(_: object) -> dict[str, object]:
        raise AssertionError("no model is asked")

    async def run() -> int:
        scores = [asyncio.create_task(made.score("a" * (40 + n) + "!", {}, nobody)) for n in range(40)]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(lambda: None)
        done = sum(score.done() for score in scores)
        for score in scores:
            score.cancel()
        await asyncio.gather(*scores, return_exceptions=True)
        return done

    assert asyncio.run(run()) < 20, "a thread was free long before the scores were there"
