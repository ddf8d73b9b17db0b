"""Two torchrun launchers, as on two machines, find each other by torchrun's own rendezvous and do handed-over jobs."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from heddle.training import handover  # noqa: E402
from heddle.training.config import RlConfig, SftConfig  # noqa: E402
from heddle.training.messages import Task  # noqa: E402
from tests.support.server import free_port  # noqa: E402
from tests.unit.training.trainer.jobs import Sampler, groups_of, make_task, perform  # noqa: E402
from tests.unit.training.trainer.test_sft import CHAT  # noqa: E402

pytestmark = pytest.mark.thorough

WITHIN = 240.0
CLOSE = 1e-5
"""Of steps of 1e-3: Adam divides by the size of a gradient, and where that is near zero the order of sums shows."""


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
    meeting += ["--rdzv-endpoint", f"127.0.0.1:{port}", "-m", "heddle.trainer_process", "--watch", str(root)]
    return start([*meeting, "--jobs", str(jobs)], log)


def start(arguments: list[str], log: Path) -> "subprocess.Popen[bytes]":
    """torchrun, as docs/training.md starts it."""
    variables = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(command, env=os.environ | variables, stdout=output, stderr=output)


def children(launcher: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """The processes of a worker."""
    found = psutil.Process(launcher.pid).children(recursive=True)
    return [process for process in found if "heddle.trainer_process" in process.cmdline()]


def finished(folder: Path, launcher: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until a job has its result."""
    deadline, messages = time.monotonic() + WITHIN, folder / handover.MESSAGES
    while not messages.exists() or '"finished"' not in messages.read_text():
        assert time.monotonic() < deadline and launcher.poll() is None, log.read_text(errors="replace")[-3000:]
        time.sleep(0.1)


def test_a_process_that_died_is_started_again(tmp_path: Path) -> None:
    first, second = tasks_in(tmp_path)
    root, log = tmp_path / handover.ROOT, tmp_path / "log"
    meeting = ["--nproc-per-node", "2", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    meeting += ["--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    launcher = start([*meeting, "-m", "heddle.trainer_process", "--watch", str(root)], log)
    try:
        finished(handover.offer(root, first, 0.5), launcher, log)
        children(launcher)[-1].kill()
        finished(handover.offer(root, second, 0.5), launcher, log)
    finally:
        for process in [*children(launcher), launcher]:
            process.kill()
        launcher.wait()
    assert Path(second.target).is_dir()


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
            torch.testing.assert_close(weights[1][name], tensor, atol=CLOSE, rtol=0)
