"""What `heddle eval run` and `heddle eval compare` do; they end with 0 passed, 1 a regression, 2 anything else."""

import json
import re
import sys
import traceback
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import heddle
from heddle.ci import runs
from heddle.ci.comparison import (
    ERRORS,
    Comparison,
    Condition,
    Measurement,
    Verdict,
    compare,
    find_latest_run,
    parse_condition,
)
from heddle.command_options import explain
from heddle.errors import HeddleError
from heddle.remote import Place, Project
from heddle.wire.jsontypes import Json

_HEADS = ("measure", "baseline", "run", "change", "95 % interval", "rows")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def print_report(title: str, comparison: Comparison, verdicts: Sequence[Verdict], console: Console) -> None:
    """Print the comparison and what the conditions came to."""
    table = Table(title=escape(title), box=SIMPLE, padding=(0, 1), pad_edge=False)
    table.add_column("measure", overflow="fold")
    for head in _HEADS[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    for measured in comparison.distinct:
        table.add_row(*map(escape, _cells(measured)))
    console.print(table)
    console.print(_rows_sentence(comparison))
    for warning in comparison.warnings:
        console.print(f"[yellow]{escape(warning)}[/yellow]")
    for verdict in verdicts:
        mark = "[red]failed[/red]" if verdict.has_failed else "[green]passed[/green]"
        console.print(f"{mark}  {escape(verdict.sentence)}", soft_wrap=True)


def _rows_sentence(comparison: Comparison) -> str:
    left_out = comparison.only_run + comparison.only_baseline
    rest = (
        f"; {comparison.only_run} rows only in the run, {comparison.only_baseline} only in the baseline"
        if left_out
        else ""
    )
    return f"{comparison.common} rows in both{rest}"


def _cells(measured: Measurement) -> list[str]:
    spread = measured.interval
    between = f"{_signed(spread.low)} … {_signed(spread.high)}" if spread else "-"
    return [
        measured.name,
        _number(measured.baseline),
        _number(measured.run),
        _signed(measured.difference),
        between,
        str(measured.rows),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2g}" if value else "0"


def report_json(title: str, comparison: Comparison, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Everything that the table shows, for programs."""
    return {
        "evaluation": title,
        "run": comparison.run_id,
        "baseline": None if comparison.is_first else comparison.baseline_id,
        "rows": {
            "common": comparison.common,
            "only_run": comparison.only_run,
            "only_baseline": comparison.only_baseline,
        },
        "measures": {
            measured.name: {
                "baseline": measured.baseline,
                "run": measured.run,
                "difference": measured.difference,
                "interval": list(measured.interval) if measured.interval else None,
                "rows": measured.rows,
            }
            for measured in comparison.measures.values()
        },
        "conditions": [
            {"condition": verdict.condition.text, "value": _finite(verdict.value), "failed": verdict.has_failed}
            for verdict in verdicts
        ],
        "warnings": list(comparison.warnings),
        "regression": any(verdict.has_failed for verdict in verdicts),
    }


def _finite(value: float) -> float | str:
    return value if abs(value) != float("inf") else str(value)


def report_junit(title: str, comparison: Comparison, verdicts: Sequence[Verdict]) -> str:
    """JUnit XML: a test case for each measure, with its numbers, and one for each condition, failed where it holds."""
    failed = sum(verdict.has_failed for verdict in verdicts)
    tests = len(comparison.distinct) + len(verdicts)
    counts = {"tests": str(tests), "failures": str(failed), "errors": "0"}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": _clean(title), **counts, "skipped": "0", "time": "0"})
    for measured in comparison.distinct:
        case = _case(suite, title, measured.name)
        line = ", ".join(f"{head} {cell}" for head, cell in zip(_HEADS, _cells(measured), strict=True))
        ET.SubElement(case, "system-out").text = _clean(line)
    for verdict in verdicts:
        case = _case(suite, title, verdict.condition.text)
        if verdict.has_failed:
            detail = {"message": _clean(verdict.sentence), "type": "regression"}
            ET.SubElement(case, "failure", detail).text = _clean(
                f"{verdict.sentence} (run {comparison.run_id}, baseline {comparison.baseline_id})"
            )
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def report_markdown(title: str, comparison: Comparison, verdicts: Sequence[Verdict]) -> str:
    """The table and the conditions as Markdown, for the summary of a job or a comment on a pull request."""
    lines = [f"### {_escape_markdown(title)}", "", f"| {' | '.join(_HEADS)} |", "|---" + "|--:" * 5 + "|"]
    lines += [f"| {' | '.join(map(_escape_markdown, _cells(measured)))} |" for measured in comparison.distinct]
    lines += ["", _rows_sentence(comparison)]
    if comparison.is_first:
        lines += ["", "This is the first successful run; it is the baseline from now on."]
    items = [_escape_markdown(warning) for warning in comparison.warnings]
    for verdict in verdicts:
        mark = "❌ failed" if verdict.has_failed else "✅ passed"
        items.append(f"{mark}: {_escape_markdown(verdict.sentence)}")
    return "\n".join([*lines, "", *(f"- {item}" for item in items)]) + "\n"


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", text.replace("\n", " "))


def report_sarif(title: str, comparison: Comparison, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """SARIF 2.1.0 (OASIS): a rule for each condition and a result for each that failed, under the evaluation's name."""
    rules = [
        {"id": one.condition.text, "shortDescription": {"text": f"Fails if {one.condition.text}"}} for one in verdicts
    ]
    where = [{"physicalLocation": {"artifactLocation": {"uri": quote(title, safe="")}}}]
    detail = f"run {comparison.run_id}, baseline {comparison.baseline_id}"
    results = [
        {
            "ruleId": verdict.condition.text,
            "ruleIndex": index,
            "level": "error",
            "message": {"text": f"{verdict.sentence} ({detail})"},
            "locations": where,
        }
        for index, verdict in enumerate(verdicts)
        if verdict.has_failed
    ]
    driver = {"name": "heddle", "version": heddle.__version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def report_failure(title: str, reason: str) -> str:
    """JUnit XML where nothing could be compared: one test case in error."""
    counts = {"tests": "1", "failures": "0", "errors": "1"}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": _clean(title), **counts, "skipped": "0", "time": "0"})
    detail = {"message": _clean(reason), "type": "error"}
    ET.SubElement(_case(suite, title, "evaluation"), "error", detail).text = _clean(reason)
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _case(suite: ET.Element, title: str, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", {"classname": _clean(title), "name": _clean(name), "time": "0"})


def _clean(text: str) -> str:
    return _NOT_XML.sub("�", text)


def write(path: str, text: str) -> None:
    """Write a report file; raises HeddleError when it cannot be written."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise HeddleError(f"{path} cannot be written: {error.strerror}") from None


def _to_json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


LATEST = "latest"
"""The baseline that is the newest run that ended well."""
REGRESSION, FAILURE, INTERRUPTED = 1, 2, 130


@dataclass(frozen=True, slots=True)
class Options:
    """What both commands take."""

    fail_if: Sequence[str]
    project: str | None
    junit: str | None
    json_file: str | None
    markdown: str | None
    sarif: str | None
    server: str | None
    key: str | None


def run(evaluation: str, model: str, baseline: str, parameters: Json, timeout: float | None, options: Options) -> None:
    """Evaluate a model on the server and compare it with a baseline."""
    with exit_on_failure(tell=partial(_write_failure, evaluation, options)):
        conditions = [parse_condition(text) for text in options.fail_if]
        here = _open_project(options, evaluation)
        found = runs.find_evaluation(here, evaluation)
        base = find_latest_run(here, found) if baseline == LATEST else runs.find_run(here, baseline)
        ours = runs.find_model(here, model, parameters)
        if base is None and baseline == LATEST:
            made = _run_one(here, found, ours, model, timeout)
            # What it is compared with is itself, so that the reports have its values.
            _report(here, found.name, compare(here, made, made), [], options)
            return
        if base is None:
            base = _run_one(here, found, runs.find_model(here, baseline, parameters), baseline, timeout)
        made = _run_one(here, found, ours, model, timeout)
        _report(here, found.name, compare(here, made, base), conditions, options)


def compare_runs(run_id: str, baseline: str, options: Options) -> None:
    """Compare two stored runs."""
    title = f"{run_id} against {baseline}"
    with exit_on_failure(tell=partial(_write_failure, title, options)):
        conditions = [parse_condition(text) for text in options.fail_if]
        here = _open_project(options, "")
        for call_id in (run_id, baseline):
            runs.check_run(here, call_id)
        _report(here, title, compare(here, run_id, baseline), conditions, options)


def _open_project(options: Options, ref: str) -> Project:
    return Place(options.project or runs.read_project(ref), options.server, options.key).open()


def _run_one(project: Project, evaluation: runs.StoredObject, model_ref: str, label: str, timeout: float | None) -> str:
    with _show_progress(f"{evaluation.name} of {label}") as progress:
        return runs.run_evaluation(project, evaluation.ref, model_ref, progress, timeout)


@contextmanager
def _show_progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how far a run is, on stderr: a bar for people, nothing for logs."""
    columns = (TextColumn(escape(label)), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total or None)


def _report(
    project: Project, title: str, comparison: Comparison, conditions: Sequence[Condition], options: Options
) -> None:
    """Write and show the comparison; ends the command with 1 on a regression."""
    _check_answers(project, comparison)
    verdicts = [condition.check(comparison) for condition in conditions]
    for path, make in (
        (options.junit, report_junit),
        (options.json_file, report_json),
        (options.markdown, report_markdown),
        (options.sarif, report_sarif),
    ):
        if path is not None:
            content = make(title, comparison, verdicts)
            write(path, content if isinstance(content, str) else _to_json(content))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    with suppress(SystemExit):  # of rich, where nobody reads: that decides nothing
        if comparison.is_first:
            console.print(f"run {comparison.run_id}: the first successful run; it is the baseline from now on")
        else:
            console.print(f"run {comparison.run_id}, baseline {comparison.baseline_id}")
        print_report(title, comparison, verdicts, console)
    if any(verdict.has_failed for verdict in verdicts):
        raise typer.Exit(REGRESSION)


def _check_answers(project: Project, comparison: Comparison) -> None:
    """Raise where there is nothing to compare: no common row, or a run in which every answer failed."""
    if not comparison.common:
        raise HeddleError(f"the runs {comparison.run_id} and {comparison.baseline_id} have no rows in common")
    errors = comparison.measures[ERRORS]
    for run_id, share in ((comparison.run_id, errors.run), (comparison.baseline_id, errors.baseline)):
        if share == 1:
            raise HeddleError(f"every answer of run {run_id} failed: {runs.read_failure(project, run_id)}")


@contextmanager
def exit_on_failure(interrupted: str = "interrupted", tell: Callable[[str], None] | None = None) -> Iterator[None]:
    """Ends the command with 2 and a line on stderr where something cannot be done, which `tell` is told."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        # That of Python itself would be that of a regression.
        reason = explain(error) or traceback.format_exc()
        typer.echo(f"heddle: {reason}", err=True)
        if tell is not None:
            with exit_on_failure():
                tell(reason)
        raise typer.Exit(FAILURE) from None
    except KeyboardInterrupt:
        typer.echo(f"heddle: {interrupted}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _write_failure(title: str, options: Options, reason: str) -> None:
    if options.junit is not None:
        write(options.junit, report_failure(title, reason))
