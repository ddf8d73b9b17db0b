"""The command `heddle`: serve, demo, eval, mcp, keys, migrate, backup, restore, export, import, check."""

import gc
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from heddle import modes
from heddle import settings as table
from heddle.errors import ExtraMissing, HeddleError
from heddle.gate.commands import commands as evaluating
from heddle.moving import commands as moving
from heddle.settings import BadSetting, Settings

app = typer.Typer(
    name="heddle",
    help="One self-hosted server for tracing, evaluating, serving and training language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
keys = typer.Typer(help="Keys for callers: make, list, revoke.", no_args_is_help=True)
app.add_typer(keys, name="keys")
checking = typer.Typer(invoke_without_command=True)
app.add_typer(checking, name="check")
app.add_typer(evaluating, name="eval")
app.add_typer(moving.importing, name="import")
app.command()(moving.export)

Data = Annotated[str | None, typer.Option("--data", help="The data folder.", metavar="FOLDER")]
Control = Annotated[
    str | None,
    typer.Option("--control", help="sqlite, or the postgresql://... address of the servers.", metavar="WHERE"),
]
Config = Annotated[str | None, typer.Option("--config", help="A TOML file of settings.", metavar="FILE")]


def _settings_flags(**flags: Any) -> Settings:
    modes.keep_private()
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
    settings = _settings_flags(**flags)
    # Imports make much and leave nothing: without the collector the start is a seventh shorter. `run` turns it on.
    gc.disable()
    from heddle.listen import listen

    listener = listen(settings)
    from heddle.serve import run

    run(settings, listener)


@app.command()
def demo(
    keep: Annotated[
        bool | None,
        typer.Option("--keep/--end", help="Whether the server stays until Ctrl-C; it does in a terminal."),
    ] = None,
) -> None:
    """Trace, chat, evaluate and train with the real SDKs on a server of its own, and show what came of it."""
    from heddle.demo.run import run

    run(keep)


@app.command("mcp")
def serve_mcp(
    project: Annotated[
        str | None, typer.Option("--project", help="entity/project where a tool names none. [HEDDLE_PROJECT]")
    ] = None,
    server: Annotated[str | None, typer.Option("--server", help="The server's address. [HEDDLE_SERVER]")] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The API key, over stdio. [HEDDLE_API_KEY or WANDB_API_KEY]")
    ] = None,
    http: Annotated[
        int | None, typer.Option("--http", help="Serve HTTP at this port (/mcp); callers send their own key.", min=1)
    ] = None,
    host: Annotated[str, typer.Option("--host", help="The address that --http listens on.")] = "127.0.0.1",
) -> None:
    """Let an assistant read traces and evaluations of a running server over the Model Context Protocol."""
    try:
        from heddle.mcp import server as protocol
    except ImportError:
        typer.echo("heddle: the Model Context Protocol is not installed: pip install 'heddle[mcp]'", err=True)
        raise typer.Exit(2) from None
    if http is None:
        protocol.serve_stdio(server, key, project)
    else:
        protocol.serve_http(server, project, host, http)


@keys.command("create")
def keys_create(
    user: Annotated[str, typer.Option("--user", help="Who the key is for; calls are stored under this name.")],
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="read, write or admin; repeat for several. [read and write]")
    ] = None,
    entity: Annotated[str | None, typer.Option("--entity", help="Bind the key to one entity.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Bind the key to one entity/project.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but the key.")] = False,
    data: Data = None,
    control: Control = None,
    config: Config = None,
) -> None:
    """Make a key and show it, this once; works beside a running server too."""
    from heddle import keyring

    settings = _settings_flags(data=data, control=control, config=config)
    keyring.create(settings, user, scope or ["read", "write"], entity, project, quiet)


@keys.command("list")
def keys_list(data: Data = None, control: Control = None, config: Config = None) -> None:
    """Show every key: whose it is, what it may do, when it was last used; never the key itself."""
    from heddle import keyring

    keyring.show(_settings_flags(data=data, control=control, config=config))


@keys.command("revoke")
def keys_revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, or its beginning.")],
    data: Data = None,
    control: Control = None,
    config: Config = None,
) -> None:
    """Make a key useless, within a second also for a running server."""
    from heddle import keyring

    keyring.revoke(_settings_flags(data=data, control=control, config=config), key_id)


@app.command()
def migrate(data: Data = None, control: Control = None, config: Config = None) -> None:
    """Bring the control tables to the schema of this version; `serve` does the same at its start."""
    from heddle.store import backup

    for line in backup.migrate(_settings_flags(data=data, control=control, config=config)):
        typer.echo(line)


@app.command("backup")
def back_up(
    target: Annotated[str, typer.Argument(help="A new folder, or a new file that ends in .tar, .tar.gz or .tgz.")],
    data: Data = None,
    config: Config = None,
) -> None:
    """Copy everything that is stored, consistently, also while the server runs."""
    from heddle.store import backup

    typer.echo(backup.back_up(_settings_flags(data=data, config=config), target))


@app.command()
def restore(
    source: Annotated[str, typer.Argument(help="What `heddle backup` made.")], data: Data = None, config: Config = None
) -> None:
    """Put a backup into an empty data folder."""
    from heddle.store import backup

    typer.echo(backup.restore(_settings_flags(data=data, config=config), source))


@checking.callback()
@_with_every_setting
def check(context: typer.Context, **flags: Any) -> None:
    """Say what is wrong with this installation, and how to mend it; exit code 1 when something is."""
    if context.invoked_subcommand is not None:
        if any(value is not None for value in flags.values()):
            raise typer.BadParameter(f"`heddle check {context.invoked_subcommand}` takes no settings")
        return
    from heddle import checks

    raise typer.Exit(0 if checks.run(_settings_flags(**flags)) else 1)


@checking.command("vectors")
def check_vectors(
    file: Annotated[Path, typer.Argument(help="Recorded cases as JSON; what they expect may be missing.")],
) -> None:
    """Print what this installation computes for recorded losses and advantages, as one JSON object."""
    try:
        from heddle.training.trainer.vectors import computed
    except ImportError as error:
        raise ExtraMissing("training is not installed: pip install 'heddle[training]'") from error
    typer.echo(json.dumps(computed(file)))


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
    except (HeddleError, BadSetting) as error:
        typer.echo(f"heddle: {error}", err=True)
        sys.exit(1)


def _arguments(given: list[str]) -> list[str]:
    """A bare `--auth` or `--trace-inference` means `on`."""
    arguments = []
    for index, word in enumerate(given):
        arguments.append(word)
        if word in ("--auth", "--trace-inference") and (index + 1 == len(given) or given[index + 1].startswith("-")):
            arguments.append("on")
    return arguments
