"""What several commands have in common: options, the settings that these make, tables of texts, and why one failed."""

import sqlite3
from collections.abc import Sequence
from typing import Annotated

import typer

from heddle import paths, settings
from heddle.errors import HeddleError
from heddle.settings import BadSetting, Settings

Data = Annotated[str | None, typer.Option("--data", help="The data folder.", metavar="FOLDER")]
Control = Annotated[
    str | None,
    typer.Option("--control", help="sqlite, or the postgresql://... address of the servers.", metavar="WHERE"),
]
Config = Annotated[str | None, typer.Option("--config", help="A TOML file of settings.", metavar="FILE")]
Server = Annotated[str | None, typer.Option("--server", help="The server's address. [HEDDLE_SERVER]")]
Key = Annotated[str | None, typer.Option("--key", help="The API key. [HEDDLE_API_KEY or WANDB_API_KEY]")]


def load_settings(config: str | None, **flags: str | None) -> Settings:
    """The settings of a command, of a TOML file and the flags that were given; what the process writes is private."""
    paths.keep_private()
    return settings.load(flags, config=config)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of texts in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def explain(error: Exception) -> str | None:
    """The line that tells why a command failed; None for a fault of the program."""
    if isinstance(error, HeddleError | BadSetting):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        what = "reading or writing failed" if error.filename is None else f"{error.filename} cannot be used"
        return f"{what}: {error.strerror}"
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object[:200]!r} cannot be written as {error.encoding}"
    if type(error) is UnicodeError:  # of a name of a host, which no codec takes
        return f"a server name is not valid: {error}"
    if isinstance(getattr(error, "orig", error), sqlite3.Error):
        from heddle.store.sqlite.database import explain as explain_database

        return str(found) if (found := explain_database(error)) else None
    return None
