"""The processes of the demo: a server of its own, and programs that reach nothing but that server."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heddle.errors import HeddleError

_NOWHERE = "http://127.0.0.1:9"
_START_LINE = "heddle: serving "


@contextmanager
def serving(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A server on a free port with a temporary folder, and its address."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
    command = [sys.executable, "-m", "heddle", "serve", "--port", "0", "--data", str(folder / "data")]
    command += ["--trace-inference", "on"]
    with (folder / "server.log").open("w") as log:
        # In a session of its own: Ctrl-C reaches this process only, which then stops the server in order.
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, start_new_session=True
        )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line.startswith(_START_LINE):
            raise HeddleError(f"the server did not start:\n{(folder / 'server.log').read_text()}")
        yield server, line.removeprefix(_START_LINE).split()[0]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()


class Programs:
    """Runs modules in a home of their own, with no way to anywhere but the server."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self._home = folder / "home"
        self._home.mkdir()

    def lines(self, module: str, *arguments: str) -> Iterator[str]:
        """What a program prints, line by line; raises HeddleError at the end of one that failed."""
        command = [sys.executable, "-m", module, *arguments]
        with (self._home / "errors.log").open("w+") as errors:
            process = subprocess.Popen(
                command, env=self._environment(), cwd=self._home, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            assert process.stdout is not None
            with process:
                try:
                    yield from process.stdout
                except BaseException:
                    process.kill()
                    raise
            if process.returncode != 0:
                errors.seek(0)
                raise HeddleError(f"the program {module} failed:\n{errors.read()}")

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", ""),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "HOME": str(self._home),
            "TMPDIR": str(self._home),
            "WANDB_BASE_URL": self._address,
            "WANDB_API_KEY": "0" * 40,
            "WANDB_ERROR_REPORTING": "false",
            "WEAVE_PRINT_CALL_LINK": "false",
            "WEAVE_SERVER_CACHE_DIR": str(self._home / "cache"),
            "HTTP_PROXY": _NOWHERE,
            "HTTPS_PROXY": _NOWHERE,
            "NO_PROXY": "127.0.0.1",
        }
