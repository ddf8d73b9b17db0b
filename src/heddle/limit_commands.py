"""`heddle limits` as it is typed; what it does is imported when it does it."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import typer

from heddle.command_options import Key, Server
from heddle.wire.jsontypes import Json

commands = typer.Typer(help="Limits and quotas of projects and keys: list, set, clear.", no_args_is_help=True)
Kind = Annotated[Literal["project", "key"], typer.Argument(help="project or key.", metavar="KIND")]
Name = Annotated[str, typer.Argument(help="entity/project, or the id of a key.", metavar="NAME")]
_NAMES = ("concurrency", "tokens_per_minute", "quotas")


@commands.command("list")
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's response.")] = False,
    server: Server = None,
    key: Key = None,
) -> None:
    """Show the limits in force, and how much of them is used."""
    from heddle.remote import Remote

    told = Remote(server, key).get("/v1/limits")
    if as_json:
        print(json.dumps(told, indent=2))
        return
    for entry in (*told["defaults"], *told["data"]):
        print(f"{entry['kind']} {entry['name'] or '(the settings)'}: {', '.join(_describe(entry)) or 'no limits'}")


def _describe(entry: Json) -> Iterator[str]:
    if entry["concurrency"]:
        yield f"{entry['running']} of {entry['concurrency']} completions at the same time"
    if entry["tokens_per_minute"]:
        yield f"{entry['tokens_per_minute']} tokens per minute"
    used = {use["quota"]: use["used"] for use in entry["uses"]}
    for quota in entry["quotas"].split(", "):
        if quota != "none":
            yield f"{quota} ({used[quota]} used)" if quota in used else quota


@commands.command("set")
def change(
    kind: Kind,
    name: Name,
    quotas: Annotated[
        str | None,
        typer.Option(
            help='"all requests 600/minute, opentelemetry bytes 2GiB/day, disk 50GiB", or none.', metavar="QUOTAS"
        ),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Concurrent completions; 0: no limit.")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(help="Tokens of completions per minute; 0: no limit.")
    ] = None,
    server: Server = None,
    key: Key = None,
) -> None:
    """Set limits of a project or key; those not given stay unchanged."""
    from heddle.remote import Remote

    remote = Remote(server, key)
    found = [one for one in remote.get("/v1/limits")["data"] if (one["kind"], one["name"]) == (kind, name)]
    body: dict[str, Any] = {word: one[word] for one in found for word in one["own"]}
    given = zip(_NAMES, (concurrency, tokens_per_minute, quotas), strict=True)
    body |= {word: value for word, value in given if value is not None}
    told = remote.put("/v1/limits", {"kind": kind, "name": name, **body})
    print(f"{kind} {name}: {', '.join(_describe(told)) or 'no limits'}")


@commands.command("clear")
def clear(kind: Kind, name: Name, server: Server = None, key: Key = None) -> None:
    """Reset a project or key to the limits of the settings."""
    from heddle.remote import Remote

    told = Remote(server, key).put("/v1/limits", {"kind": kind, "name": name})
    print(f"{kind} {name}: {', '.join(_describe(told)) or 'no limits'}")
