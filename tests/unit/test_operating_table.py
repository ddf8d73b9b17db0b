"""docs/operating.md holds one table route -> scope and one of the settings, both made from the code."""

import re
from pathlib import Path

import pytest

from heddle import manual
from heddle.app import routes
from heddle.settings import TABLE

PAGE = Path(__file__).parent.parent.parent / "docs" / "operating.md"

OPEN = {"/health", "/ready", "/version", "/geolocate", "/server_info", "/metrics", "/docs", "/", "/v1/health"}
ADMIN = {"/cost/purge", "/feedback/purge", "/project/ttl_settings/update", "/v1/limits"} | {
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
}  # fmt: skip
READS = {
    "/call/read", "/calls/stream_query", "/calls/query_stats", "/calls/stats", "/calls/usage", "/trace/usage",
    "/cost/query", "/feedback/query", "/feedback/stats", "/feedback/payload_schema", "/feedback/aggregate",
    "/threads/stream_query", "/service/projects_info", "/project/stats", "/obj/read", "/objs/query",
    "/refs/read_batch", "/file/content", "/files/content", "/files/stats", "/files/query_stats", "/table/query",
    "/table/query_stats", "/table/query_stats_batch", "/tags", "/aliases", "/v1/usage",
    "/v1/models", "/v1/models/{model:path}", "/v1/engine", "/v1/system-check",
}  # fmt: skip

PREVIEW = "/v1/preview/"


def test_the_page_is_what_the_code_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert manual.render(text) == text, "run: python -m heddle.manual docs/operating.md"


def test_the_table_has_every_route_once() -> None:
    found = re.findall(r"^\| `(\w+) (/\S*)` \| ([a-z ]+) \|$", manual.routes_table(), re.MULTILINE)
    there = {(method, route.path) for route in routes() for method in route.methods or ()}
    assert sorted((method, path) for method, path, _ in found) == sorted(there)
    assert {scope for _, _, scope in found} == {"read", "write", "admin", "any key", "no key"}


@pytest.mark.parametrize(
    ("paths", "scope"), [(OPEN, "no key"), (ADMIN, "admin"), (READS, "read"), ({"/graphql"}, "any key")]
)
def test_routes_need_what_they_do(paths: set[str], scope: str) -> None:
    found = {route.path: manual.scope_of(route) for route in routes() if route.path in paths}
    assert found == dict.fromkeys(paths, scope)


def test_training_routes_that_change_nothing_read() -> None:
    found = {(*route.methods, manual.scope_of(route)) for route in routes() if route.path.startswith(PREVIEW)}
    assert found == {("GET", "read"), ("POST", "write"), ("DELETE", "write")}


def test_all_other_routes_write() -> None:
    known = OPEN | ADMIN | READS
    others = {
        route.path: manual.scope_of(route)
        for route in routes()
        if route.path not in known and not route.path.startswith(PREVIEW)
    }
    reads = {path for path, scope in others.items() if scope != "write"}
    assert reads <= {"/graphql", "/project/ttl_settings/read", "/project/ingest_sampling_settings/read",
                     "/project/sensitive_data_settings", "/files/resolve_url"}  # fmt: skip


def test_every_setting_is_named() -> None:
    assert all(f"| `{row.flag}` | `{row.variable}` |" in manual.settings_table() for row in TABLE)
