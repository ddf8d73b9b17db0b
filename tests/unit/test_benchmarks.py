"""Benchmarks start what users start, and say how sure their ratios are."""

import random
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks import compare, support

FOLDER = Path(support.__file__).parent


def test_no_benchmark_forks_a_server_that_has_imported_everything(tmp_path: Path) -> None:
    for path in FOLDER.rglob("*.py"):
        if path.name != "support.py":
            assert not re.search(r"HeddleProcess|zygote", path.read_text()), path
    with support.Heddle(tmp_path / "data", model="none") as server:
        assert isinstance(server.process, subprocess.Popen)


def test_the_interval_of_a_median() -> None:
    with pytest.raises(ValueError, match="5 values are too few"):
        compare.median_interval([1, 2, 3, 4, 5])
    # By the binomial distribution of 11 values: one at each end lies outside.
    assert compare.median_interval(list(range(11))) == (1, 5, 9)
    chance = random.Random(1)
    hits = 0
    for _ in range(400):
        low, _, high = compare.median_interval([chance.expovariate(1) for _ in range(11)])
        hits += low <= 0.6931 <= high
    assert 375 <= hits <= 400
