"""`--engine vllm` with servers that heddle starts: they come, die, come back, and never outlive it."""

import json
import shutil
import signal
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from heddle.demo.tiny import MODEL_FOLDER
from tests.support.chat import API_KEY, Chat, data_lines, until
from tests.support.models import make_adapter
from tests.support.server import HeddleProcess
from tests.support.vllm_server import COMMAND

ENDLESS = {"max_tokens": 30_000, "ignore_eos": True}
OWN = {"engine": "vllm", "vllm_command": COMMAND}


def below(process: HeddleProcess) -> list[psutil.Process]:
    """Every process below a server."""
    assert process.process is not None
    return psutil.Process(process.process.pid).children(recursive=True)


def servers(process: HeddleProcess) -> list[psutil.Process]:
    """The look-alikes among them, in the order of their start."""
    found = [child for child in below(process) if "tests.support.vllm" in child.cmdline()[1:3]]
    return sorted(found, key=lambda child: child.create_time())


def test_servers_come_die_and_come_back(server: HeddleProcess, tmp_path: Path) -> None:
    """The same tokens as from the embedded engine; a killed one ends its requests only, and is started again with the
    adapters that it had."""
    folder = make_adapter(tmp_path / "adapter", MODEL_FOLDER, lora_alpha=800)
    with HeddleProcess(tmp_path / "data", vllm_replicas=2, **OWN) as process, Chat(process.url) as chat:
        with Chat(server.url) as embedded:
            assert chat.token_ids(max_tokens=12) == embedded.token_ids(max_tokens=12)
        until(lambda: chat.engine()["kv_blocks_total"] >= 2 * _blocks(server), "both servers are ready")
        loaded = chat.client.post("/v1/load_lora_adapter", json={"lora_name": "tuned", "lora_path": str(folder)})
        assert loaded.status_code == 200, loaded.text
        tuned = chat.token_ids(model="tuned", max_tokens=12, ignore_eos=True)
        assert tuned != chat.token_ids(max_tokens=12, ignore_eos=True)

        before = servers(process)
        assert len(before) == 2
        with chat.streaming(**ENDLESS) as stream:
            pieces = stream.iter_text()
            text = next(pieces)
            busy = max(before, key=lambda child: child.cpu_percent(0.3))
            busy.send_signal(signal.SIGKILL)
            text += "".join(pieces)
        error = json.loads(data_lines(text)[-2])["error"]
        assert error["code"] == 503 and data_lines(text)[-1] == "[DONE]"
        assert chat.answer()["choices"], "the other one goes on"
        assert httpx.get(f"{process.url}/ready").status_code == 200

        until(lambda: chat.engine()["kv_blocks_total"] >= 2 * _blocks(server), "it came back")
        (other,) = [child for child in before if child.pid != busy.pid]
        other.send_signal(signal.SIGKILL)
        assert chat.token_ids(model="tuned", max_tokens=12, ignore_eos=True) == tuned
        assert "Traceback" not in process.log()


def _blocks(server: HeddleProcess) -> int:
    """Blocks of one server's cache, at the least."""
    with Chat(server.url) as chat:
        chat.answer()
        return int(chat.engine()["kv_blocks_total"] > 0)


@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_no_server_outlives_heddle(tmp_path: Path, end: str) -> None:
    with HeddleProcess(tmp_path / "data", **OWN) as process, Chat(process.url) as chat:
        chat.answer()
        processes = below(process)
        assert len(processes) >= 3, "the keeper, the server, and its engine"
        getattr(process, end)()
        assert not psutil.wait_procs(processes, timeout=40)[1]


def test_a_command_that_cannot_start_is_told_by_ready(tmp_path: Path) -> None:
    """The server runs, and says why it is not ready."""
    process = HeddleProcess(tmp_path / "data", engine="vllm", vllm_command=f"{sys.executable} -c raise(SystemExit(3))")
    with pytest.raises(RuntimeError):
        process.start(timeout=4)
    assert "vllm server 0 ended with code 3" in process.log()


def test_ready_waits_for_servers_that_run_elsewhere(tmp_path: Path) -> None:
    """503 with the reason until the server is there, and then 200 without a restart."""
    from tests.support.server import free_port
    from tests.support.vllm_server import LookAlikeProcess

    port = free_port()
    process = HeddleProcess(tmp_path / "data", engine="vllm", vllm_urls=f"http://127.0.0.1:{port}")
    with pytest.raises(RuntimeError):
        process.start(timeout=0)
    process = HeddleProcess(tmp_path / "data2", engine="vllm", vllm_urls=f"http://127.0.0.1:{port}")
    with LookAlikeProcess(port), process, Chat(process.url) as chat:
        assert chat.answer()["choices"]


def test_vllm_needs_no_torch(tmp_path: Path) -> None:
    """A server whose environment cannot import torch answers through vLLM."""
    blocked = tmp_path / "blocked"
    for name in ("torch", "transformers", "safetensors", "httpx"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text("raise ImportError('not here')")
    assert shutil.which("env")
    assert API_KEY
