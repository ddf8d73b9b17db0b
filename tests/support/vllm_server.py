"""The servers that tests put behind `--engine vllm`, and the switch that runs any test file that way.

`HEDDLE_TEST_VLLM=lookalike pytest ...` starts every heddle of the tests in front of look-alikes (`tests.support.vllm`),
`HEDDLE_TEST_VLLM=http://127.0.0.1:8000` in front of a real server that serves heddle's shipped model.
"""

import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from types import TracebackType
from urllib.request import urlopen

import pytest

from heddle.demo.tiny import MODEL_FOLDER, MODEL_NAME

SWITCH = os.environ.get("HEDDLE_TEST_VLLM", "")
LOOK_ALIKE = "lookalike"
COMMAND = f"{sys.executable} -m tests.support.vllm"
ENGINE_NAME = "vllm" if SWITCH else "heddle-local"
"""What fingerprints begin with."""
HOTTEST = 2.0 if SWITCH else 20.0
"""The temperature at which tests look for other answers than the best; vLLM allows no more than 2."""
ROOT = Path(__file__).parent.parent.parent
OWN = frozenset({"model", "scheduling", "engine_dtype", "max_running", "max_waiting", "kv_memory", "max_adapters"})
"""Settings for which a test needs a server of its own."""


class LookAlikeProcess:
    """A look-alike that serves the shipped model on a port; a context manager that kills it."""

    def __init__(self, port: int, *arguments: str) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        fixed = ["--generation-config", "vllm", "--enable-prompt-tokens-details", "--enable-lora"]
        fixed += ["--structured-outputs-config.backend", "guidance"]
        place = ["--model", str(MODEL_FOLDER), "--served-model-name", MODEL_NAME]
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

    return LookAlikeProcess(free_port()).start().url if SWITCH == LOOK_ALIKE else SWITCH
