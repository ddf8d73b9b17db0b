"""The command line, as a user types it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support import scale


def heddle(*words: object, **settings: object) -> "subprocess.CompletedProcess[str]":
    """Run `heddle ...` to its end; settings become HEDDLE_* variables.

    Keys are where the servers of the tests with that data folder look for them.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
    if words[0] in ("keys", "migrate") and "--data" in words:
        settings = scale.settings_of(scale.EVERYWHERE, Path(str(words[words.index("--data") + 1]))) | settings
    environment |= {f"HEDDLE_{name.upper()}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-m", "heddle", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def make_key(data: Path, user: str, *words: object) -> str:
    """A new key of a data folder."""
    done = heddle("keys", "create", "--quiet", "--data", data, "--user", user, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
