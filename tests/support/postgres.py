"""A real PostgreSQL of Debian's package, run by an ordinary user in a folder of its own on a free port."""

import atexit
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import sql

from tests.support.server import free_port

_HOME = Path("/usr/lib/postgresql")
_STARTED_WITHIN = 60.0
_OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "32MB",
    "max_connections": "300",
    "autovacuum_naptime": "5",
    "listen_addresses": "127.0.0.1",
}


def programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs, None where there is none."""
    found = sorted(_HOME.glob("*/bin/postgres"), key=lambda path: int(path.parent.parent.name))
    return found[-1].parent if found else None


class PostgresServer:
    """One server process; a context manager that stops it and removes its folder.

    Databases sort as English does, as on most machines: what must be in the order of code points has to say so.
    """

    def __init__(self) -> None:
        found = programs()
        if found is None:
            raise RuntimeError(f"no PostgreSQL is installed under {_HOME}")
        self._programs = found
        self.folder = Path(tempfile.mkdtemp(prefix="heddle-postgres-"))
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        if os.geteuid() == 0:
            owner = pwd.getpwnam(_ordinary_user())
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        options = ["--encoding=UTF8", "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en-US"]
        options += ["--auth=trust", "--username=heddle", "--no-sync", "--no-instructions"]
        subprocess.run(
            [*_as_ordinary_user(), str(found / "initdb"), "--pgdata", str(self.folder / "data"), *options],
            check=True,
            capture_output=True,
            cwd="/",
        )

    def start(self) -> "PostgresServer":
        """Start the process and wait until it answers; raises RuntimeError with its log."""
        arguments = ["-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder)]
        arguments += [word for name, value in _OPTIONS.items() for word in ("-c", f"{name}={value}")]
        command = [*_as_ordinary_user(), str(self._programs / "postgres"), *arguments]
        log, deadline = self.folder / "log", time.monotonic() + _STARTED_WITHIN
        with log.open("ab") as into:
            self._process = subprocess.Popen(command, stdout=into, stderr=into, cwd="/")
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text()[-4000:]}")
            time.sleep(0.05)
        return self

    def stop(self) -> None:
        """Shut down at once but in order: open connections are told and ended."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """`kill -9`: what was committed is there again after `start`."""
        self._end(signal.SIGKILL)

    def new_database(self) -> str:
        """The address of an empty database that no other test uses."""
        name = f"test{next(self._numbers)}"
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.address(name)

    def dump(self, address: str) -> str:
        """All that a database holds, as `pg_dump` tells it."""
        command = [str(self._programs / "pg_dump"), address]
        return subprocess.run(command, check=True, capture_output=True).stdout.decode()

    def address(self, database: str) -> str:
        """The address of a database of this server."""
        return f"postgresql://heddle@127.0.0.1:{self.port}/{database}"

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.address("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        # Those of connections outlive a killed server for a moment, and answer.
        others = psutil.Process(self._process.pid).children(recursive=True)
        self._process.send_signal(number)
        self._process.wait(_STARTED_WITHIN)
        psutil.wait_procs(others, _STARTED_WITHIN)
        self._process = None

    def __enter__(self) -> "PostgresServer":
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def _as_ordinary_user() -> tuple[str, ...]:
    """What a command begins with so that it ends with this process, and is not run by root: PostgreSQL refuses that."""
    ending = ("setpriv", "--pdeathsig", "INT")
    if os.geteuid() != 0:
        return ending
    owner = pwd.getpwnam(_ordinary_user())
    return (*ending, f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups")


def _ordinary_user() -> str:
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server per test worker; without an installed PostgreSQL the tests are skipped."""
    if programs() is None:
        pytest.skip(f"no PostgreSQL is installed under {_HOME}: apt-get install postgresql")
    yield postgres_server()


@cache
def postgres_server() -> PostgresServer:
    """The server of this test process, started when first asked for."""
    server = PostgresServer().start()
    atexit.register(server.__exit__)
    return server
