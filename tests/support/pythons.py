"""The Pythons that are installed on this machine: `python -m tests.support.pythons 3.12` prints the path of one."""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path


@cache
def find_python(minor: str) -> Path | None:
    """The interpreter of a version such as `3.12`, on the path or below pyenv; None where there is none."""
    on_path = shutil.which(f"python{minor}")
    below = sorted(Path.home().glob(f".pyenv/versions/{minor}.*/bin/python{minor}"), reverse=True)
    candidates = [*([Path(on_path)] if on_path else []), *below]
    return next((path for path in candidates if _runs(path)), None)


def _runs(path: Path) -> bool:
    """Whether it is an interpreter, and no shim for one that is not there."""
    return subprocess.run([path, "-c", "import ssl"], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    found = find_python(sys.argv[1])
    if found is None:
        raise SystemExit(f"Python {sys.argv[1]} is not installed")
    print(found)
