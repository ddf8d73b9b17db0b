"""`heddle keys` as it is typed; what it does is imported when it does it."""

import asyncio
import getpass
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heddle.command_options import Config, Control, Data, load_settings, print_table
from heddle.errors import HeddleError, InvalidRequest
from heddle.wire import times
from heddle.wire.keys import Grant

if TYPE_CHECKING:
    from heddle.store.control.keys import KeyRow, Keys

commands = typer.Typer(help="API keys: create, list, rotate, revoke.", no_args_is_help=True)


def _open_keys(is_first: bool = False, **flags: Any) -> "Keys":
    """The keys of an installation; only `is_first` makes one where there is none."""
    from heddle.store.control.keys import Keys
    from heddle.store.open import open_direct
    from heddle.store.sqlite.database import DATABASE

    settings = load_settings(**flags)
    database = Path(settings.data) / DATABASE
    if settings.control == "sqlite" and not is_first and not database.exists():
        raise HeddleError(f"There are no keys: {database} does not exist; create it with `heddle keys create`")
    return Keys(open_direct(settings))


def _operator() -> str:
    """Who types the command, for the audit log."""
    try:
        return f"{getpass.getuser()} (command line)"
    except (KeyError, OSError):
        return f"user id {os.getuid()} (command line)"


def _to_json(row: "KeyRow") -> dict[str, Any]:
    told = {name: getattr(row, name) for name in ("id", "user", "is_person", "created_by", "last_used_from")}
    instants = ("created_at", "last_used_at", "expires_at", "rotated_at", "previous_until", "revoked_at")
    instants_told = {name: times.optional_iso(getattr(row, name)) for name in instants}
    return told | {"roles": list(map(str, row.grants))} | instants_told


def _day(micros: int | None) -> str:
    return "never" if micros is None else times.to_iso(micros)[:16].replace("T", " ")


Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but the key.")]
Expires = Annotated[
    str | None, typer.Option("--expires", help="How long the key is valid: 90d, 12h, 30m.", metavar="TIME")
]


@commands.command("create")
def create_key(
    user: Annotated[str, typer.Option(help="Who the key is for; calls are stored under this name.")],
    role: Annotated[
        list[str] | None,
        typer.Option(
            help="viewer, annotator, editor or admin; editor:team limits the role to an entity, editor:team/website to "
            "a project, and editor+delete adds a scope; repeat for several. By default editor+delete."
        ),
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="read, annotate, write, delete or admin; repeat for several.")
    ] = None,
    entity: Annotated[str | None, typer.Option(help="The entity of roles and scopes that specify no place.")] = None,
    project: Annotated[
        str | None, typer.Option(help="The entity/project of roles and scopes that specify no place.")
    ] = None,
    expires: Expires = None,
    quiet: Quiet = False,
    data: Data = None,
    control: Control = None,
    config: Config = None,
) -> None:
    """Create a key and show it once; works while the server is running."""
    if entity and project:
        raise InvalidRequest("--entity and --project cannot be used together; give a place with each --role instead")
    words = [*(role or ()), "+".join(scope)] if scope else role or ["editor+delete"]
    place = f":{project or entity}" if project or entity else ""
    grants = [Grant.parse(word if ":" in word else word + place) for word in words]
    store = _open_keys(is_first=True, data=data, control=control, config=config)
    life = None if expires is None else times.read_period(expires)
    key, row = asyncio.run(store.create(user, grants, _operator(), life))
    _print_key(key, row, quiet)


def _print_key(key: str, row: "KeyRow", quiet: bool) -> None:
    if quiet:
        print(key)
        return
    typer.secho(key, bold=True)
    until = "" if row.expires_at is None else f" until {_day(row.expires_at)} UTC"
    typer.echo(f"for {row.user} ({', '.join(map(str, row.grants))}){until}; id {row.id}")
    typer.echo("It is shown only once. Clients use it as WANDB_API_KEY, Basic password or Bearer token.")


@commands.command("list")
def list_keys(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    data: Data = None,
    control: Control = None,
    config: Config = None,
) -> None:
    """List keys and people with their roles, expiry and last use; the keys themselves are never shown."""
    found = asyncio.run(_open_keys(data=data, control=control, config=config).all())
    if as_json:
        print(json.dumps([_to_json(row) for row in found], indent=2))
        return
    rows = [("id", "user", "roles", "created", "last used", "from", "state")]
    for row in found:
        ends = "usable" if row.expires_at is None else f"until {_day(row.expires_at)}"
        ended = "expired" if row.grants else "no role any more"
        ended = ended if row.revoked_at is None else f"revoked {_day(row.revoked_at)}"
        state = ended if row.problem(times.now()) else f"{ends}, signs in" if row.is_person else ends
        used = (_day(row.last_used_at), row.last_used_from or "")
        rows.append((row.id, row.user, " ".join(map(str, row.grants)), _day(row.created_at), *used, state))
    if len(rows) == 1:
        print("There are no keys; create one with `heddle keys create`.")
        return
    print_table(rows)


@commands.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The key's id, or its beginning.")],
    data: Data = None,
    control: Control = None,
    config: Config = None,
) -> None:
    """Revoke a key; a running server notices within a second."""
    row = asyncio.run(_open_keys(data=data, control=control, config=config).revoke(key_id, _operator()))
    print(f"revoked {row.id} of {row.user}" if row.revoked_at is None else f"{row.id} was already revoked")


@commands.command("rotate")
def rotate_key(
    key_id: Annotated[str, typer.Argument(help="The key's id, or its beginning.")],
    overlap: Annotated[
        str, typer.Option(help="How long the old secret remains valid: 24h, 30m.", metavar="TIME")
    ] = "0s",
    expires: Expires = None,
    quiet: Quiet = False,
    data: Data = None,
    control: Control = None,
    config: Config = None,
) -> None:
    """Give a key a new secret, shown once; its id, roles and limits stay, and its lifetime starts anew."""
    store = _open_keys(data=data, control=control, config=config)
    life = None if expires is None else times.read_period(expires)
    key, row = asyncio.run(store.rotate(key_id, times.read_period(overlap), life, _operator()))
    _print_key(key, row, quiet)
