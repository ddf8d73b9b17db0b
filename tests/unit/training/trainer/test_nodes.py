"""Two torchrun launchers, as on two machines, find each other by torchrun's own rendezvous and do handed-over jobs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from heddle.training import handover  # noqa: E402
from heddle.training.base import Task  # noqa: E402
from heddle.training.config import RlConfig  # noqa: E402
from heddle.training.sft_config import SftConfig  # noqa: E402
from tests.support.server import free_port  # noqa: E402
from tests.unit.training.trainer.jobs import Sampler, groups_of, make_task, perform  # noqa: E402
from tests.unit.training.trainer.test_sft import CHAT  # noqa: E402

WITHIN = 240.0


def tasks_in(folder: Path) -> list[Task]:
    """One job of each kind."""
    settings = RlConfig(learning_rate=1e-3, packed_sequence_length=40, kl_penalty_coef=0.5).as_json()
    groups = {"trajectory_groups": groups_of(Sampler(None), groups=3, size=3)}
    rl = make_task(folder / "rl", groups, config=settings, job_id="rl")
    chats = {"rows": [{"messages": CHAT}] * 3}
    sft = make_task(folder / "sft", chats, kind="sft", config=SftConfig(learning_rate=1e-3).as_json(), job_id="sft")
    return [rl, sft]


def launch(root: Path, jobs: int, port: int, log: Path) -> "subprocess.Popen[bytes]":
    """One of two launchers of one process each."""
    meeting = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "heddle"]
    meeting += ["--rdzv-endpoint", f"127.0.0.1:{port}", "-m", "heddle.worker", "--watch", str(root)]
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, "--jobs", str(jobs)]
    with log.open("wb") as output:
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=output, stderr=output)


def test_two_nodes_make_the_weights_of_one_process(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    alone, together = tasks_in(tmp_path / "alone"), tasks_in(tmp_path / "data")
    for task in alone:
        perform(task)
    root, port = tmp_path / "data" / handover.ROOT, free_port()
    folders = [handover.offer(root, task, 0.5) for task in together]
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    nodes = [launch(root, len(together), port, log) for log in logs]
    try:
        codes = [node.wait(timeout=WITHIN) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert codes == [0, 0], [log.read_text(errors="replace")[-3000:] for log in logs]
    for folder in folders:
        said = [json.loads(line) for line in (folder / handover.MESSAGES).read_text().splitlines()]
        kinds = [message["type"] for message in said if message["type"] != "beat"]
        assert (kinds[0], kinds[-1]) == ("started", "finished") and "stepped" in kinds
    for first, second in zip(alone, together, strict=True):
        before = load_file(Path(first.parent) / "adapter_model.safetensors")
        weights = [load_file(Path(task.target) / "adapter_model.safetensors") for task in (first, second)]
        assert any(not torch.equal(tensor, weights[0][name]) for name, tensor in before.items())
        for name, tensor in weights[0].items():
            torch.testing.assert_close(weights[1][name], tensor, atol=1e-5, rtol=0)
