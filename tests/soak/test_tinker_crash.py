"""`kill -9` again and again in a loop of Tinker's protocol: the same results and the same bytes as without."""

import os
from pathlib import Path
from random import Random

import pytest

from tests.support.server import ParentProcess
from tests.support.tinker_run import check_kills

KILLS = 20 if os.environ.get("HEDDLE_SOAK") == "1" else 4
pytestmark = [pytest.mark.thorough, pytest.mark.soak]


def test_twenty_kills(tmp_path: Path) -> None:
    """Server and trainer in turns, in any request."""
    random, rounds = Random(3), KILLS
    counts = sorted(random.randrange(1, rounds * 5) for _ in range(KILLS))
    kills = [(count, ("server", "trainer")[number % 2]) for number, count in enumerate(counts)]
    check_kills(lambda name: ParentProcess(tmp_path / name), rounds, kills)
