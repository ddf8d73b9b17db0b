"""`heddle check`: what is wrong with this installation, and how to mend it."""

import contextlib
import importlib.util
import os
import shutil
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.markup import escape

from heddle import modes
from heddle.errors import HeddleError
from heddle.setting_kinds import GIB, MIB
from heddle.settings import Settings, without_credentials
from heddle.store import direct, lock
from heddle.store import open as opening
from heddle.store.blobs.open import open_blobs
from heddle.store.sqlite import migrations
from heddle.store.sqlite.connection import MINIMUM_VERSION
from heddle.store.sqlite.store import DATABASE

LEAST_FREE_BYTES = GIB
_OLDEST_CLOCK = 1_760_000_000
_ANSWER_SECONDS = 10
_NETWORK_FILE_SYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "sshfs", "fuse.sshfs", "9p", "afs", "ceph", "glusterfs")
)
_EXTRAS = {
    "inference": ("torch", "tokenizers", "safetensors", "llguidance", "jinja2"),
    "training": ("torch", "tokenizers", "safetensors", "jinja2", "numpy"),
    "clickhouse": ("clickhouse_connect",),
    "postgres": ("psycopg", "alembic"),
    "s3": ("fsspec", "s3fs"),
    "vllm": ("tokenizers", "jinja2", "llguidance"),
    "parquet": ("pyarrow",),
    "mcp": ("mcp",),
    "demo": ("weave", "gql"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `mend` says what to do, `is_fault` whether heddle cannot work so."""

    what: str
    found: str
    mend: str = ""
    is_fault: bool = False


def run(settings: Settings) -> bool:
    """Print every finding; True when nothing keeps heddle from working."""
    findings = list(look(settings))
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        mark = "[red]✗[/red]" if finding.is_fault else "[yellow]![/yellow]" if finding.mend else "[green]✓[/green]"
        console.print(f"{mark} {finding.what:<17} {escape(finding.found)}")
        if finding.mend:
            console.print(f"  {'':<17} [bold]to mend it:[/bold] {escape(finding.mend)}")
    faults = sum(finding.is_fault for finding in findings)
    print(f"heddle check: {faults} fault{'' if faults == 1 else 's'}" if faults else "heddle check: all is well")
    return faults == 0


def look(settings: Settings) -> Iterator[Finding]:
    """Every finding, in the order of what depends on what."""
    folder = Path(settings.data)
    yield _python()
    yield _sqlite()
    yield _clock()
    yield _folder(folder)
    yield _readers(folder)
    yield _file_system(folder, settings.control == "sqlite")
    yield _free_space(folder)
    holder = lock.holder(folder)
    yield Finding("data lock", f"held by {holder}" if holder else "free")
    if settings.control == "sqlite":
        yield from _database(folder / DATABASE)
        yield from _policies(folder)
    else:
        yield _control(settings)
    yield from _elsewhere(settings)
    yield _port(settings, served=holder is not None)
    yield from _keys(settings)
    yield from _extras()


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    is_old = sys.version_info < (3, 11)
    return Finding("python", found, "install Python 3.11 or newer" if is_old else "", is_old)


def _sqlite() -> Finding:
    needed = ".".join(map(str, MINIMUM_VERSION))
    is_old = sqlite3.sqlite_version_info < MINIMUM_VERSION
    mend = f"use a Python whose sqlite3 module has SQLite {needed} or newer" if is_old else ""
    return Finding("sqlite", sqlite3.sqlite_version, mend, is_old)


def _clock() -> Finding:
    is_wrong = time.time() < _OLDEST_CLOCK
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return Finding(
        "clock", found, "set the machine's clock: ids and times are made from it" if is_wrong else "", is_wrong
    )


def _existing(folder: Path) -> Path:
    """The folder, or the nearest of its parents that is there."""
    path = folder.absolute()
    while not path.exists():
        path = path.parent
    return path


def _folder(folder: Path) -> Finding:
    there = _existing(folder)
    found = str(folder) if there == folder.absolute() else f"{folder} (will be made)"
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"heddle")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return Finding(
            "data folder", f"{found}: {error.strerror}", f"make {there} a folder that this user can write to", True
        )
    return Finding("data folder", found)


def _readers(folder: Path) -> Finding:
    found = modes.open_to_others(folder)
    if found is None:
        return Finding("file modes", "the data folder is this user's alone")
    return Finding("file modes", f"other users of this machine can read it: {found}", modes.remedy(folder))


def _file_system(folder: Path, has_database: bool) -> Finding:
    kind = _mounted(_existing(folder).resolve())
    mend = "SQLite needs a local disk: locks of network file systems are not reliable; choose another --data"
    return Finding("file system", kind or "not known", mend if has_database and kind in _NETWORK_FILE_SYSTEMS else "")


def _mounted(path: Path) -> str | None:
    """The kind of file system that a path lies on, where the system says so."""
    with contextlib.suppress(OSError):
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
        inside = [(len(point), kind) for point, kind in mounts if path.is_relative_to(point)]
        return max(inside)[1] if inside else None
    return None


def _free_space(folder: Path) -> Finding:
    free = shutil.disk_usage(_existing(folder)).free
    mend = (
        "free some disk, or set max_database_bytes: at the limit writes are refused with 507"
        if free < LEAST_FREE_BYTES
        else ""
    )
    return Finding("free disk", f"{free / GIB:.1f} GiB", mend)


def _database(path: Path) -> Iterator[Finding]:
    if not path.exists():
        yield Finding("database", "none yet; the first start makes it")
        return
    try:
        version = direct.schema_version(path)
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            state = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except (sqlite3.Error, HeddleError) as error:
        yield Finding("database", str(error), "restore the last backup: heddle restore", True)
        return
    if version > migrations.CURRENT:
        yield Finding("schema", f"{version}, of a newer heddle", "upgrade heddle", True)
    elif version < migrations.CURRENT:
        yield Finding("schema", f"{version} of {migrations.CURRENT}", "heddle migrate (serve does it too)")
    else:
        yield Finding("schema", str(version))
    size = f"{path.stat().st_size / MIB:.1f} MiB"
    is_damaged = state != "ok"
    found = f"{size}, {'damaged: ' + state if is_damaged else 'sound'}"
    yield Finding("database", found, "restore the last backup: heddle restore" if is_damaged else "", is_damaged)


def _control(settings: Settings) -> Finding:
    """The control tables on PostgreSQL."""
    try:
        found, known = direct.control_version(settings)
    except HeddleError as error:
        return Finding("control", error.reason, "start PostgreSQL, or mend the setting control", True)
    if found > known:
        return Finding("control", f"PostgreSQL, schema {found} of a newer heddle", "upgrade heddle", True)
    mend = "" if found == known else "heddle migrate (serve does it too)"
    return Finding("control", f"PostgreSQL, schema {found} of {known}", mend)


def _elsewhere(settings: Settings) -> Iterator[Finding]:
    """Whether the settings of the stores go together, and whether ClickHouse and the object store answer."""
    try:
        opening.check(settings)
    except HeddleError as error:
        yield Finding("stores", error.reason, "change one of these settings", True)
        return
    if settings.store != "sqlite":
        yield _calls(settings)
    if settings.files != "folder":
        yield _files(settings)


def _calls(settings: Settings) -> Finding:
    """The calls on ClickHouse."""
    # The packages of ClickHouse are an extra.
    from heddle.store.clickhouse.client import Clickhouse

    clickhouse = Clickhouse(settings.store, 1, _ANSWER_SECONDS)
    try:
        return Finding("store", clickhouse.look())
    except HeddleError as error:
        return Finding("store", error.reason, "start ClickHouse, or mend the setting store", True)
    finally:
        clickhouse.close()


def _files(settings: Settings) -> Finding:
    """The files in an object store."""
    try:
        open_blobs(settings).ping()
    except HeddleError as error:
        return Finding("files", error.reason, "mend the setting files, or what it needs (docs/scaling.md)", True)
    return Finding("files", without_credentials(settings.files))


def _policies(folder: Path) -> Iterator[Finding]:
    """The folders that adapter versions and checkpoints lie in."""
    try:
        named = direct.policy_folders(folder / DATABASE)
    except HeddleError:
        return  # the finding about the database says it
    if not named:
        return
    lost = [name for name in named if not (folder / name / "adapter_model.safetensors").is_file()]
    found = f"{len(named)} adapters and checkpoints" + (
        f", {len(lost)} without their weights: {lost[0]}" if lost else ""
    )
    yield Finding("policies", found, "restore the last backup, or delete these steps" if lost else "", bool(lost))


def _port(settings: Settings, served: bool) -> Finding:
    where = f"{settings.host}:{settings.port}"
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((settings.host, settings.port), family=family).close()
    except OSError as error:
        if served:
            return Finding("address", f"{where} is in use, and so is the data folder: heddle runs")
        if settings.control != "sqlite" and _is_heddle(where):
            return Finding("address", f"{where} is in use: heddle runs")
        return Finding("address", f"{where}: {error.strerror}", "choose another with --host and --port", True)
    return Finding("address", f"{where} is free")


def _is_heddle(where: str) -> bool:
    """Whether a server of heddle answers at an address."""
    try:
        body = httpx.get(f"http://{where}/server_info", timeout=_ANSWER_SECONDS, trust_env=False).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return False
    return isinstance(body, dict) and "heddle_version" in body


def _keys(settings: Settings) -> Iterator[Finding]:
    if not settings.needs_key:
        is_open = not settings.is_loopback
        yield Finding(
            "auth", "off", "auth = off works on a loopback address only; leave auth out" if is_open else "", is_open
        )
        return
    try:
        count = direct.usable_keys(settings)
    except HeddleError:
        return  # the finding about the database says it
    if not count:
        where = f"--data {settings.data}" if settings.control == "sqlite" else "--control postgresql://..."
        yield Finding("auth", "on, and there is no key", f"heddle keys create {where} --user NAME --scope admin", True)
    else:
        yield Finding("auth", f"on, {count} usable keys")


def _extras() -> Iterator[Finding]:
    for extra, modules in _EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        found = f"not installed (pip install 'heddle[{extra}]')" if missing else "installed"
        yield Finding(f"extra {extra}", found)
