"""The table of metrics holds Prometheus' conventions, and what `deploy/` has of it is not stale."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from heddle.metrics import COUNTER, GAUGE, HISTOGRAM, ROWS, TABLE
from tools import monitoring

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (apt-get install prometheus)")
NAME = re.compile(r"\b(?:heddle|process)_\w+")
OF_CLIENT = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
"""What the client library adds of itself."""


def test_names_and_kinds_are_those_of_prometheus() -> None:
    assert len(ROWS) == len(TABLE)
    for row in TABLE:
        assert row.name in OF_CLIENT or row.name.startswith("heddle_")
        assert row.kind in (COUNTER, GAUGE, HISTOGRAM) and bool(row.buckets) == (row.kind == HISTOGRAM)
        assert row.name.endswith("_total") == (row.kind == COUNTER), row.name
        assert row.help.endswith(".") and len(row.help) > 20, row.name
        assert not {"project", "user", "key", "le"} & set(row.labels), row.name
        assert row.panels or row.alerts, f"nobody would look at {row.name}"


def test_queries_are_about_their_own_metric_and_about_others_that_there_are() -> None:
    known = {name for row in TABLE for name in _samples(row.name, row.kind)}
    for row in TABLE:
        queries = [panel.query for panel in row.panels] + [alert.expression for alert in row.alerts]
        assert all("METRIC" in query for query in queries), row.name
        assert {name for query in queries for name in NAME.findall(query.replace("METRIC", row.name))} <= known
    names = [alert.name for row in TABLE for alert in row.alerts]
    assert len(set(names)) == len(names)


def _samples(name: str, kind: str) -> list[str]:
    return [f"{name}_{part}" for part in ("bucket", "sum", "count")] if kind == HISTOGRAM else [name]


@pytest.mark.parametrize("path", monitoring.FILES, ids=lambda path: path.name)
def test_the_files_are_what_the_table_says(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == monitoring.FILES[path](), "run: python -m tools.monitoring"


def test_the_dashboard_fits_a_screen_and_no_panel_lies_on_another() -> None:
    panels = json.loads(monitoring.DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        across = range(place["x"], place["x"] + place["w"])
        cells = {(x, y) for x in across for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken and max(across) < 24, panel["title"]
        taken |= cells


@needs_promtool
def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    assert PROMTOOL is not None
    config = monitoring.ALERTS.with_name("prometheus.yaml")
    done = subprocess.run([PROMTOOL, "check", "config", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{sum(len(row.alerts) for row in TABLE)} rules found" in done.stdout


def _series(name: str, values: str) -> dict[str, str]:
    return {"series": name, "values": values}


FIRING = {
    "HeddleServerErrors": ("10m", {"instance": "a"}, [
        _series('heddle_http_requests_total{instance="a",status="200"}', "0+600x20"),
        _series('heddle_http_requests_total{instance="a",status="500"}', "0+60x20"),
        _series('heddle_http_requests_total{instance="b",status="200"}', "0+600x20"),
        _series('heddle_http_requests_total{instance="b",status="404"}', "0+600x20"),
    ]),
    "HeddleStorageFull": ("10m", {"instance": "a"}, [
        _series('heddle_http_requests_total{instance="a",status="507"}', "0+1x20"),
    ]),
    "HeddleDiskAlmostFull": ("20m", {"instance": "a"}, [
        _series('heddle_disk_free_bytes{instance="a"}', "9x30"),
        _series('heddle_disk_size_bytes{instance="a"}', "100x30"),
        _series('heddle_disk_free_bytes{instance="b"}', "11x30"),
        _series('heddle_disk_size_bytes{instance="b"}', "100x30"),
    ]),
    "HeddleDatabaseAlmostFull": ("20m", {"instance": "a"}, [
        _series('heddle_disk_used_bytes{instance="a",part="database"}', "95x30"),
        _series('heddle_disk_used_bytes{instance="a",part="files"}', "99x30"),
        _series('heddle_database_limit_bytes{instance="a"}', "100x30"),
        _series('heddle_disk_used_bytes{instance="b",part="database"}', "95x30"),
        _series('heddle_database_limit_bytes{instance="b"}', "0x30"),
    ]),
    "HeddleJobsWait": ("30m", {"kind": "replay"}, [
        _series('heddle_jobs{instance="a",kind="replay",state="queued"}', "3x40"),
        _series('heddle_jobs{instance="a",kind="train_rl",state="queued"}', "3x40"),
        _series('heddle_jobs{instance="a",kind="train_rl",state="running"}', "1x40"),
    ]),
    "HeddleEventLoopSlow": ("30m", {"instance": "a"}, [
        _series('heddle_event_loop_lag_seconds_bucket{instance="a",le="0.25"}', "0+1x40"),
        _series('heddle_event_loop_lag_seconds_bucket{instance="a",le="0.5"}', "0+10x40"),
        _series('heddle_event_loop_lag_seconds_bucket{instance="a",le="+Inf"}', "0+10x40"),
    ]),
    "HeddleDown": ("10m", {}, [_series('heddle_jobs{kind="replay",state="running"}', "1x20")]),
}  # fmt: skip


@needs_promtool
def test_alerts_fire_for_whom_they_should(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    rules = {alert.name: alert for row in TABLE for alert in row.alerts}
    found = yaml.safe_load(monitoring.ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]
    texts = {rule["alert"]: rule["annotations"] for rule in found}
    tests = []
    for name, (at, labels, series) in FIRING.items():
        given = dict(labels)
        told = {
            key: text.replace("{{ $labels.instance }}", given.get("instance", "")) for key, text in texts[name].items()
        }
        told = {key: text.replace("{{ $labels.kind }}", given.get("kind", "")) for key, text in told.items()}
        fired = [{"exp_labels": {**labels, "severity": rules[name].severity}, "exp_annotations": told}]
        quiet = {"eval_time": "0m", "alertname": name, "exp_alerts": []}
        asked = [quiet, {"eval_time": at, "alertname": name, "exp_alerts": fired}]
        tests.append({"interval": "1m", "input_series": series, "alert_rule_test": asked})
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump({"rule_files": [str(monitoring.ALERTS)], "tests": tests}), encoding="utf-8")
    done = subprocess.run([PROMTOOL, "test", "rules", suite], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
