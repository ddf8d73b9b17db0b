"""The generated parts of the manual: `python -m tools.manual docs/operating.md` writes them anew."""

import re
import sys
from pathlib import Path
from typing import get_type_hints

from heddle.app import served_routes
from heddle.auth import ROLES, Scope
from heddle.http.routing import Needs, Route, caller_of, dependency
from heddle.metrics import TABLE as METRICS
from heddle.settings import TABLE
from tools.monitoring import expression_of

NO_KEY, ANY_KEY = "no key", "any key"
_PART = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def scope_of(route: Route) -> str:
    """What a route asks of its caller: a scope, any key, or no key."""
    asked = [dependency(hint) for hint in get_type_hints(route.endpoint, include_extras=True).values()]
    scopes = sorted(str(item.scope) for item in asked if isinstance(item, Needs))
    return scopes[0] if scopes else ANY_KEY if caller_of in asked else NO_KEY


def routes_table() -> str:
    """Every route and the scope that it needs, as a Markdown table."""
    rows = {(route.path, method, scope_of(route)) for route in served_routes() for method in route.methods or ()}
    lines = [f"| `{method} {path}` | {scope} |" for path, method, scope in sorted(rows)]
    return "\n".join(["| route | scope |", "|---|---|", *lines])


def roles_table() -> str:
    """Every role and its scopes, as a Markdown table."""
    lines = [
        f"| `{role}` | {' | '.join('yes' if scope in held else '' for scope in Scope)} |"
        for role, held in ROLES.items()
    ]
    return "\n".join([f"| role | {' | '.join(Scope)} |", f"|---{'|---' * len(Scope)}|", *lines])


def settings_table() -> str:
    """Every setting in all its spellings, as a Markdown table."""
    lines = [
        f"| `{row.flag}` | `{row.variable}` | `{row.show(row.default)}` | {row.sentence} Allowed: {row.kind.allowed}. |"
        for row in TABLE
    ]
    return "\n".join(["| flag | variable | default | meaning |", "|---|---|---|---|", *lines])


def metrics_table() -> str:
    """Every family of /metrics, as a Markdown table."""
    lines = [f"| `{row.name}` | {row.kind} | {', '.join(row.labels)} | {row.help} |" for row in METRICS]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *lines])


def alerts_table() -> str:
    """Every alert rule, as a Markdown table."""
    found = [(alert, row) for row in METRICS for alert in row.alerts]
    lines = [
        f"| `{alert.name}` | {alert.severity} | `{expression_of(row, alert)}` | {alert.minutes} min |"
        for alert, row in found
    ]
    return "\n".join(["| alert | severity | fires when | for |", "|---|---|---|---|", *lines])


PARTS = {
    "roles": roles_table,
    "routes": routes_table,
    "settings": settings_table,
    "metrics": metrics_table,
    "alerts": alerts_table,
}


def render(text: str) -> str:
    """The text with every generated part made anew."""
    return _PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}\n{part[3]}", text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")
