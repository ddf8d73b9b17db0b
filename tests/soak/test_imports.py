"""Phoenix and MLflow themselves as sources of `heddle import`, filled by their own clients."""

import os
import subprocess
from pathlib import Path

import httpx
import orjson
import pytest

from benchmarks.peers import SERVERS, install
from tests.support.server import HeddleProcess, free_port
from tools.record_imports import filled, import_command

SOAK = os.environ.get("HEDDLE_SOAK") == "1"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.soak,
    pytest.mark.skipif(not SOAK, reason="installs two products: runs in `make soak`"),
]


@pytest.mark.parametrize("name", ["mlflow", "phoenix"])
def test_everything_comes_over_from_the_real_product(name: str, tmp_path: Path) -> None:
    install(name)
    peer = SERVERS[name](tmp_path / name, free_port())
    try:
        address = filled(name, peer)
        with HeddleProcess(tmp_path / "heddle", model="none") as server:
            for _ in range(2):  # the second time changes nothing
                done = subprocess.run(import_command(name, address, server.url), capture_output=True, text=True)
                assert done.returncode in (0, 3), done.stderr
                assert "spans: 3 stored" in done.stdout and "feedback: 3 stored" in done.stdout
            asked = {"project_id": f"team/{name}", "include_feedback": True}
            answer = httpx.post(f"{server.url}/calls/stream_query", json=asked)
    finally:
        peer.kill()
    calls = {call["summary"]["weave"]["trace_name"]: call for call in map(orjson.loads, answer.text.splitlines())}
    assert len(calls) == 3 and calls["broken"]["exception"].endswith("no such city")
    assert "Paris" in str(calls["assistant"]["inputs"]) and calls["assistant"]["thread_id"] == "session-1"
    kinds = sorted(row["feedback_type"] for call in calls.values() for row in call["summary"]["weave"]["feedback"])
    expected = {"phoenix": ["helpful", "length", "whole"], "mlflow": ["answer", "helpful", "length"]}
    assert kinds == [f"{name}.{kind}" for kind in expected[name]]
