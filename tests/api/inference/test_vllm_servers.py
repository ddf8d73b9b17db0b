"""`--engine vllm` with servers that heddle starts: they come, die, come back, and never outlive it."""

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from heddle.inference.engine.vllm.replica import parse_metrics
from heddle.inference.served_model import TINY_FOLDER
from tests.support.bare import bare_server
from tests.support.chat import Chat, data_lines, until
from tests.support.models import make_adapter
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess, free_port
from tests.support.vllm_server import COMMAND, LookAlikeProcess

ENDLESS = {"max_tokens": 30_000, "ignore_eos": True}
BOTH = "2 of 2 servers of vLLM"
OWN = {"engine": "vllm", "vllm_command": COMMAND}


def below(process: HeddleProcess) -> list[psutil.Process]:
    """Every process below a server."""
    assert process.process is not None
    return psutil.Process(process.process.pid).children(recursive=True)


def servers(process: HeddleProcess) -> list[psutil.Process]:
    """The look-alikes among them, in the order of their start."""
    found = [child for child in below(process) if "tests.support.vllm" in child.cmdline()[1:3]]
    return sorted(found, key=lambda child: child.create_time())


def requests_of(child: psutil.Process) -> float:
    """How many requests run on a look-alike, by what it says itself."""
    words = child.cmdline()
    port = words[words.index("--port") + 1]
    return parse_metrics(httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text)["num_requests_running"]


@pytest.mark.thorough
def test_servers_come_die_and_come_back(server: HeddleProcess, tmp_path: Path) -> None:
    """The same tokens as from the embedded engine; a killed one ends its requests only, and is started again with the
    adapters that it had."""
    folder = make_adapter(tmp_path / "adapter", TINY_FOLDER, lora_alpha=800)
    with HeddleProcess(tmp_path / "data", vllm_replicas=2, **OWN) as process, Chat(process.url) as chat:
        with Chat(server.url) as embedded:
            assert chat.token_ids(max_tokens=12) == embedded.token_ids(max_tokens=12)
        until(lambda: chat.engine()["device"] == BOTH, "both servers are ready")
        loaded = chat.client.post("/v1/load_lora_adapter", json={"lora_name": "tuned", "lora_path": str(folder)})
        assert loaded.status_code == 200, loaded.text
        tuned = chat.token_ids(model="tuned", max_tokens=12, ignore_eos=True)
        assert tuned != chat.token_ids(max_tokens=12, ignore_eos=True)

        before = servers(process)
        assert len(before) == 2
        with chat.streaming(**ENDLESS) as stream:
            pieces = stream.iter_text()
            text = next(pieces)
            busy = max(before, key=requests_of)
            busy.send_signal(signal.SIGKILL)
            text += "".join(pieces)
        error = json.loads(data_lines(text)[-2])["error"]
        assert error["code"] == 503 and data_lines(text)[-1] == "[DONE]"
        assert chat.answer()["choices"], "the other one goes on"
        assert httpx.get(f"{process.url}/ready").status_code == 200

        until(lambda: chat.engine()["device"] == BOTH, "it came back")
        (other,) = [child for child in before if child.pid != busy.pid]
        other.send_signal(signal.SIGKILL)
        assert chat.token_ids(model="tuned", max_tokens=12, ignore_eos=True) == tuned
        assert "Traceback" not in process.log()


@pytest.mark.parametrize("end", with_breadth(["kill", "terminate"]))
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
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(process.start, timeout=120)
        until(lambda: "vllm server 0 ended with code 3" in process.log(), "the reason is told")
        process.kill()
        with pytest.raises(RuntimeError):
            started.result()


@pytest.mark.thorough
def test_ready_waits_for_servers_that_run_elsewhere(tmp_path: Path) -> None:
    """503 with the reason until the server is there, and then 200 without a restart."""
    port = free_port()
    waiting = HeddleProcess(tmp_path / "data", engine="vllm", vllm_urls=f"http://127.0.0.1:{port}")
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(waiting.start)
        until(lambda: "no connection" in _ready_text(waiting), "the reason is told")
        with LookAlikeProcess(port), Chat(started.result().url) as chat:
            assert chat.answer()["choices"]
    assert waiting.terminate() == 0


def _ready_text(process: HeddleProcess) -> str:
    """What /ready says, empty where nobody listens."""
    try:
        return httpx.get(f"{process.url}/ready", timeout=5).text
    except httpx.TransportError:
        return ""


@pytest.mark.thorough
def test_plug_ins_and_connectors_that_the_settings_name(tmp_path: Path) -> None:
    """What the servers understand beyond the interface reaches them; what nobody named is refused."""
    with LookAlikeProcess(free_port()) as behind:
        settings = {"engine": "vllm", "vllm_urls": behind.url, "vllm_takes": "kv_transfer_params, speed"}
        with HeddleProcess(tmp_path / "data", **settings) as process, Chat(process.url) as chat:
            transfer = {"do_remote_decode": True}
            assert chat.answer(kv_transfer_params=transfer)["kv_transfer_params"] == transfer
            assert chat.answer(vllm_xargs={"speed": 2})["choices"]
            assert chat.refused(400, vllm_xargs={"other": 2})["param"] == "vllm_xargs"
            assert chat.refused(400, temperature=3)["param"] == "temperature"
            assert chat.refused(400, ignore_eos=True, structured_outputs={"choice": ["a"]})["param"] == "ignore_eos"


@pytest.mark.thorough
def test_vllm_needs_no_torch(tmp_path: Path) -> None:
    """A server that cannot import what only the embedded engine needs answers through vLLM."""
    packages = ("torch", "numpy", "safetensors", "transformers")
    with LookAlikeProcess(free_port()) as server:
        process = bare_server(tmp_path, packages, engine="vllm", vllm_urls=server.url)
        with Chat(process.url) as chat:
            assert chat.answer()["choices"]
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [7]}}}
            assert chat.content(response_format=form, max_tokens=20) == "7"
        assert process.terminate() == 0
