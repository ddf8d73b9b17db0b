"""`heddle backup`, `restore` and `migrate`: everything that is stored, in one folder or one tar file."""

import contextlib
import fcntl
import gzip
import math
import os
import re
import shutil
import sqlite3
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BufferedIOBase
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

import orjson

import heddle
from heddle import paths
from heddle.errors import HeddleError
from heddle.setting_kinds import MIB
from heddle.settings import Settings
from heddle.store.blobs.folder import FolderBlobs
from heddle.store.data_folder import FILES, LOCK, BackupState, DataLock
from heddle.store.integrity import SqliteIntegrity, check_contents
from heddle.store.open import migrate as migrate_control
from heddle.store.open import schema_version
from heddle.store.sqlite import migrations
from heddle.store.sqlite.connection import connect
from heddle.store.sqlite.database import DATABASE
from heddle.wire import times

MANIFEST = "backup.json"
TIME = "{time}"
"""Stands for the instant in the name of one backup of many."""
_INSTANT, _INSTANT_PATTERN = "%Y%m%dT%H%M%SZ", r"\d{8}T\d{6}Z"
_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")
_GZIP_LEVEL = 3
"""Half the time of the usual 9, for a few percent more bytes."""
KEPT = (FILES, "adapters", "training")
"""The folders that rows of the database name: blobs, adapter versions, checkpoints."""
PASSING = ("tmp", "jobs")
"""Folders of what is half written, and of jobs at work; so is what begins with a dot."""
_FORMAT = 1
_RETRY_SECONDS = 600.0
Copy = Callable[[str, str], object]


class DamagedCopy(HeddleError):
    """A backup holds something else than what it was made of."""


def migrate(settings: Settings) -> list[str]:
    """Bring the control tables to this version's schema; returns what to tell the operator."""
    where = settings.data if settings.control == "sqlite" else "the control database"
    return migrate_control(settings) or [f"{where} is on the current schema"]


def _in_the_folder(settings: Settings) -> None:
    """Raise HeddleError where the databases lie elsewhere: a copy of the folder would look whole and not be it."""
    for name in ("store", "control"):
        if getattr(settings, name) != "sqlite":
            source = settings.sources.get(name, "the settings")
            raise HeddleError(
                f"{name} (from {source}) is not SQLite; backup and restore only cover the data folder:"
                " back up ClickHouse and PostgreSQL with their own tools, or use heddle export"
            )


def back_up(settings: Settings, target: str, keep: int | None = None, verify: int = 1) -> str:
    """Copy the data folder to a new folder or tar file; returns what to tell the operator. Raises HeddleError.

    With `{time}` in its name the target is one of many, of which the newest `keep` stay. Each `verify`-th is restored
    into a temporary folder beside it and checked before it gets its name; 0 restores none. What came of it is noted in
    the data folder.
    """
    _in_the_folder(settings)
    source = Path(settings.data)
    if not (source / DATABASE).exists():
        raise HeddleError(f"There is nothing to back up: {source / DATABASE} does not exist")
    paths.require_apart(source, target)
    series = Series(target)
    before, began = BackupState.read(source), time.monotonic()
    is_due = verify > 0 and before.since_restored + 1 >= verify
    try:
        with series.alone():
            goal, manifest, notes = _make(settings, series, is_due)
            removed = series.rotate(keep)
    except (OSError, sqlite3.Error, tarfile.TarError, HeddleError) as error:
        # A disk that is full may be why, and then takes no note of it either.
        with contextlib.suppress(HeddleError):
            replace(before, failed_at=times.now(), error=str(error)).write(source)
        raise error if isinstance(error, HeddleError) else HeddleError(f"The backup failed: {error}") from error
    now, size = times.now(), manifest["database_bytes"] + manifest["file_bytes"]
    after = BackupState(made_at=now, target=str(goal.absolute()), bytes=size, seconds=time.monotonic() - began)
    restored_at, since = (now, 0) if is_due else (before.restored_at, before.since_restored + 1)
    replace(after, restored_at=restored_at, since_restored=since, notes=notes).write(source)
    told = f"backed up {source} to {goal}: {size / MIB:.1f} MiB in the database and {manifest['files']} files"
    told += "; restored into a temporary folder and checked" if is_due else ""
    told += f"; removed {', '.join(removed)}" if removed else ""
    return "; ".join([told, *notes])


def back_up_regularly(
    settings: Settings, target: str, every: float, keep: int | None, verify: int, tell: Callable[[str, bool], None]
) -> NoReturn:
    """Make a backup every so many seconds after the last, whoever made it; `tell` gets each outcome, and if it is bad.

    After a failure the next attempt comes soon. Raises HeddleError for settings that cannot be used.
    """
    _in_the_folder(settings)
    paths.require_apart(settings.data, target)
    while True:
        made_at = BackupState.read(Path(settings.data)).made_at
        time.sleep(max(0.0, made_at / times.SECOND + every - time.time()))
        try:
            tell(back_up(settings, target, keep, verify), False)
        except HeddleError as error:
            tell(str(error), True)
            time.sleep(min(every, _RETRY_SECONDS))


class Series:
    """The backups that one target names: a single one, or with `{time}` in its name any number."""

    def __init__(self, target: str) -> None:
        """Raises HeddleError for `{time}` in the name of a folder above."""
        self._path = Path(target)
        self._folder, name = self._path.parent, self._path.name
        self.is_many = TIME in name
        if TIME in str(self._folder) or name.count(TIME) > 1:
            raise HeddleError(f"{target} cannot be used: {TIME} must occur once, in the last part of the path")
        before, _, behind = name.partition(TIME)
        self._pattern = re.compile(re.escape(before) + _INSTANT_PATTERN + re.escape(behind))

    def made(self) -> list[Path]:
        """The backups that are there, oldest first."""
        found = self._folder.iterdir() if self.is_many and self._folder.is_dir() else ()
        return sorted(path for path in found if self._pattern.fullmatch(path.name))

    def next(self) -> Path:
        """The place of a new one; raises HeddleError when something is there."""
        instant = time.strftime(_INSTANT, time.gmtime())
        goal = self._folder / self._path.name.replace(TIME, instant)
        if goal.exists():
            raise HeddleError(f"{goal} already exists; choose a new path for the backup")
        return goal

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes out, and remove what one that was killed left half written; raises HeddleError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self.is_many:
            yield
            return
        with open(self._folder / ".lock", "ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise HeddleError(f"Another backup to {self._folder} is still running") from None
            for path in self._folder.iterdir():
                if path.name.startswith(".") and self._pattern.match(path.name[1:]):
                    shutil.rmtree(path)
            yield

    def rotate(self, keep: int | None) -> list[str]:
        """Remove all but the newest; returns the names of those that went."""
        removed = self.made()[:-keep] if keep else []
        for path in removed:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return [path.name for path in removed]


def _make(settings: Settings, series: Series, is_tried: bool) -> tuple[Path, dict[str, Any], tuple[str, ...]]:
    """Make a backup and give it its name; returns that, its manifest, and what is wrong with the data itself."""
    goal = series.next()
    earlier = [path for path in series.made() if path.is_dir() and not goal.name.endswith(_TAR_ENDINGS)][-1:]
    while True:
        # Beside the target, so that the last step is a rename: a backup is either whole or not there.
        with paths.open_scratch(goal) as scratch:
            copy = scratch / "copy"
            copy.mkdir()
            manifest = _copy(Path(settings.data), copy, earlier[0] if earlier else None)
            paths.make_private(copy)
            made = _pack(copy, scratch / "archive", goal.name) if goal.name.endswith(_TAR_ENDINGS) else copy
            try:
                notes = _find_missing(settings, copy) if not is_tried else _try(settings, made, scratch / "trial")
            except DamagedCopy:
                if not earlier:
                    raise
                earlier = []  # what an earlier backup shares with this one has gone bad there
                continue
            _sync(made)
            made.rename(goal)
            paths.sync(goal.parent)
            return goal, manifest, tuple(notes)


def _pack(copy: Path, made: Path, name: str) -> Path:
    with contextlib.ExitStack() as stack:
        file: BufferedIOBase = stack.enter_context(made.open("wb"))
        if name.endswith("gz"):
            file = stack.enter_context(gzip.GzipFile("", "wb", _GZIP_LEVEL, file))
        archive = stack.enter_context(tarfile.open(fileobj=cast(BinaryIO, file), mode="w"))
        for path in sorted(copy.iterdir()):
            archive.add(path, arcname=path.name)
    return made


def _sync(made: Path) -> None:
    """Wait until a backup is on the disk: the one that it takes the place of is removed next."""
    for path in (made, *made.rglob("*")):
        paths.sync(path)


def _find_missing(settings: Settings, copy: Path) -> list[str]:
    """What the database of a copy names and the data folder lacks."""
    if settings.files != "folder":
        return []
    keys = _named_blobs(copy)
    found = check_contents(keys, FolderBlobs(copy / FILES), math.inf, reads=False)
    return _notes(len(found.problems))


def _notes(lost: int) -> list[str]:
    return [f"{lost} contents that the database names are missing or damaged (heddle check)"] if lost else []


def _named_blobs(folder: Path) -> list[str]:
    known = schema_version(folder / DATABASE) == migrations.CURRENT
    return SqliteIntegrity(folder / DATABASE).named_blobs() if known else []


def _try(settings: Settings, made: Path, trial: Path) -> list[str]:
    """Restore a backup and check all of it; returns what is wrong with the data that it was made of.

    Raises DamagedCopy for what was right there.
    """
    trial.mkdir()
    _unpack(made, trial, _link)
    checks = SqliteIntegrity(trial / DATABASE)
    problems = checks.check_tables(math.inf).problems
    if schema_version(trial / DATABASE) == migrations.CURRENT:
        problems += checks.check_rows(math.inf).problems
    if problems:
        raise HeddleError(f"The backup was restored, but its database is damaged: {problems[0]} (heddle check --full)")
    if settings.files != "folder":
        return []
    found = check_contents(_named_blobs(trial), FolderBlobs(trial / FILES), math.inf)
    keys = [text.split()[0] for text in found.problems]
    lost = check_contents(keys, FolderBlobs(Path(settings.data) / FILES), math.inf)
    if len(lost.problems) < len(keys):
        raise DamagedCopy(f"The backup was restored, but {len(keys)} files are damaged: {keys[0]}")
    return _notes(len(keys))


def _link(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, or copy it where that cannot be."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _copy(source: Path, target: Path, earlier: Path | None) -> dict[str, Any]:
    """Copy the database first: every file that its rows name was written before them.

    A file that an earlier backup holds is shared with it.
    """
    with (
        contextlib.closing(connect(source / DATABASE, timeout=60)) as live,
        contextlib.closing(connect(target / DATABASE)) as copy,
    ):
        live.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # the copy is one file, without a log beside it
    _verify(target / DATABASE)
    files, file_bytes = 0, 0
    for path in _files(source):
        name = path.relative_to(source)
        destination = target / name
        destination.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # deleted between listing and copying
            _share(path, earlier / name if earlier else None, destination)
            files += 1
            file_bytes += destination.stat().st_size
    manifest = {
        "format": _FORMAT,
        "heddle": heddle.__version__,
        "schema": schema_version(target / DATABASE),
        "made_at": times.to_iso(times.now()),
        "database_bytes": (target / DATABASE).stat().st_size,
        "files": files,
        "file_bytes": file_bytes,
    }
    (target / MANIFEST).write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
    return manifest


def _share(path: Path, earlier: Path | None, destination: Path) -> None:
    now = path.stat()
    if earlier is not None and earlier.is_file():
        before = earlier.stat()
        if (before.st_size, before.st_mtime_ns) == (now.st_size, now.st_mtime_ns):
            _link(earlier, destination)
            return
    shutil.copy2(path, destination)


def _files(data: Path) -> Iterator[Path]:
    """The whole files beside the database; each appeared under its name before a row named it, and never changes."""
    for folder in KEPT:
        for parent, inner, names in os.walk(data / folder):
            inner[:] = [name for name in inner if name not in PASSING and not name.startswith(".")]
            for name in names:
                yield Path(parent) / name


def _verify(database: Path) -> None:
    try:
        with contextlib.closing(connect(database)) as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        found = error
    if found != "ok":
        raise HeddleError(f"The copy of the database is damaged: {found}")


def restore(settings: Settings, source: str) -> str:
    """Put a backup into an empty data folder; returns what to tell the operator. Raises HeddleError."""
    _in_the_folder(settings)
    data = Path(settings.data)
    paths.require_apart(data, source)
    with DataLock(data), paths.open_scratch(data / "restore") as scratch:
        present = sorted(path.name for path in data.iterdir() if path.name not in (LOCK, scratch.name))
        if present:
            found = ", ".join(present[:5])
            raise HeddleError(f"{data} is not empty ({found}); restore requires an empty folder")
        manifest = _unpack(Path(source), scratch, shutil.copy2)
        paths.make_private(scratch)
        for path in sorted(scratch.iterdir()):
            if path.name in (DATABASE, *KEPT):
                path.rename(data / path.name)
    return f"restored the backup of {manifest['made_at']} into {data}; `heddle serve --data {data}` serves it"


def restore_before(settings: Settings, schema: int) -> str:
    """Bring the database back to what it was before the upgrade to a schema; returns what to tell the operator.

    The database as it is now stays beside it. Raises HeddleError while a server runs, and without that copy.
    """
    _in_the_folder(settings)
    data = Path(settings.data)
    database, copy = data / DATABASE, data / f"{DATABASE}.before-{schema}"
    with DataLock(data):
        if not copy.is_file():
            known = sorted(path.name.rpartition("-")[2] for path in data.glob(f"{DATABASE}.before-*"))
            raise HeddleError(f"{copy} not found; there are copies from before {', '.join(known) or 'no upgrade'}")
        _verify(copy)
        found = schema_version(database)
        kept = data / f"{DATABASE}.after-{found}-{time.strftime(_INSTANT, time.gmtime())}"
        with contextlib.closing(connect(database)) as live:
            live.execute("PRAGMA journal_mode = DELETE")  # all of it is in one file, which can be renamed
        database.rename(kept)
        copy.rename(database)
        paths.sync(data)
    older = schema_version(database)
    return (
        f"{database} is as it was before the upgrade (schema {older}): start the heddle that you had before it.\n"
        f"What was stored since is in {kept}"
    )


def _unpack(source: Path, target: Path, copy: Copy) -> dict[str, Any]:
    """Bring a backup's parts into a folder and check them against its manifest; `copy` is how files come there."""
    try:
        if source.is_dir():
            _require_parts(source, source)
            shutil.copytree(source, target, dirs_exist_ok=True, copy_function=copy)
        elif source.is_file() and tarfile.is_tarfile(source):
            with tarfile.open(source) as archive:
                archive.extractall(target, filter="data")
            _require_parts(target, source)
        else:
            raise HeddleError(f"{source} is not a backup: it is neither a folder nor a tar file")
        manifest: dict[str, Any] = orjson.loads((target / MANIFEST).read_bytes())
        is_known = manifest["format"] == _FORMAT
        files, made_at = (manifest["files"], manifest["made_at"]) if is_known else (0, "")
        if not (isinstance(files, int) and isinstance(made_at, str)):
            raise ValueError(f"{MANIFEST} is damaged")
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError, TypeError, RecursionError) as error:
        raise HeddleError(f"{source} cannot be restored: {error}") from error
    except KeyError as error:
        raise HeddleError(f"{source} cannot be restored: {error} is missing in {MANIFEST}") from error
    if not is_known:
        raise HeddleError(f"{source} has an unknown format; it was created by {manifest.get('heddle')}")
    found = sum(1 for _ in _files(target))
    if found != files:
        raise HeddleError(f"{source} is incomplete: {found} files instead of {files}")
    _verify(target / DATABASE)
    return manifest


def _require_parts(folder: Path, source: Path) -> None:
    if not (folder / MANIFEST).is_file() or not (folder / DATABASE).is_file():
        raise HeddleError(f"{source} is not a backup of heddle: {MANIFEST} or {DATABASE} is missing")
