"""`heddle check`: problems of this installation, and how to fix them."""

import contextlib
import importlib.util
import math
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

from heddle import paths
from heddle.errors import HeddleError, QueryTimeout
from heddle.extras import install_command
from heddle.setting_kinds import GIB, MIB
from heddle.settings import BadSetting, Settings, without_credentials
from heddle.store import data_folder
from heddle.store import open as stores
from heddle.store.base import Looked
from heddle.store.blobs.open import open_blobs
from heddle.store.integrity import SqliteIntegrity, check_contents
from heddle.store.sqlite import migrations
from heddle.store.sqlite.database import DATABASE, MINIMUM_VERSION
from heddle.store.sqlite.log_damage import find_log_damage
from heddle.wire import times

LEAST_FREE_BYTES = GIB
_OWN = (DATABASE, data_folder.LOCK, data_folder.FILES, paths.TRAINING, "adapters", "imports", "secret")
"""How the names begin of what heddle makes in a data folder."""
_OLDEST_CLOCK = 1_760_000_000
_ANSWER_SECONDS = 10
_MOST_SECONDS = 86_400.0
_RESTORE = "restore the last backup: heddle restore"
_RESTORE_ELSEWHERE = "restore the last backup of this database"
_INDEX_ANEW = "start once with --search off, then as before: everything is indexed again"
_FROM_BACKUP = "restore them from a backup; everything else works without them"
_MAKE = "run heddle backup, preferably from a timer (docs/operating.md)"
_NETWORK_FILE_SYSTEMS = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "sshfs", "fuse.sshfs", "9p", "afs", "ceph", "glusterfs")
)
_EXTRAS = {
    "inference": ("torch", "tokenizers", "safetensors", "llguidance", "jinja2"),
    "training": ("torch", "tokenizers", "safetensors", "jinja2", "numpy"),
    "clickhouse": ("clickhouse_connect",),
    "postgres": ("psycopg", "alembic"),
    "s3": ("fsspec", "s3fs"),
    "grpc": ("grpc",),
    "vllm": ("tokenizers", "jinja2", "llguidance"),
    "parquet": ("pyarrow",),
    "mcp": ("mcp",),
    "demo": ("weave", "gql"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `remedy` says what to do, `is_fault` whether heddle cannot work so."""

    what: str
    found: str
    remedy: str = ""
    is_fault: bool = False


def run(settings: Settings, seconds: float) -> bool:
    """Print every finding, after looking at what is stored for some seconds; True when nothing is a fault."""
    findings = list(look(settings, seconds))
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        mark = "[red]✗[/red]" if finding.is_fault else "[yellow]![/yellow]" if finding.remedy else "[green]✓[/green]"
        console.print(f"{mark} {finding.what:<17} {escape(finding.found)}")
        if finding.remedy:
            console.print(f"  {'':<17} [bold]to fix it:[/bold] {escape(finding.remedy)}")
    faults = sum(finding.is_fault for finding in findings)
    print(f"heddle check: {faults} fault{'' if faults == 1 else 's'}" if faults else "heddle check: no faults")
    return faults == 0


def look(settings: Settings, seconds: float) -> Iterator[Finding]:
    """Every finding, in the order of what depends on what; `seconds` bound the look at what is stored."""
    folder = Path(settings.data)
    yield from _check_machine()
    yield _check_writable(folder)
    yield from _check_disk(folder, settings.control == "sqlite")
    holder = data_folder.holder(folder)
    yield Finding("data lock", f"held by {holder}" if holder else "free")
    if settings.control == "sqlite":
        yield from _check_database(settings, seconds, is_served=holder is not None)
        yield from _check_policies(folder, time.monotonic() + seconds / 3)
        yield from _check_backup(folder)
    else:
        yield _check_control(settings)
    yield from _check_stores(settings, seconds)
    served = holder is not None
    yield _check_port(settings, served, "address", settings.port, "choose another with --host and --port")
    if settings.otlp_grpc_port:
        yield _check_port(
            settings, served, "gRPC port", settings.otlp_grpc_port, "choose another with --otlp-grpc-port"
        )
    yield from _check_keys(settings)
    yield _check_model(settings)
    yield from _check_extras()


def _check_machine() -> Iterator[Finding]:
    is_old = sys.version_info < (3, 11)
    found = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", found, "install Python 3.11 or newer" if is_old else "", is_old)
    needed = ".".join(map(str, MINIMUM_VERSION))
    is_old = sqlite3.sqlite_version_info < MINIMUM_VERSION
    remedy = f"use a Python whose sqlite3 module has SQLite {needed} or newer" if is_old else ""
    yield Finding("sqlite", sqlite3.sqlite_version, remedy, is_old)
    is_wrong = time.time() < _OLDEST_CLOCK
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    remedy = "set the machine's clock; ids and timestamps are based on it" if is_wrong else ""
    yield Finding("clock", found, remedy, is_wrong)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest of its parents that is there."""
    path = folder.absolute()
    while not path.exists():
        path = path.parent
    return path


def _check_writable(folder: Path) -> Finding:
    there = _existing(folder)
    found = str(folder) if there == folder.absolute() else f"{folder} (will be created)"
    try:
        with tempfile.TemporaryFile(dir=there) as probe:
            probe.write(b"heddle")
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as error:
        return Finding(
            "data folder", f"{found}: {error.strerror}", f"make sure that this user can write to {there}", True
        )
    owned = [path for path in there.iterdir() if path.name.startswith(_OWN) and there == folder.absolute()]
    if closed := sorted(str(path) for path in owned if not os.access(path, os.R_OK | os.W_OK)):
        remedy = f"make {folder} and everything in it writable by the user that runs heddle"
        return Finding("data folder", f"this user cannot write to {', '.join(closed)}", remedy, True)
    return Finding("data folder", found)


def _check_disk(folder: Path, has_database: bool) -> Iterator[Finding]:
    """Who can read the folder, whether locks work on its file system, and how much is free there."""
    found = paths.open_to_others(folder)
    if found is None:
        yield Finding("file modes", "only this user can read the data folder")
    else:
        yield Finding("file modes", f"other users of this machine can read it: {found}", paths.remedy(folder))
    kind = _file_system_of(_existing(folder).resolve())
    remedy = "SQLite needs a local disk: file locks on network file systems are unreliable; choose another --data"
    is_remote = has_database and kind in _NETWORK_FILE_SYSTEMS
    yield Finding("file system", kind or "unknown", remedy if is_remote else "")
    free = shutil.disk_usage(_existing(folder)).free
    remedy = "free some disk space, or set max_database_bytes: at that limit, writes are refused with 507"
    yield Finding("free disk", f"{free / GIB:.1f} GiB", remedy if free < LEAST_FREE_BYTES else "")


def _file_system_of(path: Path) -> str | None:
    """The kind of file system that a path lies on, where the system says so."""
    with contextlib.suppress(OSError):
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
        inside = [(len(point), kind) for point, kind in mounts if path.is_relative_to(point)]
        return max(inside)[1] if inside else None
    return None


def _check_database(settings: Settings, seconds: float, is_served: bool) -> Iterator[Finding]:
    """The SQLite database: its schema, its pages, its rows, and the contents that they name."""
    path = Path(settings.data) / DATABASE
    if not path.exists():
        lost = stores.without_database(path.parent)
        yield Finding("database", lost or "none yet; the first start creates it", _RESTORE if lost else "", bool(lost))
        return
    try:
        version = stores.schema_version(path)
        if version > migrations.CURRENT:
            yield Finding("schema", f"{version}, from a newer version of heddle", "upgrade heddle", True)
        elif version < migrations.CURRENT:
            yield Finding("schema", f"{version} of {migrations.CURRENT}", "run heddle migrate (serve does the same)")
        else:
            yield Finding("schema", str(version))
        # That of a server grows, and without a flush for each commit the end of a crash may look the same.
        if not is_served and settings.durability == "full" and (damage := find_log_damage(path)):
            yield Finding("write-ahead log", str(damage), _RESTORE, damage.is_certain)
        checks, began = SqliteIntegrity(path), time.monotonic()
        size = f"{path.stat().st_size / MIB:.1f} MiB, "
        yield _told("database", checks.check_tables(began + seconds / 3), "tables", _RESTORE, size)
        if version == migrations.CURRENT:
            yield _told("rows", checks.check_rows(began + seconds / 2), "rules", _RESTORE)
            yield _told("calls", checks.check_bodies(began + seconds * 2 / 3), "calls", _FROM_BACKUP)
            yield _told("text search", checks.check_search(began + seconds * 5 / 6), "entries", _INDEX_ANEW)
            found = check_contents(checks.named_blobs(), open_blobs(settings), began + seconds)
            yield _told("contents", found, "contents", _FROM_BACKUP)
    except (sqlite3.Error, HeddleError) as error:
        yield Finding("database", str(error), _RESTORE, True)


def _told(what: str, found: Looked, things: str, remedy: str, before: str = "") -> Finding:
    """A finding about what was looked at."""
    told = f"{before}{found.looked_at} of {found.of} {things} checked"
    told += "" if found.looked_at == found.of else " in the time given (--full checks all)"
    named = ", ".join(found.problems[:3]) + (" …" if len(found.problems) > 3 else "")
    told += f", {len(found.problems)} wrong: {named}" if found.problems else ""
    return Finding(what, told, remedy if found.problems else "", bool(found.problems))


def _check_backup(folder: Path) -> Iterator[Finding]:
    """How the last `heddle backup` went."""
    state = data_folder.BackupState.read(folder)
    if state.error:
        yield Finding(
            "backup", f"the last attempt failed at {times.to_iso(state.failed_at)[:16]}Z: {state.error}", _MAKE
        )
    if state.made_at:
        tried = f", restored and checked {_age(state.restored_at)}" if state.restored_at else ", never restored"
        yield Finding("backup", f"{_age(state.made_at)} to {state.target}{tried}")
    elif not state.error and (folder / DATABASE).exists():
        yield Finding("backup", "none yet", _MAKE)


def _age(instant: int) -> str:
    hours = (times.now() - instant) / times.SECOND / 3600
    return f"{hours / 24:.0f} days ago" if hours >= 48 else f"{hours:.0f} hours ago"


def _check_control(settings: Settings) -> Finding:
    """The control tables on PostgreSQL."""
    try:
        found, known = stores.control_version(settings)
    except HeddleError as error:
        return Finding("control", error.reason, "start PostgreSQL, or correct the setting control", True)
    if found > known:
        return Finding("control", f"PostgreSQL, schema {found} from a newer version of heddle", "upgrade heddle", True)
    remedy = "" if found == known else "run heddle migrate (serve does the same)"
    return Finding("control", f"PostgreSQL, schema {found} of {known}", remedy)


def _check_stores(settings: Settings, seconds: float) -> Iterator[Finding]:
    """Whether the settings of the stores go together, and whether what is in them is whole."""
    try:
        stores.check(settings)
    except HeddleError as error:
        yield Finding("stores", error.reason, "change one of these settings", True)
        return
    if settings.files != "folder":
        yield _check_files(settings)
    if settings.store != "sqlite":
        yield from _check_clickhouse(settings, seconds)


def _check_clickhouse(settings: Settings, seconds: float) -> Iterator[Finding]:
    """The calls on ClickHouse, and the contents that they and the control tables on PostgreSQL name."""
    # The packages of ClickHouse are an extra.
    from heddle.store.clickhouse.client import Clickhouse

    began, longest = time.monotonic(), min(seconds, _MOST_SECONDS)
    cluster = None if settings.store_cluster == "none" else settings.store_cluster
    clickhouse = Clickhouse(settings.store, 1, max(longest / 3, 1), cluster)
    try:
        told, is_made = clickhouse.look()
        yield Finding("store", told)
        if is_made:
            yield _told("calls", clickhouse.check_tables(), "tables", _RESTORE_ELSEWHERE)
            named = set(clickhouse.named_blobs())
            if settings.control != "sqlite" and stores.control_version(settings)[0]:
                # The packages of PostgreSQL are an extra.
                from heddle.store.postgres.migrate import check_control

                found, more = check_control(settings.control, longest / 3)
                yield _told("control tables", found, "tables", _RESTORE_ELSEWHERE)
                named.update(more)
            # Objects are read where time does not count: they may be much, and far away.
            reads = settings.files == "folder" or seconds == math.inf
            found = check_contents(named, open_blobs(settings), began + seconds, reads=reads)
            yield _told("contents", found, "contents", _FROM_BACKUP)
    except QueryTimeout:
        yield Finding("calls", "not all were checked in the time given (--full checks all)")
    except HeddleError as error:
        yield Finding("store", error.reason, "start ClickHouse, or correct the setting store", True)
    finally:
        clickhouse.close()


def _check_files(settings: Settings) -> Finding:
    """The files in an object store."""
    try:
        open_blobs(settings).ping()
    except HeddleError as error:
        return Finding("files", error.reason, "correct the setting files, or what it needs (docs/scaling.md)", True)
    return Finding("files", without_credentials(settings.files))


def _check_policies(folder: Path, ends: float) -> Iterator[Finding]:
    """The folders that adapter versions and checkpoints lie in, until an instant of the monotonic clock."""
    try:
        named = stores.policy_folders(folder / DATABASE)
    except HeddleError:
        return  # the finding about the database says it
    if not named:
        return
    looked, problems, without_sums = 0, list[str](), list[str]()
    for name in named:
        if time.monotonic() > ends:
            break
        looked += 1
        if not (folder / name / paths.SUMS).is_file():
            without_sums.append(name)
        if not (folder / name / "adapter_model.safetensors").is_file():
            problems.append(f"{name} has no weights")
        else:
            problems += [f"{name}/{file} is damaged" for file in paths.damaged_files(folder / name)]
    found = Looked(looked, len(named), problems)
    yield _told("policies", found, "adapters and checkpoints", "restore the last backup, or delete these steps")
    if without_sums:
        some = ", ".join(without_sums[:3]) + (" …" if len(without_sums) > 3 else "")
        told = f"{len(without_sums)} without {paths.SUMS} (from an older version, or damaged): {some}"
        yield Finding("checksums", told, f"restore {paths.SUMS} from the last backup, if it contains it")


def _check_port(settings: Settings, served: bool, what: str, port: int, remedy: str) -> Finding:
    where = f"{settings.host}:{port}"
    if port != settings.port and importlib.util.find_spec("grpc") is None:
        return Finding(what, f"{where}: grpcio is not installed", install_command("grpc"), True)
    try:
        family = socket.getaddrinfo(settings.host, port, type=socket.SOCK_STREAM)[0][0]
        socket.create_server((settings.host, port), family=family).close()
    except OSError as error:
        if served:
            return Finding(what, f"{where} is in use, and so is the data folder: heddle is running")
        if port == settings.port and settings.control != "sqlite" and _is_heddle(where):
            return Finding(what, f"{where} is in use: heddle is running")
        return Finding(what, f"{where}: {error.strerror}", remedy, True)
    return Finding(what, f"{where} is free")


def _is_heddle(where: str) -> bool:
    """Whether a server of heddle answers at an address."""
    try:
        body = httpx.get(f"http://{where}/server_info", timeout=_ANSWER_SECONDS, trust_env=False).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return False
    return isinstance(body, dict) and "heddle_version" in body


def _check_keys(settings: Settings) -> Iterator[Finding]:
    if not settings.needs_key:
        is_open = not settings.is_loopback
        yield Finding(
            "auth",
            "off",
            "auth = off is allowed only on a loopback address; remove the setting auth" if is_open else "",
            is_open,
        )
        return
    try:
        has_first_key = bool(settings.first_key())
    except BadSetting as error:
        yield Finding("auth", str(error), "correct this setting: the server does not start with it", True)
        return
    try:
        count = stores.usable_keys(settings)
    except HeddleError:
        return  # the finding about the database says it
    if not count and has_first_key:
        yield Finding("auth", "on; the first key is created at startup")
    elif not count:
        where = f"--data {settings.data}" if settings.control == "sqlite" else "--control postgresql://..."
        yield Finding(
            "auth", "on, but there are no keys", f"heddle keys create {where} --user NAME --scope admin", True
        )
    else:
        yield Finding("auth", f"on, {count} usable keys")


def _check_model(settings: Settings) -> Finding:
    from heddle.inference.served_model import check_settings

    try:
        check_settings(settings)
    except HeddleError as error:
        return Finding("model", error.reason, "correct this setting: the server does not start with it", True)
    return Finding("model", settings.model)


def _check_extras() -> Iterator[Finding]:
    for extra, modules in _EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        found = f"not installed ({install_command(extra)})" if missing else "installed"
        yield Finding(f"extra {extra}", found)
