"""The servers that tests put behind `--engine vllm`, and the switch that runs any test file that way.

`HEDDLE_TEST_VLLM=lookalike pytest ...` starts every heddle of the tests in front of look-alikes (`tests.support.vllm`),
`HEDDLE_TEST_VLLM=real` in front of vLLM itself, which one heddle starts for all of them (`make test-vllm`).
"""

import atexit
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.request import urlopen

import psutil
import pytest

from heddle.inference.served_model import TINY, TINY_FOLDER

if TYPE_CHECKING:
    from tests.support.server import HeddleProcess

SWITCH = os.environ.get("HEDDLE_TEST_VLLM", "")
LOOK_ALIKE = "lookalike"
REAL = "real"
COMMAND = f"{sys.executable} -m tests.support.vllm"
VERSION = "0.32.0"
ENGINE_NAME = "vllm" if SWITCH else "heddle-local"
"""What fingerprints begin with."""
HOTTEST = 2.0 if SWITCH else 20.0
"""The temperature at which tests look for other answers than the best; vLLM allows no more than 2."""
HOT_TOKENS = 64 if SWITCH else 8
"""Tokens after which that shows."""
ROOT = Path(__file__).parent.parent.parent
REAL_SECONDS = 900.0
OWN = frozenset({"model", "scheduling", "engine_dtype", "max_running", "max_waiting", "kv_memory", "max_adapters"})
"""Settings for which a test needs a server of its own."""


class LookAlikeProcess:
    """A look-alike that serves the shipped model on a port; a context manager that kills it."""

    def __init__(self, port: int, *arguments: str) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        fixed = ["--generation-config", "vllm", "--enable-prompt-tokens-details", "--enable-lora"]
        fixed += ["--structured-outputs-config.backend", "guidance"]
        place = ["--model", str(TINY_FOLDER), "--served-model-name", TINY]
        place += ["--host", "127.0.0.1", "--port", str(port)]
        self._command = [sys.executable, "-m", "tests.support.vllm", *place, *fixed, *arguments]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, timeout: float = 60.0) -> "LookAlikeProcess":
        """Start it and wait until it answers; raises RuntimeError."""
        self.process = subprocess.Popen(self._command, cwd=ROOT)
        deadline = time.monotonic() + timeout
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError("the look-alike of vLLM did not start")
            time.sleep(0.05)
        return self

    def answers(self) -> bool:
        """True when /health does."""
        try:
            with urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def kill(self) -> None:
        """`kill -9` and wait."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> "LookAlikeProcess":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def engine_settings(settings: dict[str, object]) -> dict[str, object]:
    """What the switch adds to the settings of a heddle; nothing without it."""
    if not SWITCH or "engine" in settings or settings.get("model") == "none":
        return {}
    if OWN.isdisjoint(settings):
        return {"engine": "vllm", "vllm_urls": shared_url()}
    if SWITCH != LOOK_ALIKE:
        pytest.skip("needs a server of vLLM with other settings")
    return {"engine": "vllm", "vllm_command": COMMAND}


@cache
def shared_url() -> str:
    """The server that all tests of this process share; it ends with the process."""
    from tests.support.server import free_port

    return LookAlikeProcess(free_port()).start().url if SWITCH == LOOK_ALIKE else _real_url()


def _real_url() -> str:
    """vLLM on the processor, started by a heddle as anybody would; skips where it is not installed."""
    from tests.support.server import HeddleProcess

    python = ROOT / ".clients" / f"vllm-{VERSION}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"vllm {VERSION} is not installed: run `make test-vllm`")
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": str(ROOT / ".cache" / "vllm")}
    command = f"{python} -m vllm.entrypoints.openai.api_server"
    settings = {"engine": "vllm", "vllm_command": command, "vllm_arguments": "--enforce-eager --max-loras 4"}
    folder = Path(tempfile.mkdtemp(prefix="heddle-vllm-"))
    heddle = HeddleProcess(folder / "data", engine_dtype="float32", **settings)
    atexit.register(heddle.terminate)
    heddle.start(timeout=REAL_SECONDS)
    return _server_below(heddle)


def _server_below(heddle: "HeddleProcess") -> str:
    """The address of the server that a heddle started, from its arguments."""
    assert heddle.process is not None
    for child in psutil.Process(heddle.process.pid).children(recursive=True):
        words = child.cmdline()
        if "--port" in words and "--served-model-name" in words:
            return f"http://127.0.0.1:{words[words.index('--port') + 1]}"
    raise RuntimeError(f"heddle started no server:\n{heddle.log()}")
