"""An S3 server of its own: buckets are folders, and what it acknowledged is there again after `kill -9`."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import free_port

BUCKET = "heddle"
_KEY, _SECRET = "heddle-test", "heddle-test-secret"
_STARTED_WITHIN = 60.0


class S3Server:
    """One process with one bucket; a context manager that ends it and removes its folder."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="heddle-s3-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.bucket = self._folder / "data" / BUCKET
        """The objects, as files below their keys."""
        self.bucket.mkdir(parents=True)

    @property
    def variables(self) -> dict[str, str]:
        """What a client finds in its environment."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": _KEY,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self) -> "S3Server":
        """Start the process and wait until it listens; raises RuntimeError with its log."""
        program = Path(sys.executable).with_name("nanio")
        place = ["--data-dir", str(self._folder / "data"), "--host", "127.0.0.1", "--port", str(self.port)]
        command = [str(program), "serve", *place, "--log-level", "warning", "--no-access-log"]
        environment = os.environ | {"NANIO_ACCESS_KEY": _KEY, "NANIO_SECRET_KEY": _SECRET}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + _STARTED_WITHIN
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the S3 server did not start:\n{(self._folder / 'log').read_text()[-4000:]}")
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """`kill -9` and wait."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Let it answer nothing until `resume`, as a machine does that hangs."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def new_prefix(self) -> str:
        """The address of a place in the bucket that no other test uses."""
        return f"s3://{BUCKET}/{os.urandom(6).hex()}"

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def __enter__(self) -> "S3Server":
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One S3 server for all tests of a worker, which leave it running."""
    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The S3 server of the worker, with the variables of its clients set."""
    for name, value in s3_server.variables.items():
        monkeypatch.setenv(name, value)
    return s3_server
