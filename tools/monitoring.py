"""The dashboard and the alert rules of `deploy/`, made from the table of metrics: `python -m tools.monitoring`."""

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from heddle.metrics import TABLE, Alert, MetricRow, Panel

ROOT = Path(__file__).parent.parent
DASHBOARD = ROOT / "deploy" / "grafana" / "heddle.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
_NAME = re.compile(r"\b((?:heddle|process)_\w+)(\{)?")
_INSTANCE = 'instance=~"$instance"'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT, _COLUMNS = 8, 8, 3


def query_of(row: MetricRow, panel: Panel) -> str:
    """The query of a panel, for the instances that are chosen."""

    def choose(found: re.Match[str]) -> str:
        return f"{found[1]}{{{_INSTANCE}{',' if found[2] else '}'}"

    return _NAME.sub(choose, panel.query.replace("METRIC", row.name))


def expression_of(row: MetricRow, alert: Alert) -> str:
    """The expression of an alert."""
    return alert.expression.replace("METRIC", row.name)


def _panels() -> Iterator[dict[str, Any]]:
    """Sections with their panels, in the order of the table."""
    shown = [(row, panel) for row in TABLE for panel in row.panels]
    sections = list(dict.fromkeys(panel.section for _, panel in shown))
    shown.sort(key=lambda pair: sections.index(pair[1].section))
    number, y = 0, 0
    for section, of_section in groupby(shown, lambda pair: pair[1].section):
        by_title: dict[str, list[tuple[MetricRow, Panel]]] = {}
        for row, panel in of_section:
            by_title.setdefault(panel.title, []).append((row, panel))
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": section,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
        }
        y += 1
        for place, (title, targets) in enumerate(by_title.items()):
            number += 1
            across, down = place % _COLUMNS, place // _COLUMNS
            where = {"x": across * _WIDTH, "y": y + down * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            yield {"id": number, "title": title, "gridPos": where, **_panel(targets)}
        y += -(-len(by_title) // _COLUMNS) * _HEIGHT


def _panel(targets: list[tuple[MetricRow, Panel]]) -> dict[str, Any]:
    units = {panel.unit for _, panel in targets}
    assert len(units) == 1, f"a panel has one unit: {units}"
    return {
        "type": "timeseries",
        "description": "\n".join(row.help for row, _ in targets),
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": units.pop(), "min": 0, "custom": {"fillOpacity": 10}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query_of(row, panel), "legendFormat": panel.legend}
            for place, (row, panel) in enumerate(targets)
        ],
    }


def _variable(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "label": name, "type": kind, **more}


def render_dashboard() -> str:
    """The dashboard, as Grafana imports it."""
    everything = {"selected": True, "text": "All", "value": "$__all"}
    query = "label_values(heddle_build_info, instance)"
    dashboard = {
        "uid": "heddle",
        "title": "heddle",
        "tags": ["heddle"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                _variable("datasource", "datasource", query="prometheus"),
                _variable(
                    "instance", "query", datasource=_SOURCE, query=query, definition=query, refresh=2, multi=True,
                    includeAll=True, current=everything,
                ),
            ]
        },
        "panels": list(_panels()),
    }  # fmt: skip
    return json.dumps(dashboard, indent=2) + "\n"


def render_alerts() -> str:
    """The alert rules, as a file of rules of Prometheus; texts are JSON strings, which YAML reads alike."""
    lines = ["# Made from src/heddle/metrics.py by `python -m tools.monitoring`.", "groups:", "  - name: heddle"]
    lines.append("    rules:")
    for row in TABLE:
        for alert in row.alerts:
            lines += [
                f"      - alert: {alert.name}",
                f"        expr: {json.dumps(expression_of(row, alert))}",
                f"        for: {alert.minutes}m",
                "        labels:",
                f"          severity: {alert.severity}",
                "        annotations:",
                f"          summary: {json.dumps(alert.summary)}",
                f"          description: {json.dumps(f'{row.name}: {row.help}')}",
            ]
    return "\n".join(lines) + "\n"


FILES = {DASHBOARD: render_dashboard, ALERTS: render_alerts}

if __name__ == "__main__":
    for path, render in FILES.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(render(), encoding="utf-8")
