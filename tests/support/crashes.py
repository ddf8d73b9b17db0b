"""What a test worker did when it crashed: a plugin of pytest that tells it below the results.

What a dying process says on its outputs is lost with the capture of its test; this is kept in a file.
"""

import contextlib
import faulthandler
import signal
import tempfile
from pathlib import Path
from typing import Any, TextIO

import pytest

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGPROF, signal.SIGXCPU)
_FILE = pytest.StashKey[TextIO]()
_TOLD = pytest.StashKey[list[str]]()


def _path(worker: dict[str, Any]) -> Path:
    return Path(tempfile.gettempdir()) / f"heddle-tests-{worker['testrunuid']}-{worker['workerid']}"


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the stacks of all threads of a worker that aborts or that a signal ends."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    session.config.stash[_FILE] = file = _path(worker).open("w", encoding="utf-8")
    faulthandler.enable(file)
    for number in _ENDING:
        faulthandler.register(number, file, chain=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Remove the file of a worker that ends in order."""
    file = session.config.stash.get(_FILE, None)
    if file is not None:
        for number in _ENDING:
            faulthandler.unregister(number)
        faulthandler.disable()
        file.close()
        Path(file.name).unlink(missing_ok=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take what a worker left that ended out of order."""
    if error:
        told = ""
        with contextlib.suppress(FileNotFoundError):
            told = (path := _path(node.workerinput)).read_text(encoding="utf-8")
            path.unlink()
        told = told or "nothing: kill -9, or it ended by itself"
        node.config.stash.setdefault(_TOLD, []).append(f"{node.gateway.id} ended with:\n{told}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tell it."""
    for told in config.stash.get(_TOLD, []):
        terminalreporter.section("crashed worker")
        terminalreporter.line(told)
