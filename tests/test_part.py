"""What holds in each part of the tests."""

import gc
import os

import pytest

from tests.support import selection


def test_torch_is_imported_in_its_own_part_alone(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--part") in (None, "torch"):
        pytest.skip("only the parts beside torch's leave it out")
    has_torch = request.config.stash[selection.HAS_TORCH]
    assert not has_torch, "a test file imports torch at its top: list it in tests/support/selection.py"


def test_threads_that_wait_take_no_core() -> None:
    assert os.environ["OMP_WAIT_POLICY"].upper() == "PASSIVE", "torch reads it when it is imported"


def test_the_collector_leaves_out_what_was_imported() -> None:
    assert gc.isenabled() and gc.get_freeze_count() > 0
