"""A thousand simulated hours of two to five servers, faults and all; the short form is tests/simulation."""

import os
import time

import pytest

from tests.simulation.run import explain, simulate, simulate_many

pytestmark = pytest.mark.soak
HOURS = 20.0
"""Of one seed."""


@pytest.mark.skipif(not os.environ.get("HEDDLE_SOAK"), reason="runs for ten minutes with HEDDLE_SOAK=1 (make soak)")
def test_a_thousand_hours() -> None:
    began = time.monotonic()
    done = simulate_many(int(os.environ.get("HEDDLE_SIM_SEED", "1000")), HOURS, 1000.0)
    hours, seconds = sum(outcome.hours for outcome in done), time.monotonic() - began
    print(f"\n{len(done)} seeds from {done[0].seed}, {hours:.0f} simulated hours in {seconds:.0f} s,", end=" ")
    print(f"{sum(outcome.events for outcome in done)} events")
    for outcome in done:
        assert not outcome.problems, explain(outcome, HOURS)
    assert hours >= 1000


@pytest.mark.skipif(not os.environ.get("HEDDLE_SOAK"), reason="HEDDLE_SOAK=1 (make soak)")
def test_hours_of_a_seed_are_the_same_again() -> None:
    """Caches that last minutes of the real clock would show only after hours of the virtual one."""
    first, _, again = (simulate(seed, 3.0).digest for seed in (1005, 1003, 1005))
    assert first == again
