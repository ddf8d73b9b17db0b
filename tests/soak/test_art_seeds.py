"""The ART client's whole loop with three seeds: learning is no luck."""

import json
from pathlib import Path

import pytest

from tests.support.art import SOAK, art_client, check_loop
from tests.support.server import HeddleProcess

pytestmark = [pytest.mark.thorough, pytest.mark.soak, pytest.mark.client]


@pytest.mark.skipif(not SOAK, reason="one seed is in tests/clients/test_art.py; three run with HEDDLE_SOAK=1")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_loop_with_another_seed(seed: int, project: str, tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data") as process:
        art = art_client(process.url, project, tmp_path)
        seen = art.run("loop.py", timeout=400, SCENARIO_LOOP=json.dumps({"seed": seed}))
        check_loop(seen, project)
        rewards = [step["reward"] for step in seen["steps"]]
        print(f"\nseed {seed}: reward {rewards[0]:.3f} -> {sum(rewards[-3:]) / 3:.3f}, {seen['wall_s']:.1f} s")
        assert "Traceback" not in process.log()
