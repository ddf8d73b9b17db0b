"""`heddle keys`: makes, lists and revokes keys in the data folder."""

import asyncio
import getpass
import os

from rich.console import Console

from heddle.auth import Scope
from heddle.errors import InvalidRequest
from heddle.settings import Settings
from heddle.store.control.keys import KeyRow, Keys
from heddle.store.direct import open_direct
from heddle.wire import times


def _operator() -> str:
    """Who types the command, for the audit log."""
    try:
        return f"{getpass.getuser()} (command line)"
    except (KeyError, OSError):
        return f"user id {os.getuid()} (command line)"


def create(
    settings: Settings, user: str, scopes: list[str], entity: str | None, project: str | None, quiet: bool
) -> None:
    """Make a key and print it."""
    unknown = [word for word in scopes if word not in set(Scope)]
    if unknown:
        raise InvalidRequest(f"scope = {unknown[0]!r} cannot be used: allowed are {', '.join(Scope)}")
    keys = Keys(open_direct(settings))
    granted = frozenset(Scope(word) for word in scopes)
    key, row = asyncio.run(keys.create(user, granted, entity, project, _operator()))
    if quiet:
        print(key)
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{key}[/bold]")
    console.print(f"for {row.user} ({_scopes(row)}; reaches {_reach(row)}); id {row.id}")
    console.print("It is shown this once. Clients take it as WANDB_API_KEY, Basic password or Bearer token.")


def show(settings: Settings) -> None:
    """Print every key, without its secret."""
    rows = [("id", "user", "scopes", "reaches", "made", "last used", "state")]
    for row in asyncio.run(Keys(open_direct(settings)).all()):
        state = "usable" if row.revoked_at is None else f"revoked {_day(row.revoked_at)}"
        rows.append((row.id, row.user, _scopes(row), _reach(row), _day(row.created_at), _day(row.last_used_at), state))
    if len(rows) == 1:
        print("There are no keys; make one with `heddle keys create`.")
        return
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for line in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def revoke(settings: Settings, key_id: str) -> None:
    """Revoke one key."""
    row = asyncio.run(Keys(open_direct(settings)).revoke(key_id, _operator()))
    print(f"revoked {row.id} of {row.user}" if row.revoked_at is None else f"{row.id} was revoked before")


def _scopes(row: KeyRow) -> str:
    return "+".join(scope for scope in Scope if scope in row.scopes)


def _reach(row: KeyRow) -> str:
    return row.project or (f"{row.entity}/*" if row.entity else "everything")


def _day(micros: int | None) -> str:
    return "never" if micros is None else times.to_iso(micros)[:16].replace("T", " ")
