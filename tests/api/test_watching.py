"""Watching a running server: /metrics as Prometheus reads it, its own spans, `heddle top`, and the log of refusals."""

import json
import shutil
import socket
import subprocess
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from heddle.app import served_routes
from heddle.metrics import ROWS, TABLE
from tests.support import scale
from tests.support.cli import heddle
from tests.support.server import HeddleProcess, free_port
from tests.support.traffic import until
from tools import monitoring

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")
PROJECT = "team/watched"
CHAT = {"model": "heddle-tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


def start(client: httpx.Client, **headers: str) -> httpx.Response:
    """Store the start of a call."""
    half = {"project_id": PROJECT, "op_name": "o", "started_at": "2026-01-01T00:00:00Z", "attributes": {}, "inputs": {}}
    return client.post("/call/start", json={"start": half}, headers=headers)


def export(client: httpx.Client, project: str = PROJECT) -> None:
    """Store one span; without a project have it refused."""
    times = {"startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    spans = [{"traceId": uuid.uuid4().hex, "spanId": uuid.uuid4().hex[:16], "name": "step", **times}]
    body = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    answer = client.post("/v1/traces", json=body, headers={"project_id": project} if project else {})
    assert answer.status_code == (200 if project else 400)


def chat(client: httpx.Client) -> None:
    """Have a completion answered."""
    assert client.post("/v1/chat/completions", json=CHAT, headers={"authorization": "Bearer x"}).status_code == 200


def figures(client: httpx.Client, name: str, **labels: str) -> float:
    """The sum of samples."""
    return sum(
        one.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for one in family.samples
        if one.name == name and labels.items() <= one.labels.items()
    )


@scale.on_sqlite
def test_all_workers_count_and_export_and_top_shows_it(tmp_path: Path) -> None:
    with (
        HeddleProcess(tmp_path / "other", model="none") as other,
        HeddleProcess(
            tmp_path / "data", workers=2, otlp_export_endpoint=other.url, otlp_export_headers="project_id=team/heddle"
        ) as process,
        httpx.Client(base_url=process.url, timeout=120) as client,
    ):
        trace, parent = uuid.uuid4().hex, "ab" * 8
        for number in range(12):
            # A connection of its own each, so that both workers are met.
            with httpx.Client(base_url=process.url, timeout=120) as one:
                sampled = "01" if number < 10 else "00"
                assert start(one, traceparent=f"00-{trace}-{parent}-{sampled}").status_code == 200
                export(one)
        export(client, project="")
        assert client.get("/nowhere").status_code == 404
        chat(client)
        until(lambda: figures(client, "heddle_http_requests_total", route="/v1/traces") == 13)
        assert figures(client, "heddle_otlp_stored_total", signal="traces") == 12
        assert figures(client, "heddle_calls_stored_total") == 24
        assert figures(client, "heddle_otlp_rejected_total", signal="traces", cause="no_project") == 1
        assert figures(client, "heddle_http_request_duration_seconds_count", group="opentelemetry", status="2xx") == 12
        assert figures(client, "heddle_http_requests_total", group="none", status="404") == 1
        sent = 13 + 10 + 2
        until(lambda: figures(client, "heddle_exported_spans_total", outcome="sent") == sent)
        assert figures(client, "heddle_exported_spans_total") == sent
        with httpx.Client(base_url=other.url, timeout=120) as watching:
            told = watching.post("/calls/stream_query", json={"project_id": "team/heddle", "limit": 100}).text
            spans = [json.loads(line) for line in told.splitlines()]
            assert len(spans) == sent
            assert len([span for span in spans if (span["trace_id"], span["parent_id"]) == (trace, parent)]) == 10
            assert not any(PROJECT in line for line in told.splitlines()), "neither path nor body"
        text = client.get("/metrics").text
        assert PROJECT not in text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        shown = {f"{name}_total" if family.type == "counter" else name for name, family in families.items()}
        assert {name for name in shown if name.startswith("heddle_")} == {n for n in ROWS if n.startswith("heddle_")}
        top = heddle("top", "--server", process.url, "--once", "--interval", "0.5")
        assert top.returncode == 0 and "\x1b" not in top.stdout, top.stderr
        names = [line.split("  ")[0] for line in top.stdout.splitlines() if not line.startswith(" ")]
        assert names[0] == "heddle 0.1.0"
        assert names[1:] == ["requests", "ingest", "queue", "disk", "backup", "jobs", "waiting", "engine", "server"]
        if PROMTOOL is not None:
            command = [PROMTOOL, "check", "metrics"]
            done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_top_says_who_does_not_answer(server: HeddleProcess) -> None:
    gone = heddle("top", "--server", f"http://127.0.0.1:{free_port()}", "--once")
    assert (
        gone.returncode == 1
        and "check that the server is running there" in gone.stderr
        and "Traceback" not in gone.stderr
    )
    other = heddle("top", "--server", f"{server.url}/traces/x", "--once")
    assert other.returncode == 1 and "returned 404" in other.stderr


def test_a_server_that_would_export_to_itself_does_not_start(tmp_path: Path) -> None:
    port = free_port()
    done = heddle("serve", "--port", port, "--data", tmp_path / "data", otlp_export_endpoint=f"http://localhost:{port}")
    assert done.returncode == 1 and "is this server itself" in done.stderr and "Traceback" not in done.stderr


QUIET = {"Service", "Models", "Model information", "Compatibility", "Audit log"}
"""Groups of routes that take anything."""


@pytest.mark.thorough
def test_every_group_logs_why_it_refuses(tmp_path: Path) -> None:
    groups: dict[str, list[Any]] = {}
    for route in served_routes():
        groups.setdefault(str(route.tags[0]), []).append(route)
    with HeddleProcess(tmp_path / "data", model="none", log_format="json") as process:
        with httpx.Client(base_url=process.url, timeout=120, headers={"authorization": "Bearer x"}) as client:
            refused: dict[str, tuple[str, int, str]] = {}
            for group, routes in groups.items():
                for route in routes:
                    path, method = route.path_format, min(route.methods)
                    given = dict.fromkeys(route.param_convertors, "~none~")
                    content = b'{"project_id": 7' if method in ("POST", "PUT", "PATCH") else b""
                    kind = {"content-type": "application/json"} if content else {}
                    with client.stream(method, path.format(**given), content=content, headers=kind) as answer:
                        # Streams of events have no end.
                        assert answer.status_code < 500 or answer.status_code in (501, 503), (method, path)
                    if 400 <= answer.status_code < 500:
                        refused[answer.headers["x-request-id"]] = (group, answer.status_code, path)
            assert groups.keys() - {group for group, _, _ in refused.values()} <= QUIET
        assert process.terminate() == 0
        lines = [json.loads(line) for line in process.log().splitlines() if line.startswith("{")]
    logged = {line["request_id"]: line for line in lines if line["logger"] == "heddle.access"}
    assert logged.keys() == refused.keys()
    assert {(group, path) for one, (group, _, path) in refused.items() if not logged[one]["reason"]} == set()
    assert {one: logged[one]["status"] for one in refused} == {one: status for one, (_, status, _) in refused.items()}
    assert all(line["time"].endswith("Z") for line in lines)


def _ask(url: str, path: str, **query: str) -> Any:
    answer = httpx.get(f"{url}/api/v1/{path}", params=query, timeout=60).json()
    assert answer["status"] == "success", answer
    return answer["data"]


SILENT = {
    "heddle_refused_total", "heddle_exported_spans_total", "heddle_backup_timestamp_seconds", "heddle_jobs",
    "heddle_jobs_ended_total", "heddle_job_duration_seconds", "heddle_alert_messages_total",
}  # fmt: skip
"""What this traffic makes no samples of."""


@pytest.mark.thorough
@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (apt-get install prometheus)")
def test_prometheus_scrapes_every_panel_has_data_and_an_alert_fires(tmp_path: Path) -> None:
    assert PROMETHEUS is not None
    with HeddleProcess(tmp_path / "data") as process, httpx.Client(base_url=process.url, timeout=300) as client:
        text = monitoring.ALERTS.with_name("prometheus.yaml").read_text(encoding="utf-8")
        text = text.replace("127.0.0.1:8470", f"127.0.0.1:{process.port}").replace("15s", "1s")
        (tmp_path / "prometheus.yaml").write_text(text, encoding="utf-8")
        shutil.copy(monitoring.ALERTS, tmp_path)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [PROMETHEUS, "--config.file", "prometheus.yaml", "--storage.tsdb.path", "tsdb"]
        command.append(f"--web.listen-address=127.0.0.1:{port}")
        with (tmp_path / "prometheus.log").open("wb") as log:
            running = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}"
        try:
            until(lambda: _is_ready(url))
            # Rates need two looks; what is new between them counts from the second on.
            for _ in range(4):
                before = _scrapes(url)
                start(client), export(client), export(client, project=""), chat(client)
                assert client.post("/call/read", json={}).status_code == 422
                until(lambda before=before: _scrapes(url) >= before + 3)  # type: ignore[misc]
            for row in TABLE:
                for panel in row.panels:
                    query = monitoring.query_of(row, panel).replace("$__rate_interval", "2m").replace("$instance", ".*")
                    found = _ask(url, "query", query=query)["result"]
                    assert bool(found) == (row.name not in SILENT), f"{row.name}: {query}"
            rules = _ask(url, "rules")["groups"][0]["rules"]
            assert len(rules) == sum(len(row.alerts) for row in TABLE)
            assert {rule["lastError"] for rule in rules if rule["health"] != "ok" and "lastError" in rule} == set()
            until(lambda: "HeddleTelemetryRejected" in _firing(url))
            assert "HeddleDown" not in _firing(url)
        finally:
            running.terminate()
            running.wait(60)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").status_code == 200
    except httpx.HTTPError:
        return False


def _scrapes(url: str) -> int:
    found = _ask(url, "query", query="count_over_time(up[1h])")["result"]
    return int(found[0]["value"][1]) if found else 0


def _firing(url: str) -> set[str]:
    alerts = _ask(url, "alerts")["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
