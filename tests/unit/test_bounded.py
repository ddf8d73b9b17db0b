"""Work in processes that may die of it: what waits for one takes nothing from the rest of the server."""

import asyncio
import threading
import time

from heddle.bounded import BoundedProcesses
from heddle.evals.scorers.builtin import BuiltinScorer, builtin

ENDLESS = {"kind": "RegexMatchScorer", "output": "a" * 40 + "!", "target": None}
ENDLESS |= {"settings": {"pattern": "(a+)+$", "ignore_case": False, "full_match": False}}


def test_closing_ends_what_is_at_work() -> None:
    processes = BoundedProcesses("heddle.evals.scorers.process", cpu_seconds=600)
    answers: list[object] = []
    worker = threading.Thread(target=lambda: answers.append(processes.ask(ENDLESS)))
    worker.start()
    deadline = time.monotonic() + 60
    while not processes._at_work and time.monotonic() < deadline:
        time.sleep(0.01)
    processes.close()
    worker.join(60)
    assert answers == [None]


def test_scorers_that_wait_leave_the_threads_of_the_server_alone() -> None:
    made = builtin("slow", "", {"_class_name": "RegexMatchScorer", "pattern": "(a+)+$"})
    assert isinstance(made, BuiltinScorer)

    async def nobody(_: object) -> dict[str, object]:
        raise AssertionError("no model is asked")

    async def run() -> int:
        scores = [asyncio.create_task(made.score("a" * 40 + "!", {}, nobody)) for _ in range(40)]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(lambda: None)
        done = sum(score.done() for score in scores)
        for score in scores:
            score.cancel()
        await asyncio.gather(*scores, return_exceptions=True)
        return done

    assert asyncio.run(run()) < 20, "a thread was free long before the scores were there"
