"""Servers on a virtual clock keep their promises whatever goes wrong; planted faults are found; a seed replays."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.faults import FAULTS, Patches, planted
from tests.simulation.run import SHORT_HOURS, explain, simulate
from tests.simulation.site import Database, Site
from tests.support.selection import with_breadth

ROOT = Path(__file__).parent.parent.parent
SEEDS = with_breadth(range(13, 29), keep=2)
MOST_SEEDS = 40
"""A fault that so many short simulations do not find is one that they cannot find."""


@pytest.mark.parametrize("seed", [int(os.environ["HEDDLE_SIM_SEED"])] if "HEDDLE_SIM_SEED" in os.environ else SEEDS)
def test_servers_keep_their_promises(seed: int) -> None:
    hours = float(os.environ.get("HEDDLE_SIM_HOURS", SHORT_HOURS))
    outcome = simulate(seed, hours)
    assert not outcome.problems, explain(outcome, hours)
    assert outcome.hours > hours and outcome.events > 100, "clients and servers did something"


@pytest.mark.thorough
def test_a_seed_is_the_same_simulation_in_every_process() -> None:
    program = "from tests.simulation.run import simulate; print(simulate(16, 0.1).digest)"
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
    other = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert simulate(16, 0.1).digest == other.stdout.strip()
    assert simulate(17, 0.1).digest != other.stdout.strip()


@pytest.mark.parametrize("fault", with_breadth(FAULTS))
def test_a_planted_fault_is_found(fault: Callable[[], Patches]) -> None:
    with planted(fault):
        found = next((seed for seed in range(100, 100 + MOST_SEEDS) if simulate(seed).problems), None)
    assert found is not None, f"{fault.__name__} was not found"
    assert not simulate(found).problems, "without it the same seed finds nothing"


def test_a_server_with_nothing_to_do_asks_once_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    site, counts = Site(13, 0.1), Counter[str]()
    site.look_seconds, site.settings = 1.0, replace(site.settings, alert_interval=1e6)
    run = Database.run

    def count(self: Database, work: Callable[[Any], Any], actor: str = "") -> Any:
        counts["trips"] += 1
        return run(self, work, actor)

    async def main() -> None:
        await site._prepare()
        site.servers[0].start()
        await asyncio.sleep(100)
        before = counts["trips"]
        await asyncio.sleep(100)
        counts["idle"] = counts["trips"] - before

    monkeypatch.setattr(Database, "run", count)
    with site._patched():
        site.loop.run(main())
    shutil.rmtree(site.folder)
    assert counts["idle"] <= 100 + 100 // 10, "one read for queues, monitors and turn; and the turn is kept"
