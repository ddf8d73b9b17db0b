"""Reports: JUnit XML that CI systems read, JSON, and the table."""

import io
import json
import xml.etree.ElementTree as ET

from rich.console import Console

from heddle.gate import report
from heddle.gate.bootstrap import Interval
from heddle.gate.comparison import Comparison, Measured
from heddle.gate.conditions import parse

MEASURES = {
    "score": Measured("score", 0.8, 0.7, 20, Interval(-0.15, -0.05)),
    "<odd & \x00name>": Measured("<odd & \x00name>", 0.0, 0.0, 20, Interval(0.0, 0.0)),
    "only-here": Measured("only-here", None, None, 0, None),
}
COMPARISON = Comparison("run-1", "base-1", 20, 1, 2, MEASURES, warnings=("something was odd",))
VERDICTS = [parse(text).check(COMPARISON) for text in ("score < -0.02", "mean(score) < 0.5")]


def test_junit_has_a_case_for_each_measure_and_condition() -> None:
    text = report.junit("quality & more", COMPARISON, VERDICTS)
    assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>')
    suites = ET.fromstring(text)
    (suite,) = suites
    assert suites.tag == "testsuites" and suite.tag == "testsuite" and suite.get("name") == "quality & more"
    for element in (suites, suite):
        assert (element.get("tests"), element.get("failures"), element.get("errors")) == ("5", "1", "0")
    cases = list(suite)
    assert [case.tag for case in cases] == ["testcase"] * 5
    assert all(case.get("name") and case.get("classname") and case.get("time") for case in cases)
    failed = [case for case in cases if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == ["score < -0.02"]
    failure = failed[0].find("failure")
    assert failure is not None and failure.get("message") == "score < -0.02: it is -0.1"
    assert "baseline base-1" in (failure.text or "")
    figures = cases[0].findtext("system-out")
    assert figures is not None and "change -0.1" in figures and "-0.15 … -0.05" in figures


def test_junit_of_a_gate_that_could_not_compare_is_an_error() -> None:
    suites = ET.fromstring(report.junit_failure("quality", "run x failed: <no> model\x01"))
    (case,) = suites[0]
    error = case.find("error")
    assert suites.get("errors") == suites[0].get("errors") == "1"
    assert error is not None and error.get("message") == "run x failed: <no> model�"


def test_json_holds_all_figures() -> None:
    made = json.loads(json.dumps(report.as_json("quality", COMPARISON, VERDICTS), allow_nan=False))
    assert made["measures"]["score"] == {
        "baseline": 0.8, "run": 0.7, "difference": -0.10000000000000009, "interval": [-0.15, -0.05], "rows": 20,
    }  # fmt: skip
    assert made["rows"] == {"common": 20, "only_run": 1, "only_baseline": 2}
    assert made["regression"] is True and [item["failed"] for item in made["conditions"]] == [True, False]


def test_the_table_shows_everything_and_takes_no_markup_from_names() -> None:
    console = Console(file=io.StringIO(), width=160, highlight=False)
    measures = {"[red]x[/red]": Measured("[red]x[/red]", 1.0, 2.0, 3, Interval(0.5, 1.5))}
    report.show("t [b]", Comparison("r", "b", 3, 1, 0, measures, warnings=("[w]",)), [], console)
    file = console.file
    assert isinstance(file, io.StringIO)
    text = file.getvalue()
    assert "[red]x[/red]" in text and "+0.5 … +1.5" in text and "t [b]" in text and "[w]" in text
    assert "3 rows in both; 1 rows only in the run, 0 only in the baseline" in text


def test_the_table_fits_a_narrow_terminal_and_repeats_nothing() -> None:
    spread = Interval(-0.123456, 0.0123456)
    names = ("score", "exact", "exact.exact_match", "levenshtein", "levenshtein.levenshtein_similarity",
             "levenshtein.levenshtein_distance", "latency", "tokens", "error_share")  # fmt: skip
    measures = {name: Measured(name, 0.123456, 0.0123456, 1_000, spread) for name in names}
    console = Console(file=io.StringIO(), width=80, highlight=False)
    report.show("capitals", Comparison("r", "b", 1_000, 0, 0, measures), [], console)
    file = console.file
    assert isinstance(file, io.StringIO)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    whole = [line for line in lines if "-0.12 … +0.012" in line]
    assert len(whole) == 8 and all(line.rstrip().endswith("1000") for line in whole)
    assert "exact_match" not in file.getvalue()
