"""`heddle backup`, `restore` and `migrate`: everything that is stored, in one folder or one tar file."""

import contextlib
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

import heddle
from heddle import modes
from heddle.errors import HeddleError
from heddle.setting_kinds import MIB
from heddle.settings import Settings
from heddle.store import direct
from heddle.store.blobs.folder import FILES
from heddle.store.lock import NAME as LOCK
from heddle.store.lock import DataLock
from heddle.store.sqlite.store import DATABASE
from heddle.wire import times

MANIFEST = "backup.json"
_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")
KEPT = (FILES, "adapters", "training")
"""The folders that rows of the database name: blobs, adapter versions, checkpoints."""
PASSING = ("tmp", "jobs")
"""Folders of what is half written, and of jobs at work; so is what begins with a dot."""
_FORMAT = 1


def migrate(settings: Settings) -> list[str]:
    """Bring the control tables to this version's schema; returns what to tell the operator."""
    where = settings.data if settings.control == "sqlite" else "the control database"
    return direct.migrate(settings) or [f"{where} is on the current schema"]


def _in_the_folder(settings: Settings) -> None:
    """Raise HeddleError where the databases lie elsewhere: a copy of the folder would look whole and not be it."""
    for name in ("store", "control"):
        if getattr(settings, name) != "sqlite":
            source = settings.sources.get(name, "the settings")
            raise HeddleError(
                f"{name} (from {source}) is no SQLite, and backup and restore are of the data folder only:"
                " back up ClickHouse and PostgreSQL with their own tools, or carry the projects with heddle export"
            )


def back_up(settings: Settings, target: str) -> str:
    """Copy the data folder to a new folder or tar file; returns what to tell the operator. Raises HeddleError."""
    _in_the_folder(settings)
    source, goal = Path(settings.data), Path(target)
    if not (source / DATABASE).exists():
        raise HeddleError(f"There is nothing to back up: {source / DATABASE} does not exist")
    if goal.exists():
        raise HeddleError(f"{goal} exists already; a backup is written to a new place")
    goal.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last step is a rename: a backup is either whole or not there.
    with tempfile.TemporaryDirectory(prefix=f".{goal.name}.", dir=goal.parent) as scratch:
        copy = Path(scratch) / "copy"
        copy.mkdir()
        manifest = _copy(source, copy)
        modes.make_private(copy)
        made = copy
        if goal.name.endswith(_TAR_ENDINGS):
            made = Path(scratch) / "archive"
            with tarfile.open(made, "w:gz" if goal.name.endswith("gz") else "w") as archive:
                for path in sorted(copy.iterdir()):
                    archive.add(path, arcname=path.name)
        made.rename(goal)
    size = (manifest["database_bytes"] + manifest["file_bytes"]) / MIB
    return f"backed up {source} to {goal}: {size:.1f} MiB in the database and {manifest['files']} files"


def _copy(source: Path, target: Path) -> dict[str, Any]:
    """Copy the database first: every file that its rows name was written before them."""
    with (
        contextlib.closing(sqlite3.connect(source / DATABASE, timeout=60)) as live,
        contextlib.closing(sqlite3.connect(target / DATABASE)) as copy,
    ):
        live.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # the copy is one file, without a log beside it
    _verify(target / DATABASE)
    files, file_bytes = 0, 0
    for path in _files(source):
        destination = target / path.relative_to(source)
        destination.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # deleted between listing and copying
            shutil.copy2(path, destination)
            files += 1
            file_bytes += destination.stat().st_size
    manifest = {
        "format": _FORMAT,
        "heddle": heddle.__version__,
        "schema": direct.schema_version(target / DATABASE),
        "made_at": times.to_iso(times.now()),
        "database_bytes": (target / DATABASE).stat().st_size,
        "files": files,
        "file_bytes": file_bytes,
    }
    (target / MANIFEST).write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
    return manifest


def _files(data: Path) -> Iterator[Path]:
    """The whole files beside the database; each appeared under its name before a row named it, and never changes."""
    for folder in KEPT:
        for parent, inner, names in os.walk(data / folder):
            inner[:] = [name for name in inner if name not in PASSING and not name.startswith(".")]
            for name in names:
                yield Path(parent) / name


def _verify(database: Path) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise HeddleError(f"The copy of the database is damaged: {found}")


def restore(settings: Settings, source: str) -> str:
    """Put a backup into an empty data folder; returns what to tell the operator. Raises HeddleError."""
    _in_the_folder(settings)
    data = Path(settings.data)
    with DataLock(data):
        present = sorted(path.name for path in data.iterdir() if path.name != LOCK)
        if present:
            raise HeddleError(f"{data} is not empty ({', '.join(present[:5])}); restore goes into an empty folder only")
        with tempfile.TemporaryDirectory(prefix=".restore.", dir=data) as scratch:
            manifest = _unpack(Path(source), Path(scratch))
            modes.make_private(Path(scratch))
            for path in sorted(Path(scratch).iterdir()):
                if path.name in (DATABASE, *KEPT):
                    path.rename(data / path.name)
    return f"restored the backup of {manifest['made_at']} into {data}; `heddle serve --data {data}` serves it"


def _unpack(source: Path, target: Path) -> dict[str, Any]:
    """Bring a backup's parts into a folder and check them against its manifest."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.is_file() and tarfile.is_tarfile(source):
        with tarfile.open(source) as archive:
            archive.extractall(target, filter="data")
    else:
        raise HeddleError(f"{source} is no backup: it is neither a folder nor a tar file")
    if not (target / MANIFEST).is_file() or not (target / DATABASE).is_file():
        raise HeddleError(f"{source} is no backup of heddle: {MANIFEST} or {DATABASE} is missing in it")
    manifest: dict[str, Any] = orjson.loads((target / MANIFEST).read_bytes())
    if manifest.get("format") != _FORMAT:
        raise HeddleError(
            f"{source} has a format that this heddle does not know; it was made by {manifest.get('heddle')}"
        )
    found = sum(1 for _ in _files(target))
    if found != manifest["files"]:
        raise HeddleError(f"{source} is not whole: {found} files instead of {manifest['files']}")
    _verify(target / DATABASE)
    return manifest
