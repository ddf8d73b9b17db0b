"""The command `heddle`: serve, settings, demo, eval, improve, limits, mcp, top, keys, and work on a data folder."""

import contextlib
import gc
import inspect
import json
import math
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

import heddle
from heddle import settings as table
from heddle.ci.commands import commands as evaluating
from heddle.command_options import Config, Control, Data, Server, explain, load_settings, print_table
from heddle.errors import ExtraMissing, HeddleError, InvalidRequest
from heddle.extras import install_command
from heddle.improve.commands import commands as improving
from heddle.key_commands import commands as keys
from heddle.limit_commands import commands as limiting
from heddle.transfer import commands as transfer
from heddle.wire import times

_POLL_SECONDS = 0.5
_ended: list[int] = []
"""The signals that ended the command."""
app = typer.Typer(
    name="heddle",
    help="One self-hosted server for tracing, evaluating, serving and training language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(keys, name="keys")
checking = typer.Typer(invoke_without_command=True)
app.add_typer(checking, name="check")
app.add_typer(evaluating, name="eval")
app.add_typer(improving, name="improve")
app.add_typer(limiting, name="limits")
app.add_typer(transfer.importing, name="import")
app.command()(transfer.export)


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
    """Run the server; every flag can also be set as a HEDDLE_* variable or in the TOML file."""
    settings = load_settings(**flags)
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
    settings = load_settings(**flags)
    rows = [("setting", "value", "source", "default")]
    for row in table.TABLE:
        value = row.show(getattr(settings, row.name))
        rows.append((row.name, value, settings.sources.get(row.name, "default"), row.show(row.default)))
    print_table(rows)


@app.command()
def demo(
    keep: Annotated[
        bool | None,
        typer.Option(
            "--keep/--end", help="Keep the server running until Ctrl-C (the default in a terminal), or stop it."
        ),
    ] = None,
) -> None:
    """Trace, chat, evaluate and train with the real SDKs on a temporary server, and show the results."""
    from heddle.demo.run import run

    run(keep)


@app.command("mcp")
def serve_mcp(
    project: Annotated[
        str | None, typer.Option(help="The default entity/project of the tools. [HEDDLE_PROJECT]")
    ] = None,
    server: Server = None,
    key: Annotated[str | None, typer.Option(help="The API key, for stdio. [HEDDLE_API_KEY or WANDB_API_KEY]")] = None,
    http: Annotated[
        int | None, typer.Option(help="Serve HTTP on this port (/mcp); callers send their own key.", min=1, max=65_535)
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
    server: Server = None,
    key: Annotated[str | None, typer.Option(help="The API key, if a proxy requires one. [HEDDLE_API_KEY]")] = None,
    interval: Annotated[float, typer.Option(help="Seconds between updates.", min=0.1, max=86_400)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print the figures of one interval and exit.")] = False,
) -> None:
    """Show what a running server is doing: requests, ingest, disk, jobs, engines, training."""
    from heddle.top import run

    run(server, key, interval, once)


@app.command()
def purge(
    subject: Annotated[str, typer.Argument(help="call, trace, thread, user, object or project.")],
    name: Annotated[
        str, typer.Argument(help="The id of a call, trace or thread, a user, or the name of an object.")
    ] = "",
    project: Annotated[str | None, typer.Option(help="entity/project. [HEDDLE_PROJECT]")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    server: Server = None,
    key: Annotated[str | None, typer.Option(help="An admin key. [HEDDLE_API_KEY or WANDB_API_KEY]")] = None,
) -> None:
    """Permanently erase what a subject left in a project of a running server, and wait until it is done."""
    from heddle.remote import PROJECT_VARIABLE, Remote

    within = Remote(server, key).project(project or os.environ.get(PROJECT_VARIABLE, ""))
    what = f"the project {within.id}" if subject == "project" else f"{subject} {name!r} of {within.id}"
    if not yes and not typer.confirm(f"Permanently erase {what}?"):
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
    print_table([("removed", "count"), *((name, str(count)) for name, count in job["result"]["removed"].items())])


@app.command()
def migrate(data: Data = None, control: Control = None, config: Config = None) -> None:
    """Migrate the control tables to the schema of this version; `serve` does the same when it starts."""
    from heddle.store import backup

    for line in backup.migrate(load_settings(data=data, control=control, config=config)):
        typer.echo(line)


def _read_period(text: str) -> float:
    """The seconds of a text such as 1d, 12h or 30m, at least one and at most those of a year."""
    with contextlib.suppress(InvalidRequest):
        if 1 <= (seconds := times.read_period(text)) <= 366 * 86_400:
            return seconds
    raise typer.BadParameter(f"{text!r} is not a duration such as 1d, 12h or 30m")


@app.command("backup")
def back_up(
    target: Annotated[
        str,
        typer.Argument(
            help="A new folder, or a new file that ends in .tar, .tar.gz or .tgz; {time} stands for the time."
        ),
    ] = "heddle-backups/{time}",
    every: Annotated[
        str | None, typer.Option(help="Keep running and make a backup at this interval: 1d, 12h, 30m.", metavar="TIME")
    ] = None,
    keep: Annotated[
        int | None, typer.Option(help="Keep this many of the newest backups with {time} in the name.", min=1)
    ] = None,
    verify: Annotated[
        int, typer.Option(help="Verify every Nth backup by restoring it into a temporary folder; 0: none.", min=0)
    ] = 1,
    data: Data = None,
    config: Config = None,
) -> None:
    """Make a consistent backup of everything that is stored, even while the server is running, and verify it."""
    from heddle.store import backup

    settings = load_settings(data=data, config=config)
    if (every is not None or keep is not None) and backup.TIME not in target:
        raise typer.BadParameter(f"--every and --keep make several backups: TARGET must contain {backup.TIME}")
    if every is None:
        typer.echo(backup.back_up(settings, target, keep, verify))
    else:
        backup.back_up_regularly(settings, target, _read_period(every), keep, verify, _tell_backup)


def _tell_backup(told: str, is_failure: bool) -> None:
    if _ended:
        raise typer.Exit  # SQLite passes over what is raised inside a function of its own
    now = times.to_iso(times.now())[:19]
    typer.echo(f"{now}Z {'backup failed: ' if is_failure else ''}{told}", err=is_failure)


@app.command()
def restore(
    source: Annotated[str | None, typer.Argument(help="A backup made by `heddle backup`.")] = None,
    before: Annotated[
        int | None, typer.Option(help="Restore the copy that an upgrade made: N of heddle.db.before-N.", metavar="N")
    ] = None,
    data: Data = None,
    config: Config = None,
) -> None:
    """Restore a backup into an empty data folder, or undo the upgrade of an existing one."""
    from heddle.store import backup

    settings = load_settings(data=data, config=config)
    if (source is None) == (before is None):
        raise typer.BadParameter("give either the backup to restore into an empty folder, or --before N")
    if before is not None:
        typer.echo(backup.restore_before(settings, before))
    elif source is not None:
        typer.echo(backup.restore(settings, source))


@checking.callback()
@_with_every_setting
def check(
    context: typer.Context,
    budget: Annotated[
        float, typer.Option(help="Seconds to spend on checking stored data.", min=0.1, metavar="SECONDS")
    ] = 30.0,
    full: Annotated[bool, typer.Option("--full", help="Check all of it, however long it takes.")] = False,
    **flags: Any,
) -> None:
    """Find problems with this installation and say how to fix them; exits with 1 if there are any."""
    if context.invoked_subcommand is not None:
        if any(value is not None for value in flags.values()):
            raise typer.BadParameter(f"`heddle check {context.invoked_subcommand}` takes no settings")
        return
    from heddle import checks

    raise typer.Exit(0 if checks.run(load_settings(**flags), math.inf if full else budget) else 1)


@checking.command("vectors")
def check_vectors(
    file: Annotated[Path, typer.Argument(help="Recorded cases as JSON; expected values are optional.")],
) -> None:
    """Print what this installation computes for recorded losses and advantages, as one JSON object."""
    try:
        from heddle.training.trainer.vectors import compute_vectors
    except ImportError as error:
        raise ExtraMissing(f"training is not installed: {install_command('training')}") from error
    typer.echo(json.dumps(compute_vectors(file)))


def _open_standard_files() -> None:
    """Give what was closed at the start a place: the next file that is opened would otherwise be taken for it."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _end_in_order(number: int, frame: FrameType | None) -> None:
    """As at Ctrl-C: what is half written is removed."""
    _ended.append(number)
    handler = signal.getsignal(signal.SIGINT)
    # Shells let what they begin in the background ignore Ctrl-C, which this is not.
    end = handler if callable(handler) else signal.default_int_handler
    end(signal.SIGINT, frame)


def main() -> None:
    """Run the command line; a failure that has a reason is one line on stderr."""
    _open_standard_files()
    signal.signal(signal.SIGTERM, _end_in_order)
    try:
        _run()
    finally:
        if _ended:
            typer.echo("heddle: terminated by SIGTERM", err=True)
            sys.exit(128 + _ended[0])


def _run() -> None:
    try:
        try:
            app(args=_arguments(sys.argv[1:]), prog_name="heddle")
        finally:
            sys.stdout.flush()
    except Exception as error:
        if _ended or (reason := explain(error)) is None:
            raise
        if isinstance(error, OSError):
            # Python would write once more at its end what could not be written, and say so.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        typer.echo(f"heddle: {reason}", err=True)
        sys.exit(1)


def _arguments(given: list[str]) -> list[str]:
    """A bare `--auth` or `--trace-inference` means `on`."""
    arguments = []
    for index, word in enumerate(given):
        arguments.append(word)
        if word in ("--auth", "--trace-inference") and (index + 1 == len(given) or given[index + 1].startswith("-")):
            arguments.append("on")
    return arguments
