"""What `heddle improve` does: a client of the improvement routes; ends with 0 promoted, 1 refused, 2 anything else."""

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heddle.ci.program import exit_on_failure
from heddle.ci.runs import find_object
from heddle.errors import HeddleError, NotFound
from heddle.remote import Place, Project
from heddle.wire.jsontypes import Json

_REFUSED = 1
_LOOK_SECONDS = 0.5
_COUNTS = (("reward", "reward"), ("step", "step"), ("mean", "mean score"), ("scores", "scores"))


@dataclass(frozen=True, slots=True)
class Names:
    """What the command names, as it was typed."""

    model: str
    base_model: str | None
    scorers: Sequence[str]
    general: str | None
    columns: Sequence[str]


def start(names: Names, weak: Json, body: Json, place: Place, wait: bool) -> None:
    """Start an improvement and print what it comes to."""
    with _exit_on_failure():
        project = place.open()
        weak = _without_nulls(weak)
        if "query" in weak:
            try:
                weak["query"] = json.loads(weak["query"])
            except (ValueError, RecursionError) as error:
                raise HeddleError(f"--query is not valid JSON: {error}") from None
        pairs = [column.partition("=") for column in names.columns]
        if bad := next((column for column, (_, sign, _) in zip(names.columns, pairs, strict=True) if not sign), None):
            raise HeddleError(f"--column must be NAME=PATH, got {bad!r}")
        if names.base_model is not None:
            entity, _, name = project.id.partition("/")
            made = {"entity": entity, "project": name, "name": names.model, "base_model": names.base_model}
            project.remote.post("/v1/preview/models", made | {"return_existing": True})
        asked = _without_nulls(body) | {"model": names.model, "weak": weak}
        asked |= {"columns": {name: path for name, _, path in pairs}}
        asked["scorers"] = [_find(project, scorer) for scorer in names.scorers]
        if names.general is not None:
            asked["general"] = _find(project, names.general)
        made = project.post("/improvements/create", **asked)
        typer.echo(f"improvement {made['id']}")
        if wait:
            _follow(project, str(made["id"]))


def list_all(place: Place) -> None:
    """Print the improvements of a project."""
    with _exit_on_failure():
        table = Table(box=SIMPLE, pad_edge=False)
        for head in ("id", "model", "state", "outcome", "started"):
            table.add_column(head, no_wrap=head == "id")
        for one in place.open().post("/improvements/query")["improvements"]:
            cells = (one["id"], one["model"], one["state"], one["outcome"] or "-", one["created_at"][:19])
            table.add_row(*map(escape, cells))
        _console().print(table)


def show(improvement: str, place: Place) -> None:
    """Print the timeline of an improvement."""
    with _exit_on_failure():
        found = place.open().post("/improvements/read", id=improvement)["improvement"]
        console = _console()
        outcome = found["outcome"] or found["error"] or ""
        console.print(f"{escape(found['model'])}: {found['state']} {escape(outcome)}".rstrip())
        if found["reason"]:
            console.print(escape(found["reason"]))
        console.print(f"{found['spent_seconds']:.0f} of {found['budget_seconds']:.0f} CPU seconds")
        for step in found["steps"]:
            console.print(escape(_sentence(step)), soft_wrap=True)


def stop(improvement: str, place: Place) -> None:
    """Stop an improvement."""
    with _exit_on_failure():
        place.open().post("/improvements/cancel", id=improvement)
        typer.echo(f"improvement {improvement} stops")


def demonstrate(place: Place) -> None:
    """Run the demonstration, a line at a time."""
    from heddle.demo.improve import demonstrate as run

    with _exit_on_failure():
        run(place.open(), typer.echo)


def _follow(project: Project, improvement: str) -> None:
    """Print the steps as they end, until the outcome is known; Ctrl-C leaves it running."""
    told = 0
    while True:
        found = project.post("/improvements/read", id=improvement)["improvement"]
        ended = [step for step in found["steps"] if step["state"] != "running"]
        for step in ended[told:]:
            typer.echo(_sentence(step))
        told = len(ended)
        if found["outcome"] is not None or found["ended_at"] is not None:
            break
        time.sleep(_LOOK_SECONDS)
    if found["outcome"] is None:
        raise HeddleError(found["error"] or found["state"])
    typer.echo(found["outcome"] + (f": {found['reason']}" if found["reason"] else ""))
    if found["outcome"] != "promoted":
        raise typer.Exit(_REFUSED)


def _sentence(step: Json) -> str:
    """A step in a line: what it is, how long it took, and the numbers that it came to."""
    result, name = step["result"], step["name"] + (f" {step['number']}" if step["number"] else "")
    numbers = [f"{label} {result[key]:.4g}" for key, label in _COUNTS if isinstance(result.get(key), int | float)]
    for part in ("held_out", "general", "train"):
        found = result.get(part)
        if found:
            what = f"score {found['score']:.4g}" if "score" in found else f"{found['rows']} chats"
            numbers.append(f"{part.replace('_', '-')} {what}")
    state = "" if step["state"] == "succeeded" else f" ({step['state']})"
    return f"{name:<14} {step['seconds']:8.1f} s  {', '.join(numbers)}{state}".rstrip()


def _find(project: Project, named: str) -> str:
    found = find_object(project, named)
    if found is None:
        raise NotFound(f"object {named!r} not found in {project.id}")
    return found.ref


def _without_nulls(value: Json) -> Json:
    kept = {name: _without_nulls(item) if isinstance(item, dict) else item for name, item in value.items()}
    return {name: item for name, item in kept.items() if item is not None and item != {}}


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def _exit_on_failure() -> AbstractContextManager[None]:
    return exit_on_failure("interrupted; an improvement that was started goes on")
