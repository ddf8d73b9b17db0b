"""The loop of the demo as it is seen: reward before, steps with a progress bar, reward after, and where it stands."""

import json
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from heddle.demo.processes import Programs
from heddle.demo.show import show_links
from heddle.wire.jsontypes import Json

PROJECT = "demo/shop-assistant"
NAME = "preference"
STEPS = 25


def show(programs: Programs, address: str, console: Console) -> tuple[str, str]:
    """Run everything and print it; the names of the first and the last policy. Raises HeddleError when a part fails."""
    (made,) = _said(programs.lines("heddle.demo.teach", address, PROJECT, NAME, "0"))
    model = made["model"]
    before = _evaluated(programs, address, f"{model['address']}:step0")
    console.print(
        f"Asked to say yes, no or maybe it gets a reward of {before['reward']:.2f} "
        f"(yes 0.5, no 0.75, maybe 1): {before['answers']} answers to {before['questions']} questions."
    )
    steps = _taught(programs.lines("heddle.demo.teach", address, PROJECT, NAME, str(STEPS)), console)
    after = _evaluated(programs, address, f"{model['address']}:step{len(steps)}")
    console.print(_results(before, after, steps))
    show_links(_links(pages_of(address), steps[-1]["job"], before["call"], after["call"]), console)
    return f"{model['address']}:step0", f"{model['address']}:step{len(steps)}"


def pages_of(address: str) -> str:
    """Where the pages of the project begin."""
    return f"{address}/{PROJECT}/weave"


def _said(lines: Iterable[str]) -> Iterator[Json]:
    """The JSON lines among what a program prints."""
    return (json.loads(line) for line in lines if line.startswith("{"))


def _evaluated(programs: Programs, address: str, model: str) -> Json:
    (said,) = _said(programs.lines("heddle.demo.evaluate", address, PROJECT, model))
    return dict(said["evaluation"])


def _taught(lines: Iterable[str], console: Console) -> list[Json]:
    """The steps, shown as they come."""
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("reward {task.fields[reward]:.2f}"),
        TimeElapsedColumn(),
    )
    steps = []
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=STEPS, reward=0.0)
        for said in _said(lines):
            if "step" in said:
                steps.append(said["step"])
                progress.update(bar, completed=said["step"]["number"], reward=said["step"]["reward"])
    return steps


def _results(before: Json, after: Json, steps: list[Json]) -> Table:
    table = Table("reward", "before", "after", box=None)
    table.add_row(
        f"evaluation, {after['questions']} questions that training never saw",
        f"{before['reward']:.2f}",
        f"[bold green]{after['reward']:.2f}[/bold green]",
    )
    table.add_row(f"rollouts, first and last of {len(steps)} steps", *(f"{steps[i]['reward']:.2f}" for i in (0, -1)))
    return table


def _links(pages: str, job: str, before: str, after: str) -> dict[str, str]:
    """The pages that show where everything stands, by what they show."""
    return {
        "the policies": f"{pages}/models",
        "the last training job": f"{pages}/training/{job}",
        "the evaluations side by side": f"{pages}/evaluations/compare?runs={before},{after}",
    }
