"""Two processes equal one: the same step under torchrun's variables, with gloo, and with layers shared by FSDP2."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from heddle.training.config import DpoConfig, RlConfig, SftConfig  # noqa: E402
from heddle.training.schemas.trajectories import check_pairs  # noqa: E402
from heddle.training.trainer.ranks import part_of  # noqa: E402
from tests.unit.training.trainer.jobs import Sampler, groups_of, make_task, perform  # noqa: E402
from tests.unit.training.trainer.rows import make_row  # noqa: E402
from tests.unit.training.trainer.test_dpo import ROWS as PAIRS  # noqa: E402
from tests.unit.training.trainer.test_sft import CHAT  # noqa: E402

ROOT = Path(__file__).parents[4]
CLOSE = 1e-5
"""Of steps of 1e-3: Adam divides by the size of a gradient, and where that is near zero the order of sums shows."""
PROGRAM = """
import json, sys
from heddle.training.messages import Task, Stepped
from heddle.training.trainer.ranks import join_ranks
from heddle.training.trainer.run import PolicyCache, run_task
from tests.unit.training.trainer.jobs import RENDERER

ranks = join_ranks()
tasks = json.loads(sys.argv[1])
for values in tasks:
    steps = []
    run_task(Task(**values), RENDERER, steps.append, lambda: False, PolicyCache(spread=values['kind'] == 'rl'), ranks)
    if ranks.rank == 0:
        print(json.dumps([step.data for step in steps if isinstance(step, Stepped)]))
"""


GROUP_OF_THE_STARTER = """
import json, sys
from torch import distributed
from heddle.training.trainer.ranks import join_ranks

distributed.init_process_group("gloo")
ranks = join_ranks()
shared = ranks.share([ranks.count] if ranks.rank == 0 else None)
ranks.leave()
print(json.dumps([shared, distributed.is_initialized()]))
distributed.destroy_process_group()
"""


@pytest.mark.parametrize("count", [2, 3, 7])
def test_every_trained_token_has_one_rank(count: int) -> None:
    row = make_row([(30, [12, 14, 9]), (25, [10, 11]), (0, [50])])
    row.tokens = np.arange(len(row.tokens))
    parts = [part_of(row, rank, count) for rank in range(count)]
    trained = [token for part in parts for token in part.tokens[part.mask].tolist()]
    assert sorted(trained) == row.tokens[row.mask].tolist()
    for part in parts:
        assert len(part.tokens) > 0
        for number in set(part.segments.tolist()):
            # A segment is whole where it is, and its parent stands before it.
            assert part.tokens[part.segments == number].tolist() == row.tokens[row.segments == number].tolist()
            assert set(part.parents[part.segments == number].tolist()) <= set(part.segments.tolist())


def run_ranks(tasks: Sequence[dict[str, Any]], count: int, program: str = PROGRAM) -> list[list[Any]]:
    """Do tasks with some processes; the lists that rank 0 printed, of `PROGRAM` the steps."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    variables = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    environment = os.environ | variables | {"PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, json.dumps(tasks)],
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(count)
    ]
    try:
        output, _ = processes[0].communicate(timeout=120)
        assert [process.wait(timeout=30) for process in processes] == [0] * count
    finally:
        for process in processes:
            process.kill()
    return [json.loads(line) for line in output.splitlines() if line.startswith("[")]


@pytest.mark.thorough
def test_a_group_that_the_starter_made_is_used_and_left_to_it() -> None:
    assert run_ranks([], 2, GROUP_OF_THE_STARTER) == [[[2], True]]


@pytest.mark.thorough
def test_two_ranks_equal_one(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    groups = groups_of(Sampler(None), groups=4, size=3)
    settings = RlConfig(
        learning_rate=1e-3,
        packed_sequence_length=40,
        kl_penalty_coef=0.5,
        importance_sampling_level="sequence",
        loss="ppo",
        precalculate_logprobs=True,
        truncated_importance_sampling=2.0,
        epsilon=0.2,
        epsilon_high=0.2,
    )
    chats = {"rows": [{"messages": CHAT}] * 3}
    # Seven pairs in batches of three: the last has one, of which the second rank has none.
    preferences = DpoConfig(learning_rate=1e-3, batch_size=3)
    made = []
    for name in ("one", "two"):
        rl = make_task(tmp_path / name / "rl", {"trajectory_groups": groups}, config=settings.as_json())
        sft = make_task(tmp_path / name / "sft", chats, kind="sft", config=SftConfig(learning_rate=1e-3).as_json())
        dpo = make_task(
            tmp_path / name / "dpo", {"rows": check_pairs([*PAIRS, PAIRS[0]])}, kind="dpo", config=preferences.as_json()
        )
        made.append([rl, sft, dpo])
    single = [[message.data for message in perform(task)[1:] if hasattr(message, "index")] for task in made[0]]
    double = run_ranks([asdict(task) for task in made[1]], 2)
    for mine, theirs in zip(single, double, strict=True):
        assert len(mine) == len(theirs) > 1
        for one, two in zip(mine, theirs, strict=True):
            del one["tokens_per_second"], two["tokens_per_second"]
            assert two == pytest.approx(one, abs=1e-6, rel=1e-5)
    for first, second in zip(*made, strict=True):
        weights = [load_file(Path(task.target) / "adapter_model.safetensors") for task in (first, second)]
        before = load_file(Path(first.parent) / "adapter_model.safetensors")
        assert any(not torch.equal(tensor, weights[0][name]) for name, tensor in before.items())
        for name, tensor in weights[0].items():
            torch.testing.assert_close(weights[1][name], tensor, atol=CLOSE, rtol=0)
