"""A comparison as a table for people, as JSON, and as JUnit XML for CI systems."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heddle.errors import HeddleError
from heddle.gate.comparison import Comparison, Measured
from heddle.gate.conditions import Verdict

_HEADS = ("measure", "baseline", "run", "change", "95 % interval", "rows")
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def show(title: str, comparison: Comparison, verdicts: Sequence[Verdict], console: Console) -> None:
    """Print the comparison and what the conditions came to."""
    table = Table(title=escape(title), box=SIMPLE, padding=(0, 1), pad_edge=False)
    table.add_column("measure", overflow="fold")
    for head in _HEADS[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    for measured in comparison.shown:
        table.add_row(*map(escape, _cells(measured)))
    console.print(table)
    console.print(_rows_sentence(comparison))
    for warning in comparison.warnings:
        console.print(f"[yellow]{escape(warning)}[/yellow]")
    for verdict in verdicts:
        mark = "[red]regression[/red]" if verdict.has_failed else "[green]held[/green]"
        console.print(f"{mark}  {escape(verdict.sentence)}", soft_wrap=True)


def _rows_sentence(comparison: Comparison) -> str:
    left_out = comparison.only_run + comparison.only_baseline
    rest = (
        f"; {comparison.only_run} rows only in the run, {comparison.only_baseline} only in the baseline"
        if left_out
        else ""
    )
    return f"{comparison.common} rows in both{rest}"


def _cells(measured: Measured) -> list[str]:
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


def as_json(title: str, comparison: Comparison, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Everything that the table shows, for programs."""
    return {
        "evaluation": title,
        "run": comparison.run_id,
        "baseline": comparison.baseline_id,
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


def junit(title: str, comparison: Comparison, verdicts: Sequence[Verdict]) -> str:
    """JUnit XML: a test case for each measure, with its figures, and one for each condition, failed where it holds."""
    failed = sum(verdict.has_failed for verdict in verdicts)
    tests = len(comparison.shown) + len(verdicts)
    counts = {"tests": str(tests), "failures": str(failed), "errors": "0", "skipped": "0"}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": _clean(title), **counts, "time": "0"})
    for measured in comparison.shown:
        case = _case(suite, title, measured.name)
        told = ", ".join(f"{head} {cell}" for head, cell in zip(_HEADS, _cells(measured), strict=True))
        ET.SubElement(case, "system-out").text = _clean(told)
    for verdict in verdicts:
        case = _case(suite, title, verdict.condition.text)
        if verdict.has_failed:
            detail = {"message": _clean(verdict.sentence), "type": "regression"}
            ET.SubElement(case, "failure", detail).text = _clean(
                f"{verdict.sentence} (run {comparison.run_id}, baseline {comparison.baseline_id})"
            )
    ET.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def junit_failure(title: str, reason: str) -> str:
    """JUnit XML of a gate that could not compare: one test case in error."""
    counts = {"tests": "1", "failures": "0", "errors": "1", "skipped": "0"}
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": _clean(title), **counts, "time": "0"})
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


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write a report as JSON."""
    write(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
