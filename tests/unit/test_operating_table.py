"""docs/operating.md holds one table route -> scope and one of the settings, both made from the code."""

import re
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from heddle.app import served_routes
from heddle.auth import Scope
from heddle.settings import TABLE
from heddle.ui import pages as ui_pages
from tools import manual

PAGE = Path(__file__).parent.parent.parent / "docs" / "operating.md"

OPEN = {"/health", "/ready", "/version", "/geolocate", "/server_info", "/metrics", "/docs", "/", "/v1/health"} | {
    "/openapi.json", "/api/public/health", "/project/{entity}/{project}/traces/{trace_id}",
    "/api/v1/external_weights",
    "/files/download", "/inference/router/openrouter/models", "/inference/analysis/artificialanalysis/models",
    "/inference/catalog/models", "/inference/modelsdev/models",
}  # fmt: skip
PAGES = {route.path for route in ui_pages.router.routes if isinstance(route, APIRoute)} | {"/_ui/session"}
PAGES |= {"/_ui/sign_in", "/_ui/sign_in/callback"}
OPEN |= PAGES
ADMIN = {"/archives/import", "/cost/purge", "/feedback/purge", "/project/ttl_settings/update", "/v1/limits"} | {
    "/project/purge", "/project/redaction/update",
} | {
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/_ui/api/keys", "/_ui/api/keys/{key_id}", "/_ui/api/storage",
    "/_ui/api/keys/{key_id}/rotate", "/_ui/api/keys/{key_id}/restore", "/audit_log", "/audit_log/export",
    "/inference/providers/{name}", "/inference/providers/{name}/test",
}  # fmt: skip
READS = {
    "/call/read", "/calls/stream_query", "/calls/query_stats", "/calls/stats", "/calls/aggregate", "/calls/usage",
    "/trace/usage",
    "/cost/query", "/feedback/query", "/feedback/stats", "/feedback/payload_schema", "/feedback/aggregate",
    "/threads/stream_query", "/service/projects_info", "/project/stats", "/obj/read", "/objs/query",
    "/refs/read_batch", "/file/content", "/files/content", "/files/stats", "/files/query_stats", "/table/query",
    "/table/query_stats", "/table/query_stats_batch", "/tags", "/aliases", "/v1/usage",
    "/v1/models", "/v1/models/{model:path}", "/v1/engine", "/v1/system-check",
    "/replays/query", "/replays/read", "/replays/results", "/metrics/query", "/metrics/stats",
    "/agents/query", "/agents/agent-versions/query", "/agents/spans/query", "/agents/spans/custom-attrs/schema",
    "/agents/spans/stats", "/agents/search", "/agents/traces/chat", "/agents/conversations/chat",
    "/agents/conversations/spans", "/annotation_queues/query", "/annotation_queues/stats",
    "/annotation_queues/{queue_id}/items/query", "/files/resolve_url", "/dataset_sources/query",
    "/project/redaction/read", "/improvements/query", "/improvements/read",
    "/dataset_sources/source_datasets_query", "/project/ttl_settings/read", "/project/ingest_sampling_settings/read",
    "/alerts/query", "/alerts/deliveries/query", "/monitors/query", "/v2/{entity}/{project}/eval_results/query",
    "/evaluations/status", "/evaluations/jobs/query", "/tokenize", "/detokenize",
    "/api/v1/client/config", "/api/v1/client/dynamic_config", "/api/v1/get_info", "/api/v1/retrieve_future",
    "/api/v1/weights_info", "/api/v1/sessions/search",
}  # fmt: skip

ANNOTATES = {"/feedback/create", "/feedback/batch/create", "/feedback/replace", "/api/public/scores"}
ANNOTATES |= {"/api/public/ingestion"}
ANNOTATES |= {"/annotation_queues/{queue_id}/items/{item_id}/progress"}
NOT_OFFERED = {("DELETE", "/api/public/{rest:path}")}
WRITES = {"/_ui/api/projects", "/_ui/api/calls/change"}
WRITES |= {"/_ui/api/projects/example", "/_ui/api/projects/example/delete"}
"""What writes among the routes for pages, which are asked by POST where the question is long."""
PREVIEW = "/v1/preview/"


def test_the_page_is_what_the_code_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert manual.render(text) == text, "run: python -m tools.manual docs/operating.md"


def test_the_table_has_every_route_once() -> None:
    found = re.findall(r"^\| `(\w+) (/\S*)` \| ([a-z ]+) \|$", manual.routes_table(), re.MULTILINE)
    there = {(method, route.path) for route in served_routes() for method in route.methods or ()}
    assert sorted((method, path) for method, path, _ in found) == sorted(there)
    assert {scope for _, _, scope in found} == {*Scope, "any key", "no key"}


@pytest.mark.parametrize(
    ("paths", "scope"), [(OPEN, "no key"), (ADMIN, "admin"), (READS, "read"), ({"/graphql"}, "any key")]
)
def test_routes_need_what_they_do(paths: set[str], scope: str) -> None:
    found = {route.path: manual.scope_of(route) for route in served_routes() if route.path in paths}
    assert found == dict.fromkeys(paths, scope)


def test_training_routes_that_change_nothing_read() -> None:
    found = {(*route.methods, manual.scope_of(route)) for route in served_routes() if route.path.startswith(PREVIEW)}
    assert found == {("GET", "read"), ("POST", "write"), ("DELETE", "delete")}


def test_of_all_other_routes_those_that_get_read_and_the_rest_write() -> None:
    known = OPEN | ADMIN | READS | {"/graphql"}
    others = {
        (*route.methods, route.path): manual.scope_of(route)
        for route in served_routes()
        if route.path not in known and not route.path.startswith(PREVIEW)
    }
    reading = {key for key in others if key[0] == "GET" or (key[1].startswith("/_ui/api/") and key[1] not in WRITES)}
    deleting = {key for key in others if key not in reading and ("DELETE" in key or "delete" in key[-1])} - NOT_OFFERED
    annotating = {key for key in others if key[-1] in ANNOTATES}
    expected = {key: "delete" if key in deleting else "annotate" if key in annotating else "write" for key in others}
    assert others == expected | dict.fromkeys(reading, "read")


def test_every_setting_is_named() -> None:
    assert all(f"| `{row.flag}` | `{row.variable}` |" in manual.settings_table() for row in TABLE)
