"""The command line, as a user types it."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import scale
from tests.support.zygote import zygote

_TIMEOUT = 300.0
"""Far more than any command needs, on a busy machine too."""


def heddle(*words: object, **settings: object) -> "subprocess.CompletedProcess[str]":
    """Run `heddle ...` to its end; settings become HEDDLE_* variables.

    Keys are where the servers of the tests with that data folder look for them.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
    if words[0] in ("keys", "migrate") and "--data" in words:
        settings = scale.settings_of(scale.EVERYWHERE, Path(str(words[words.index("--data") + 1]))) | settings
    environment |= {f"HEDDLE_{name.upper()}": str(value) for name, value in settings.items()}
    arguments = [str(word) for word in words]
    command = [sys.executable, "-m", "heddle", *arguments]
    forking = zygote()
    if forking is None:
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    with tempfile.TemporaryDirectory(prefix="heddle-cli-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = forking.start(arguments, environment, out, err)
        try:
            code = process.wait(_TIMEOUT)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())


def make_key(data: Path, user: str, *words: object) -> str:
    """A new key of a data folder."""
    done = heddle("keys", "create", "--quiet", "--data", data, "--user", user, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
