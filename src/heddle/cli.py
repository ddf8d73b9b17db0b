"""The command `heddle`: serve, settings, demo, eval, improve, limits, mcp, top, keys, and work on a data folder."""

import asyncio
import contextlib
import gc
import getpass
import inspect
import json
import math
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import heddle
from heddle import paths
from heddle import settings as table
from heddle.ci.commands import commands as evaluating
from heddle.errors import ExtraMissing, HeddleError, InvalidRequest
from heddle.extras import install_command
from heddle.improve.commands import commands as improving
from heddle.limit_commands import commands as limiting
from heddle.settings import BadSetting, Settings
from heddle.transfer import commands as transfer
from heddle.wire import times
from heddle.wire.keys import Grant

if TYPE_CHECKING:
    from heddle.store.control.keys import KeyRow, Keys

_POLL_SECONDS = 0.5
app = typer.Typer(
    name="heddle",
    help="One self-hosted server for tracing, evaluating, serving and training language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
keys = typer.Typer(help="API keys: create, list, rotate, revoke.", no_args_is_help=True)
app.add_typer(keys, name="keys")
checking = typer.Typer(invoke_without_command=True)
app.add_typer(checking, name="check")
app.add_typer(evaluating, name="eval")
app.add_typer(improving, name="improve")
app.add_typer(limiting, name="limits")
app.add_typer(transfer.importing, name="import")
app.command()(transfer.export)

Data = Annotated[str | None, typer.Option("--data", help="The data folder.", metavar="FOLDER")]
Control = Annotated[
    str | None,
    typer.Option("--control", help="sqlite, or the postgresql://... address of the servers.", metavar="WHERE"),
]
Config = Annotated[str | None, typer.Option("--config", help="A TOML file of settings.", metavar="FILE")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"heddle {heddle.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _load_settings(**flags: Any) -> Settings:
    paths.keep_private()
    config = flags.pop("config", None)
    return table.load(flags, config=config)


def _with_every_setting(command: Any) -> Any:
    """Give a command one flag per row of the table; texts, so that every source is read and refused alike."""
    own = inspect.signature(command).parameters.values()
    parameters = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters += [
        inspect.Parameter(
            row.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, typer.Option(row.flag, help=_help(row), metavar="", show_default=False)],
        )
        for row in table.TABLE
    ]
    parameters.append(inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config))
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _help(row: table.Row) -> str:
    return f"{row.sentence} ({row.show(row.default)}; {row.kind.allowed})"


@app.command()
@_with_every_setting
def serve(**flags: Any) -> None:
    """Run the server; every flag can also be a HEDDLE_* variable or a line of the TOML file."""
    settings = _load_settings(**flags)
    # Imports make much and leave nothing: without the collector the start is a seventh shorter. `run` turns it on.
    gc.disable()
    from heddle.http.listen import listen

    listener = listen(settings)
    from heddle.serve import run

    run(settings, listener)


@app.command("settings")
@_with_every_setting
def show_settings(**flags: Any) -> None:
    """Print every setting with its value, its origin and its default."""
    settings = _load_settings(**flags)
    rows = [("setting", "value", "source", "default")]
    for row in table.TABLE:
        value = row.show(getattr(settings, row.name))
        rows.append((row.name, value, settings.sources.get(row.name, "default"), row.show(row.default)))
    _print_table(rows)


@app.command()
def demo(
    keep: Annotated[
        bool | None,
        typer.Option(
            "--keep/--end", help="Keep the server running until Ctrl-C (the default in a terminal), or end it."
        ),
    ] = None,
) -> None:
    """Trace, chat, evaluate and train with the real SDKs on a server of its own, and show what came of it."""
    from heddle.demo.run import run

    run(keep)


@app.command("mcp")
def serve_mcp(
    project: Annotated[
        str | None, typer.Option(help="entity/project where a tool names none. [HEDDLE_PROJECT]")
    ] = None,
    server: Annotated[str | None, typer.Option(help="The server's address. [HEDDLE_SERVER]")] = None,
    key: Annotated[str | None, typer.Option(help="The API key, over stdio. [HEDDLE_API_KEY or WANDB_API_KEY]")] = None,
    http: Annotated[
        int | None, typer.Option(help="Serve HTTP at this port (/mcp); callers send their own key.", min=1)
    ] = None,
    host: Annotated[str, typer.Option(help="The address that --http listens on.")] = "127.0.0.1",
) -> None:
    """Let an assistant read traces and evaluations of a running server over the Model Context Protocol."""
    try:
        from heddle.mcp import server as protocol
    except ImportError:
        typer.echo(f"heddle: the Model Context Protocol is not installed: {install_command('mcp')}", err=True)
        raise typer.Exit(2) from None
    if http is None:
        protocol.serve_stdio(server, key, project)
    else:
        protocol.serve_http(server, project, host, http)


@app.command()
def top(
    server: Annotated[str | None, typer.Option(help="The server's address. [HEDDLE_SERVER]")] = None,
    key: Annotated[str | None, typer.Option(help="The API key, where a proxy asks for one. [HEDDLE_API_KEY]")] = None,
    interval: Annotated[float, typer.Option(help="Seconds between updates.", min=0.1)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the figures of one interval, and end.")] = False,
) -> None:
    """Show what a running server does: requests, ingest, disk, jobs, engines, training."""
    from heddle.top import run

    run(server, key, interval, once)


def _open_keys(is_first: bool = False, **flags: Any) -> "Keys":
    """The keys of an installation; only `is_first` makes one where there is none."""
    from heddle.store.control.keys import Keys
    from heddle.store.open import open_direct
    from heddle.store.sqlite.database import DATABASE

    settings = _load_settings(**flags)
    database = Path(settings.data) / DATABASE
    if settings.control == "sqlite" and not is_first and not database.exists():
        raise HeddleError(f"There are no keys: {database} does not exist; `heddle keys create` makes it")
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


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _day(micros: int | None) -> str:
    return "never" if micros is None else times.to_iso(micros)[:16].replace("T", " ")


Expires = Annotated[
    str | None, typer.Option("--expires", help="After which time it ends: 90d, 12h, 30m.", metavar="TIME")
]


@keys.command("create")
def create_key(
    user: Annotated[str, typer.Option(help="Who the key is for; calls are stored under this name.")],
    role: Annotated[
        list[str] | None,
        typer.Option(
            help="viewer, annotator, editor or admin: everywhere, or as editor:team in an entity, as "
            "editor:team/website in a project; repeat for several; with delete as editor+delete. [editor+delete]"
        ),
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(help="read, annotate, write, delete or admin; repeat for several.")
    ] = None,
    entity: Annotated[str | None, typer.Option(help="Where roles and scopes count that name no place.")] = None,
    project: Annotated[str | None, typer.Option(help="The same, for one entity/project.")] = None,
    expires: Expires = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but the key.")] = False,
    data: Data = None,
    control: Control = None,
    config: Config = None,
) -> None:
    """Create a key and show it once; also while the server is running."""
    if entity and project:
        raise InvalidRequest("--entity and --project exclude each other; --role takes a place for each role")
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
    typer.echo("It is shown this once. Clients take it as WANDB_API_KEY, Basic password or Bearer token.")


@keys.command("list")
def list_keys(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    data: Data = None,
    control: Control = None,
    config: Config = None,
) -> None:
    """Show keys and people: what each may do, when it ends, when and from where it was used; never the key itself."""
    found = asyncio.run(_open_keys(data=data, control=control, config=config).all())
    if as_json:
        print(json.dumps([_to_json(row) for row in found], indent=2))
        return
    rows = [("id", "user", "roles", "made", "last used", "from", "state")]
    for row in found:
        ends = "usable" if row.expires_at is None else f"until {_day(row.expires_at)}"
        ended = "expired" if row.revoked_at is None else f"revoked {_day(row.revoked_at)}"
        state = ended if row.problem(times.now()) else f"{ends}, signs in" if row.is_person else ends
        used = (_day(row.last_used_at), row.last_used_from or "")
        rows.append((row.id, row.user, " ".join(map(str, row.grants)), _day(row.created_at), *used, state))
    if len(rows) == 1:
        print("There are no keys; make one with `heddle keys create`.")
        return
    _print_table(rows)


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument(help="The key's id, or its beginning.")],
    data: Data = None,
    control: Control = None,
    config: Config = None,
) -> None:
    """Revoke a key; a running server notices within a second."""
    row = asyncio.run(_open_keys(data=data, control=control, config=config).revoke(key_id, _operator()))
    print(f"revoked {row.id} of {row.user}" if row.revoked_at is None else f"{row.id} was revoked before")


@keys.command("rotate")
def rotate_key(
    key_id: Annotated[str, typer.Argument(help="The key's id, or its beginning.")],
    overlap: Annotated[str, typer.Option(help="How long the old secret counts: 24h, 30m.", metavar="TIME")] = "0s",
    expires: Expires = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but the key.")] = False,
    data: Data = None,
    control: Control = None,
    config: Config = None,
) -> None:
    """Give a key a new secret, shown once; its id, roles and limits stay, and it lasts as long again as before."""
    store = _open_keys(data=data, control=control, config=config)
    life = None if expires is None else times.read_period(expires)
    key, row = asyncio.run(store.rotate(key_id, times.read_period(overlap), life, _operator()))
    _print_key(key, row, quiet)


@app.command()
def purge(
    subject: Annotated[str, typer.Argument(help="call, trace, thread, user, object or project.")],
    name: Annotated[str, typer.Argument(help="The id of a call, trace or thread, a user, the name of an object.")] = "",
    project: Annotated[str | None, typer.Option(help="entity/project. [HEDDLE_PROJECT]")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    server: Annotated[str | None, typer.Option(help="The server's address. [HEDDLE_SERVER]")] = None,
    key: Annotated[str | None, typer.Option(help="An admin key. [HEDDLE_API_KEY or WANDB_API_KEY]")] = None,
) -> None:
    """Remove what a subject left in a project of a running server for good; wait until it is done."""
    from heddle.remote import PROJECT_VARIABLE, Remote

    within = Remote(server, key).project(project or os.environ.get(PROJECT_VARIABLE, ""))
    what = f"the project {within.id}" if subject == "project" else f"{subject} {name!r} of {within.id}"
    if not yes and not typer.confirm(f"Erase {what} for good?"):
        raise typer.Exit(1)
    job_id = within.post("/project/purge", subject=subject, id=name)["job_id"]
    while True:
        found = within.post("/evaluations/jobs/query", kinds=["purge"])["jobs"]
        job = next(job for job in found if job["id"] == job_id)
        if job["state"] not in ("queued", "running"):
            break
        time.sleep(_POLL_SECONDS)
    if job["state"] != "succeeded":
        raise HeddleError(f"The purge is {job['state']}: {job['error']}")
    _print_table([("removed", "count"), *((name, str(count)) for name, count in job["result"]["removed"].items())])


@app.command()
def migrate(data: Data = None, control: Control = None, config: Config = None) -> None:
    """Migrate the control tables to the schema of this version; `serve` does the same when it starts."""
    from heddle.store import backup

    for line in backup.migrate(_load_settings(data=data, control=control, config=config)):
        typer.echo(line)


def _read_period(text: str) -> float:
    """The seconds of a text such as 1d, 12h or 30m, at least one and at most those of a year."""
    with contextlib.suppress(InvalidRequest):
        if 1 <= (seconds := times.read_period(text)) <= 366 * 86_400:
            return seconds
    raise typer.BadParameter(f"{text!r} is no time such as 1d, 12h or 30m")


@app.command("backup")
def back_up(
    target: Annotated[
        str, typer.Argument(help="A new folder, or a new file that ends in .tar, .tar.gz or .tgz; {time} is the time.")
    ] = "heddle-backups/{time}",
    every: Annotated[
        str | None, typer.Option(help="Stay, and make one so often: 1d, 12h, 30m.", metavar="TIME")
    ] = None,
    keep: Annotated[
        int | None, typer.Option(help="Remove all but the newest, of those that {time} names.", min=1)
    ] = None,
    verify: Annotated[
        int, typer.Option(help="Restore every Nth into a temporary folder and check it; 0: none.", min=0)
    ] = 1,
    data: Data = None,
    config: Config = None,
) -> None:
    """Copy everything that is stored, consistently, also while the server runs, and try the copy out."""
    from heddle.store import backup

    settings = _load_settings(data=data, config=config)
    if (every is not None or keep is not None) and backup.TIME not in target:
        raise typer.BadParameter(f"--every and --keep make many backups: TARGET needs {backup.TIME} in its name")
    # Ends in order, so that nothing half written stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if every is None:
        typer.echo(backup.back_up(settings, target, keep, verify))
    else:
        backup.back_up_regularly(settings, target, _read_period(every), keep, verify, _tell_backup)


def _tell_backup(told: str, is_failure: bool) -> None:
    now = times.to_iso(times.now())[:19]
    typer.echo(f"{now}Z {'backup failed: ' if is_failure else ''}{told}", err=is_failure)


@app.command()
def restore(
    source: Annotated[str | None, typer.Argument(help="What `heddle backup` made.")] = None,
    before: Annotated[
        int | None, typer.Option(help="Go back to the copy that an upgrade left: N of heddle.db.before-N.", metavar="N")
    ] = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Put a backup into an empty data folder, or undo the upgrade of the one that is there."""
    from heddle.store import backup

    settings = _load_settings(data=data, config=config)
    if (source is None) == (before is None):
        raise typer.BadParameter("give either the backup that goes into an empty folder, or --before N")
    if before is not None:
        typer.echo(backup.restore_before(settings, before))
    elif source is not None:
        typer.echo(backup.restore(settings, source))


@checking.callback()
@_with_every_setting
def check(
    context: typer.Context,
    budget: Annotated[
        float, typer.Option(help="Seconds for looking at what is stored.", min=0.1, metavar="SECONDS")
    ] = 30.0,
    full: Annotated[bool, typer.Option("--full", help="Look at all of it, however long it takes.")] = False,
    **flags: Any,
) -> None:
    """Find problems of this installation and say how to fix them; exit code 1 if there are any."""
    if context.invoked_subcommand is not None:
        if any(value is not None for value in flags.values()):
            raise typer.BadParameter(f"`heddle check {context.invoked_subcommand}` takes no settings")
        return
    from heddle import checks

    raise typer.Exit(0 if checks.run(_load_settings(**flags), math.inf if full else budget) else 1)


@checking.command("vectors")
def check_vectors(
    file: Annotated[Path, typer.Argument(help="Recorded cases as JSON; what they expect may be missing.")],
) -> None:
    """Print what this installation computes for recorded losses and advantages, as one JSON object."""
    try:
        from heddle.training.trainer.vectors import compute_vectors
    except ImportError as error:
        raise ExtraMissing(f"training is not installed: {install_command('training')}") from error
    typer.echo(json.dumps(compute_vectors(file)))


def _open_standard_files() -> None:
    """Give what was closed at the start a place: the next file that is opened would otherwise be taken for it."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def main() -> None:
    """Run the command line; a failure that has a reason is one line on stderr."""
    _open_standard_files()
    try:
        app(args=_arguments(sys.argv[1:]), prog_name="heddle")
    except Exception as error:
        if (reason := _explain(error)) is None:
            raise
        typer.echo(f"heddle: {reason}", err=True)
        sys.exit(1)


def _explain(error: Exception) -> str | None:
    if isinstance(error, HeddleError | BadSetting):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}"
    if isinstance(getattr(error, "orig", error), sqlite3.Error):
        from heddle.store.sqlite.database import explain

        return str(found) if (found := explain(error)) else None
    return None


def _arguments(given: list[str]) -> list[str]:
    """A bare `--auth` or `--trace-inference` means `on`."""
    arguments = []
    for index, word in enumerate(given):
        arguments.append(word)
        if word in ("--auth", "--trace-inference") and (index + 1 == len(given) or given[index + 1].startswith("-")):
            arguments.append("on")
    return arguments
