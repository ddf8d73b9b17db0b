"""Runs simulations: one with its seed, or many at a time in processes of their own."""

import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

from heddle.http.memory import collect_seldom
from tests.simulation.site import Site

SHORT_HOURS = 0.4
"""A time of work for clients and faults, and what servers need to end it."""


@dataclass(frozen=True)
class Outcome:
    """What came of one simulation; two of one seed are equal."""

    seed: int
    hours: float
    """Simulated, with the end in which nothing goes wrong."""
    events: int
    digest: str
    """Of every event and its instant."""
    problems: tuple[str, ...]
    last: str
    """The last events."""


def simulate(seed: int, hours: float = SHORT_HOURS) -> Outcome:
    """Simulate so many hours of faults."""
    site = Site(seed, hours)
    problems = site.checks.violations
    try:
        site.run()
    except Exception as error:
        problems.append(f"the simulation ended: {error!r}")
    last = "\n".join(list(site.lines)[-60:])
    return Outcome(seed, site.loop.time() / 3600, site.count, site.digest.hexdigest(), tuple(problems[:10]), last)


def explain(outcome: Outcome, hours: float = SHORT_HOURS) -> str:
    """What went wrong, and how to see it again."""
    again = f"HEDDLE_SIM_SEED={outcome.seed} HEDDLE_SIM_HOURS={hours:g} pytest tests/simulation -k promises"
    return "\n".join((outcome.last, *outcome.problems, f"again with: {again}"))


def simulate_many(first: int, hours: float, wanted_hours: float) -> list[Outcome]:
    """Simulate seeds from one on, on every core, until so many hours are simulated or a promise is broken."""
    done: list[Outcome] = []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ProcessPoolExecutor(cores, get_context("spawn"), initializer=collect_seldom) as pool:
        waiting = {pool.submit(simulate, first + number, hours) for number in range(cores)}
        following = first + cores
        while waiting:
            ended = next(as_completed(waiting))
            waiting.discard(ended)
            done.append(ended.result())
            is_enough = sum(outcome.hours for outcome in done) + len(waiting) * hours >= wanted_hours
            if not is_enough and not done[-1].problems:
                waiting.add(pool.submit(simulate, following, hours))
                following += 1
    return done
