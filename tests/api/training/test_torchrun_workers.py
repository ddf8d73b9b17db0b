"""A server that trains nothing itself, and one worker of two processes under torchrun: from job to served step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.s3 import S3Server
from tests.support.server import HeddleProcess, free_port
from tests.support.training import TrainingWire

pytestmark = pytest.mark.thorough

WITHIN = 120.0
VARIABLES = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def launch(root: Path, jobs: int, log: Path) -> "subprocess.Popen[bytes]":
    """torchrun with two processes that watch a folder."""
    meeting = ["--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}"]
    worker = ["-m", "heddle.trainer_process", "--watch", str(root), "--jobs", str(jobs)]
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, *worker]
    with log.open("wb") as output:
        return subprocess.Popen(command, env=os.environ | VARIABLES, stdout=output, stderr=output)


@pytest.mark.parametrize("files", ["folder", "s3"])
def test_jobs_are_done_elsewhere(tmp_path: Path, files: str, s3: S3Server) -> None:
    data, log = tmp_path / "data", tmp_path / "worker.log"
    place = s3.new_prefix() if files == "s3" else files
    worker = launch(data / "handover", 2, log)
    try:
        with HeddleProcess(data, trainer="torchrun", files=place) as server, TrainingWire(server.url) as training:
            model = training.model()
            for _ in range(2):
                training.train(model)
            assert training.steps(model) == [0, 1, 2]
            assert "Traceback" not in server.log()
        assert worker.wait(WITHIN) == 0, log.read_text(errors="replace")[-3000:]
    finally:
        worker.kill()
        worker.wait()
    assert list((data / "handover").iterdir()) == []
