"""What `heddle eval run` and `heddle eval compare` do; they end with 0 all held, 1 a regression, 2 anything else."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from heddle.errors import HeddleError
from heddle.gate import report, running
from heddle.gate.comparison import ERRORS, Comparison, compare
from heddle.gate.conditions import Condition, parse
from heddle.remote import PROJECT_VARIABLE, Project, Remote
from heddle.wire.jsontypes import Json

REGRESSION, FAILURE, INTERRUPTED = 1, 2, 130


@dataclass(frozen=True, slots=True)
class Options:
    """What both commands take."""

    fail_if: Sequence[str]
    project: str | None
    junit: str | None
    json_file: str | None
    server: str | None
    key: str | None


def run(evaluation: str, model: str, baseline: str, parameters: Json, timeout: float | None, options: Options) -> None:
    """Evaluate a model on the server and compare it with a baseline."""
    with _failures(evaluation, options.junit):
        conditions = [parse(text) for text in options.fail_if]
        here = _project(options, evaluation)
        found = running.evaluation(here, evaluation)
        base = running.run_of(here, baseline, found)
        ours = running.model(here, model, parameters)
        if base is None:
            base = _run(here, found, running.model(here, baseline, parameters), baseline, timeout)
        made = _run(here, found, ours, model, timeout)
        _settle(here, found.name, compare(here, made, base), conditions, options)


def compare_runs(run_id: str, baseline: str, options: Options) -> None:
    """Compare two stored runs."""
    title = f"{run_id} against {baseline}"
    with _failures(title, options.junit):
        conditions = [parse(text) for text in options.fail_if]
        here = _project(options, "")
        for call_id in (run_id, baseline):
            running.checked_run(here, call_id)
        _settle(here, title, compare(here, run_id, baseline), conditions, options)


def _project(options: Options, ref: str) -> Project:
    name = options.project or running.project_of(ref) or os.environ.get(PROJECT_VARIABLE)
    if not name:
        raise HeddleError(f"name the project: --project entity/project, or {PROJECT_VARIABLE}")
    return Remote(options.server, options.key).project(name)


def _run(project: Project, evaluation: running.Stored, model_ref: str, label: str, timeout: float | None) -> str:
    with _progress(f"{evaluation.name} of {label}") as told:
        return running.run(project, evaluation.ref, model_ref, told, timeout)


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how far a run is, on stderr: a bar for people, nothing for logs."""
    columns = (TextColumn(escape(label)), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total or None)


def _settle(
    project: Project, title: str, comparison: Comparison, conditions: Sequence[Condition], options: Options
) -> None:
    """Show and write the comparison; ends the command with 1 on a regression."""
    _insist_on_answers(project, comparison)
    verdicts = [condition.check(comparison) for condition in conditions]
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(f"run {comparison.run_id}, baseline {comparison.baseline_id}")
    report.show(title, comparison, verdicts, console)
    if options.junit is not None:
        report.write(options.junit, report.junit(title, comparison, verdicts))
    if options.json_file is not None:
        report.write_json(options.json_file, report.as_json(title, comparison, verdicts))
    if any(verdict.has_failed for verdict in verdicts):
        raise typer.Exit(REGRESSION)


def _insist_on_answers(project: Project, comparison: Comparison) -> None:
    """Raise where there is nothing to compare: no common row, or a run in which every answer failed."""
    if not comparison.common:
        raise HeddleError(f"the runs {comparison.run_id} and {comparison.baseline_id} have no row in common")
    errors = comparison.measures[ERRORS]
    for run_id, share in ((comparison.run_id, errors.run), (comparison.baseline_id, errors.baseline)):
        if share == 1:
            raise HeddleError(f"every answer of run {run_id} failed: {running.why_failed(project, run_id)}")


@contextmanager
def _failures(title: str, junit: str | None) -> Iterator[None]:
    """Ends the command with 2, a line on stderr and a JUnit error where something cannot be done."""
    try:
        yield
    except HeddleError as error:
        typer.echo(f"heddle: {error}", err=True)
        if junit is not None:
            report.write(junit, report.junit_failure(title, str(error)))
        raise typer.Exit(FAILURE) from None
    except KeyboardInterrupt:
        typer.echo("heddle: interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
