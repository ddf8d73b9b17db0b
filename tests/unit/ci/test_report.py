"""Reports: JUnit XML that CI systems read, JSON, and the table."""

import io
import json
import xml.etree.ElementTree as ET

from rich.console import Console

from heddle.ci import program as report
from heddle.ci.comparison import Comparison, Interval, Measurement, parse_condition

MEASURES = {
    "score": Measurement("score", 0.8, 0.7, 20, Interval(-0.15, -0.05)),
    "<odd & \x00name>": Measurement("<odd & \x00name>", 0.0, 0.0, 20, Interval(0.0, 0.0)),
    "only-here": Measurement("only-here", None, None, 0, None),
}
COMPARISON = Comparison("run-1", "base-1", 20, 1, 2, MEASURES, warnings=("something was odd",))
VERDICTS = [parse_condition(text).check(COMPARISON) for text in ("score < -0.02", "mean(score) < 0.5")]


def test_junit_has_a_case_for_each_measure_and_condition() -> None:
    text = report.report_junit("quality & more", COMPARISON, VERDICTS)
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
    suites = ET.fromstring(report.report_failure("quality", "run x failed: <no> model\x01"))
    (case,) = suites[0]
    error = case.find("error")
    assert suites.get("errors") == suites[0].get("errors") == "1"
    assert error is not None and error.get("message") == "run x failed: <no> model�"


JUNIT = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"name", "tests", "failures", "errors", "skipped", "time", "timestamp", "hostname", "id", "package"},
    "testcase": {"name", "time", "classname", "group"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "system-out": set(),
}
"""The elements and attributes that Jenkins' schema (junit-10.xsd of its xunit plug-in) knows, of those used here."""


def test_junit_has_only_what_its_schema_knows() -> None:
    for text in (report.report_junit("q", COMPARISON, VERDICTS), report.report_failure("q", "no server")):
        for element in ET.fromstring(text).iter():
            assert set(element.attrib) <= JUNIT[element.tag], element.tag
            if element.tag == "testsuite":
                assert {"name", "tests", "failures", "errors"} <= set(element.attrib)


def test_sarif_has_what_code_scanning_needs() -> None:
    """Checked by hand against the schema of OASIS, too, which has no errors to tell of it."""
    made = json.loads(json.dumps(report.report_sarif("quality & more", COMPARISON, VERDICTS), allow_nan=False))
    assert made["version"] == "2.1.0" and set(made) == {"$schema", "version", "runs"}
    (run,) = made["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], [rule["id"] for rule in driver["rules"]]) == (
        "heddle",
        ["score < -0.02", "mean(score) < 0.5"],
    )
    (result,) = run["results"]
    assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "score < -0.02"
    assert result["level"] == "error" and "baseline base-1" in result["message"]["text"]
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "quality%20%26%20more"


def test_json_holds_all_figures() -> None:
    made = json.loads(json.dumps(report.report_json("quality", COMPARISON, VERDICTS), allow_nan=False))
    assert made["measures"]["score"] == {
        "baseline": 0.8, "run": 0.7, "difference": -0.10000000000000009, "interval": [-0.15, -0.05], "rows": 20,
    }  # fmt: skip
    assert made["rows"] == {"common": 20, "only_run": 1, "only_baseline": 2}
    assert made["regression"] is True and [item["failed"] for item in made["conditions"]] == [True, False]


def test_the_table_shows_everything_and_takes_no_markup_from_names() -> None:
    console = Console(file=io.StringIO(), width=160, highlight=False)
    measures = {"[red]x[/red]": Measurement("[red]x[/red]", 1.0, 2.0, 3, Interval(0.5, 1.5))}
    report.print_report("t [b]", Comparison("r", "b", 3, 1, 0, measures, warnings=("[w]",)), [], console)
    file = console.file
    assert isinstance(file, io.StringIO)
    text = file.getvalue()
    assert "[red]x[/red]" in text and "+0.5 … +1.5" in text and "t [b]" in text and "[w]" in text
    assert "3 rows in both; 1 rows only in the run, 0 only in the baseline" in text


def test_the_table_fits_a_narrow_terminal_and_repeats_nothing() -> None:
    spread = Interval(-0.123456, 0.0123456)
    names = ("score", "exact", "exact.exact_match", "levenshtein", "levenshtein.levenshtein_similarity",
             "levenshtein.levenshtein_distance", "latency", "tokens", "error_share")  # fmt: skip
    measures = {name: Measurement(name, 0.123456, 0.0123456, 1_000, spread) for name in names}
    console = Console(file=io.StringIO(), width=80, highlight=False)
    report.print_report("capitals", Comparison("r", "b", 1_000, 0, 0, measures), [], console)
    file = console.file
    assert isinstance(file, io.StringIO)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    whole = [line for line in lines if "-0.12 … +0.012" in line]
    assert len(whole) == 8 and all(line.rstrip().endswith("1000") for line in whole)
    assert "exact_match" not in file.getvalue()
