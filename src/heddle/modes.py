"""Who may read what heddle writes: its own user alone."""

import os
import shlex
import stat
from pathlib import Path

FOLDER, FILE = 0o700, 0o600
_OTHERS = 0o077


def keep_private() -> None:
    """From now on what this process and its children make is 0700 and 0600, whatever the caller's umask was."""
    os.umask(_OTHERS)


def make_private(root: Path) -> None:
    """Take group and others off a file or a folder and everything in it; links are left alone."""
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(FOLDER if path.is_dir() else FILE)


def open_to_others(folder: Path) -> str | None:
    """Whether other users of the machine come into a data folder, as text, or None; all else lies inside it."""
    mode = stat.S_IMODE(folder.stat().st_mode) if folder.is_dir() else 0
    return f"{folder} has the mode {mode:04o}" if mode & _OTHERS else None


def remedy(folder: Path) -> str:
    """The command that takes others off a data folder."""
    return f"chmod -R go-rwx {shlex.quote(str(folder))}"
