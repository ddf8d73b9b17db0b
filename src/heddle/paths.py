"""Paths and who may read them: what a path that a client, an archive or a row names really means, and that it lies
where it must; that what heddle writes is its own user's alone; and whether the files of a folder are as they were."""

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from heddle.errors import InvalidRequest

TRAINING = "training"
"""The folder of trainable models, below the data folder."""
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. -]{0,127}")
_SCRATCH = re.compile(r"\..+\.[a-z0-9_]{8}\.unfinished", re.DOTALL)
"""The names of what `open_scratch` makes."""
FOLDER, FILE = 0o700, 0o600
_OTHERS = 0o077
SUMS = "SHA256SUMS"
"""The file of a folder that holds the SHA-256 of every other file in it, as `sha256sum --check` reads it."""


class OutsideRoot(InvalidRequest):
    """A path that leads out of its root, or is none."""


def resolve(text: str | Path) -> Path:
    """The real place of a path, links followed, whether or not something is there; raises OutsideRoot for no path."""
    try:
        return Path(text).resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise OutsideRoot(f"{str(text)[:200]!r} is not a valid path") from error


def resolve_below(root: Path, text: str | Path) -> Path:
    """The real place of a path inside a folder, links followed; a relative path begins there.

    Raises OutsideRoot for one that leads elsewhere, and for the folder itself.
    """
    top = resolve(root)
    found = resolve(top / text)
    if top not in found.parents:
        raise OutsideRoot(f"{str(text)[:200]!r} is outside {root.name}")
    return found


def is_below(root: Path, text: str | Path) -> bool:
    """True for a path inside a folder, links followed; either may be reached by a link itself."""
    try:
        resolve_below(root, text)
    except OutsideRoot:
        return False
    return True


def require_apart(data: str | Path, place: str | Path) -> None:
    """Raise InvalidRequest for a copy (of what the data folder holds) inside of that folder, or around it."""
    folder, copy = resolve(data), resolve(place)
    if folder == copy or folder in copy.parents or copy in folder.parents:
        raise InvalidRequest(f"{place} must not be inside the data folder {data}, nor contain it")


def as_part(name: str) -> str:
    """An id as one part of a path: its SHA-256 where it is none by itself."""
    return name if _PART.fullmatch(name) else hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()


def model_folder(model_id: str) -> str:
    """Everything of a trainable model; relative to the data folder."""
    return f"{TRAINING}/{as_part(model_id)}"


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


@contextlib.contextmanager
def open_scratch(target: Path) -> Iterator[Path]:
    """A new folder beside a place, for what is half made of it; those that killed processes left go. Raises OSError.

    Those of other places in the same folder go, too: a backup or an export often has a new name each day.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.ExitStack() as opening:
            # One at a time: a folder that is not locked yet looks like one that was left. Where there are no such
            # locks, what is left is nobody's to tell from what is at work, and stays.
            with contextlib.suppress(OSError):
                opening.enter_context(_held(target.parent, fcntl.LOCK_EX))
            for path in target.parent.iterdir():
                if _SCRATCH.fullmatch(path.name):
                    with contextlib.suppress(OSError), _held(path):
                        shutil.rmtree(path, ignore_errors=True)
            path = Path(tempfile.mkdtemp(".unfinished", f".{target.name}.", target.parent))
            stack.callback(shutil.rmtree, path, ignore_errors=True)
            with contextlib.suppress(OSError):
                stack.enter_context(_held(path))
        yield path


@contextlib.contextmanager
def _held(folder: Path, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> Iterator[None]:
    """The lock of a folder; raises OSError while another process holds it, unless `how` is to wait."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_sums(folder: Path) -> None:
    """Note the SHA-256 of every file of a folder in it; raises OSError."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    lines = [f"{_sha256(folder / name)}  {name}\n" for name in names if name != SUMS]
    (folder / SUMS).write_text("".join(lines))


def damaged_files(folder: Path) -> list[str]:
    """The files of a folder that are missing or not as they were noted; none where nothing was noted."""
    try:
        lines = (folder / SUMS).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    noted = [line.partition("  ") for line in lines]
    return [name or SUMS for digest, _, name in noted if not name or _sha256(folder / name) != digest]


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return "none"
