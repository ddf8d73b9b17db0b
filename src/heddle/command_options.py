"""What several commands have in common: options, the settings that these make, and tables of texts."""

from collections.abc import Sequence
from typing import Annotated

import typer

from heddle import paths, settings
from heddle.settings import Settings

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
