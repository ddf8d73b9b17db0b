"""A real heddle server process on a free port, as a user would start it."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

from tests.support.vllm_server import engine_settings
from tests.support.zygote import Forked, zygote

_OWN_PATH = os.environ.get("PYTHONPATH")


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _of_the_store(data: Path) -> dict[str, object]:
    """What puts a server onto the store that HEDDLE_TEST_STORE names; one folder always has the same databases.

    With SQLite, HEDDLE_TEST_WORKERS is how many worker processes it has.
    """
    if os.environ.get("HEDDLE_TEST_STORE", "sqlite") == "sqlite":
        workers = os.environ.get("HEDDLE_TEST_WORKERS")
        return {"workers": workers} if workers else {}
    from tests.support import scale

    return dict(scale.settings_of(scale.EVERYWHERE, data))


class HeddleProcess:
    """`heddle serve` on its own port and data folder; a context manager that stops it.

    `settings` are names of the settings table: `max_file=10` becomes `HEDDLE_MAX_FILE=10`.
    """

    may_fork = True
    """Whether it may be a fork of a process that has imported everything."""
    may_fork_children = True
    """Whether its children that need torch may be forks, which are children of another process."""

    def __init__(self, data: Path, port: int | None = None, **settings: object) -> None:
        self.data = Path(data)
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings = _of_the_store(self.data) | settings
        self.log_path = self.data.parent / f"{self.data.name}.log"
        self.process: subprocess.Popen[bytes] | Forked | None = None

    def start(self, timeout: float = 60.0) -> "HeddleProcess":
        """Start the process and wait until `/ready` answers 200; raises RuntimeError with its log."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HEDDLE_")}
        settings = engine_settings(self.settings) | self.settings
        environment |= {f"HEDDLE_{name.upper()}": str(value) for name, value in settings.items()}
        arguments = ["serve", "--port", str(self.port), "--data", str(self.data)]
        # Another import path changes what can be imported, which a fork has done already.
        forking = zygote() if self.may_fork and environment.get("PYTHONPATH") == _OWN_PATH else None
        if forking is not None:
            self.process = forking.start(arguments, environment, self.log_path, forks_children=self.may_fork_children)
        else:
            with self.log_path.open("ab") as log:
                command = [sys.executable, "-m", "heddle", *arguments]
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + timeout
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"heddle did not become ready:\n{self.log()}")
            time.sleep(0.02)
        return self

    def is_ready(self) -> bool:
        """True when `/ready` answers 200."""
        try:
            with urllib.request.urlopen(self.url + "/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def log(self) -> str:
        """What the process printed so far."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def terminate(self, timeout: float = 60.0) -> int:
        """SIGTERM, wait, and the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill(self) -> None:
        """`kill -9` and wait."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> "HeddleProcess":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.terminate()


class ParentProcess(HeddleProcess):
    """A server whose children are looked at: they are all its own."""

    may_fork_children = False
