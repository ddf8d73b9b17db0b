"""A ClickHouse look-alike as a process of its own: it can be killed, and started again on what it stored."""

import atexit
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from functools import cache
from pathlib import Path
from types import TracebackType

from heddle.store.clickhouse.schema import CALL_KEYS, CALLS, TABLE_ROWS
from tests.support.server import free_port

MISSING = next((name for name in ("chdb", "clickhouse_connect", "lz4") if importlib.util.find_spec(name) is None), None)
"""The package without which there is no ClickHouse to test with; None where all are there."""
_START_SECONDS = 90.0


class ClickhouseProcess:
    """The engine over a folder, on a port of its own; a context manager that kills it."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.log_path = folder.parent / f"{folder.name}.log"

    def start(self) -> "ClickhouseProcess":
        """Start it and wait until it answers; raises RuntimeError with what it printed."""
        command = [sys.executable, "-m", "tests.support.clickhouse_server", str(self.folder), str(self.port)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})
        deadline = time.monotonic() + _START_SECONDS
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"chDB did not start:\n{self.log_path.read_text(errors='replace')}")
            time.sleep(0.05)
        return self

    def is_ready(self) -> bool:
        """True when it answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ping", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def query(self, statement: str) -> str:
        """The answer of a statement as text."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/", data=statement.encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())

    def new_database(self) -> str:
        """The address of a database that is new and empty, as the setting `store` takes it."""
        name = f"heddle_{uuid.uuid4().hex[:12]}"
        self.query(f"CREATE DATABASE {name}")
        return f"clickhouse://127.0.0.1:{self.port}/{name}"

    def remove_old_parts_soon(self, address: object) -> None:
        """Let a server's tables keep parts that they have given up for a second instead of eight minutes."""
        database = str(address).rpartition("/")[2]
        soon = "old_parts_lifetime = 1, cleanup_delay_period = 1, max_cleanup_delay_period = 1"
        for table in (CALLS, CALL_KEYS, TABLE_ROWS):
            self.query(f"ALTER TABLE {database}.{table} MODIFY SETTING {soon}")

    def kill(self) -> None:
        """`kill -9` and wait."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> "ClickhouseProcess":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


@cache
def clickhouse_process() -> ClickhouseProcess:
    """The ClickHouse look-alike of this test process, started when first asked for."""
    folder = tempfile.TemporaryDirectory(prefix="heddle-clickhouse-")
    process = ClickhouseProcess(Path(folder.name) / "clickhouse").start()

    def end() -> None:
        process.kill()
        folder.cleanup()

    atexit.register(end)
    return process
