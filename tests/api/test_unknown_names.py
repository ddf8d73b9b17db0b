"""Names that a request misspells: what would clear, take away or show more than was meant is refused, by its name."""

from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from heddle.app import served_routes
from heddle.http.parameters import KNOWN_PARAMETERS
from heddle.http.routing import Route
from tests.support.server import HeddleProcess

Json = dict[str, Any]
WITH_KEY = {"authorization": "Bearer any"}
OWN = {"GET /audit_log", "GET /audit_log/export", "GET /v1/usage", "GET /v1/limits/own"}
BODIES: list[tuple[str, str, Json]] = [
    ("POST", "/project/ttl_settings/update", {"retention_day": 30}),
    ("POST", "/project/redaction/update", {"kind": ["email"]}),
    ("POST", "/project/purge", {"subject": "project", "ids": "one call"}),
    ("POST", "/obj/delete", {"object_id": "kept", "digest": "latest"}),
    ("POST", "/alerts/create", {"name": "a", "metric": "count", "operator": ">", "threshold": 1, "filters": {}}),
    ("POST", "/alerts/create", {"name": "a", "metric": "count", "operator": ">", "threshold": 1, "filter": {"op": []}}),
    ("PUT", "/v1/limits", {"kind": "project", "name": "team/limited", "concurency": 3}),
    ("PUT", "/inference/providers/own", {"base_url": "http://127.0.0.1:9", "api_key": "", "key": "k"}),
    ("POST", "/_ui/api/keys", {"user": "ann", "scopes": ["read"], "projet": "team/one"}),
    ("POST", "/_ui/api/keys/0000/rotate", {"overlaps": "1h"}),
    ("POST", "/replays/create", {"modle": "other"}),
    ("POST", "/replays/create", {"filter": {"op_name": ["ask"]}}),
    ("POST", "/replays/dataset", {"id": "r", "name": "rows", "outcome": ["failed"]}),
    ("POST", "/improvements/query", {"modle": "mine"}),
    ("POST", "/calls/aggregate", {"filter": {"op_name": ["ask"]}}),
    ("POST", "/calls/aggregate", {"groupby": "op_name"}),
    ("POST", "/metrics/stats", {"name": "m", "start": "2026-01-01T00:00:00Z", "groupby": ["a"]}),
    ("POST", "/evaluations/jobs/query", {"state": ["failed"]}),
    ("POST", "/calls/score/preview", {"call_ids": ["c"], "scorer": {}, "scorers": []}),
    ("POST", "/inference/providers/own/test", {"modle": "m"}),
    ("POST", "/_ui/api/calls/change", {"action": {"type": "delete"}, "filter": {"call_id": ["c"]}}),
]
"""Requests with one unknown name each, the last of the body; without it they would be valid."""


def _named(route: Route) -> str:
    return f"{min(route.methods or ())} {route.path}"


OF_OTHERS = (
    *("/api/", "/agents/", "/annotation_queues", "/call/", "/calls/delete", "/calls/query_stats", "/calls/score"),
    *("/calls/stats", "/calls/stream_query", "/calls/usage", "/completions/", "/cost/", "/dataset_sources/"),
    *("/detokenize", "/evaluations/evaluate_model", "/evaluations/rescore", "/evaluations/status", "/feedback/"),
    *(
        "/file/",
        "/files/",
        "/graphql",
        "/image/",
        "/link_to_registry",
        "/obj/",
        "/objs/",
        "/project/ingest_sampling_settings",
    ),
    *("/project/stats", "/project/ttl_settings/read", "/refs/", "/service/", "/table/", "/threads/", "/tokenize"),
    *("/trace/", "/v1/", "/v2/"),
)
"""Where the interfaces of weave, OpenAI, Anthropic, vLLM, ART, Tinker and Langfuse are."""


def test_bodies_of_own_routes_know_every_name() -> None:
    """A body of a route that no client brought along refuses what it does not know."""
    own = []
    for route in served_routes():
        is_own = isinstance(route, Route) and not (
            route.path.startswith(OF_OTHERS) and route.path != "/calls/score/preview"
        )
        if is_own and not route.path.startswith("/_ui/") and (field := route.with_description().body_field):
            model = field.field_info.annotation
            if isinstance(model, type) and issubclass(model, BaseModel):
                own.append(_named(route))
                assert model.model_config.get("extra") == "forbid", _named(route)
    assert {"POST /replays/create", "POST /alerts/create", "POST /improvements/create"} <= set(own)


def test_routes_that_take_away_by_a_query_know_every_parameter() -> None:
    """And heddle's own routes that read by one; other interfaces ignore what they do not know, as their servers do."""
    routes = [route for route in served_routes() if isinstance(route, Route)]
    refusing = {_named(route) for route in routes if set(KNOWN_PARAMETERS) <= set(_dependencies(route))}
    for route in routes:
        parameters = route.with_description().dependant.query_params
        if route.methods == {"DELETE"} and not all(parameter.field_info.is_required() for parameter in parameters):
            assert _named(route) in refusing
    assert refusing >= OWN | {name for name in map(_named, routes) if name.startswith("GET /_ui/api/")}


def _dependencies(route: Route) -> list[Any]:
    return list(route.with_description().dependencies)


@pytest.mark.parametrize(
    ("path", "offered"),
    [
        *((path, "supported: project") for path in ("/audit_log", "/audit_log/export", "/v1/usage", "/v1/limits/own")),
        *((f"/_ui/api/{name}", "supported: project") for name in ("overview", "costs", "ops", "prices", "training")),
        ("/_ui/api/calls/export", "supported: format, chosen, check"),
        ("/_ui/api/trace/team/one/t", "supported: call, known"),
        ("/_ui/api/projects", "supported: none"),
    ],
)
def test_an_unknown_parameter_is_refused_by_its_name(server: HeddleProcess, path: str, offered: str) -> None:
    answer = httpx.get(f"{server.url}{path}?projct=team/one", headers=WITH_KEY)
    assert answer.status_code == 400, answer.text
    assert f"The query parameter 'projct' is not supported here; {offered}" in answer.text


def test_versions_stay_when_those_to_delete_are_misspelt(server: HeddleProcess, project: str) -> None:
    obj = {"project_id": project, "object_id": "kept", "val": {"_type": "Dataset", "_class_name": "Dataset"}}
    with httpx.Client(base_url=server.url) as client:
        client.post("/obj/create", json={"obj": obj})
        answer = client.delete(f"/v2/{project}/datasets/kept?digest=no")
        assert (answer.status_code, answer.json()["reason"]) == (
            400,
            "The query parameter 'digest' is not supported here; supported: digests",
        )
        assert client.post("/obj/delete", json={"project_id": project, "object_id": "kept", "digest": "no"}).is_error
        read = {"project_id": project, "object_id": "kept", "digest": "latest"}
        assert client.post("/obj/read", json=read).json()["obj"]["version_index"] == 0


def test_a_retention_stays_when_its_name_is_misspelt(server: HeddleProcess, project: str) -> None:
    with httpx.Client(base_url=server.url) as client:
        named = {"project_id": project}
        client.post("/project/ttl_settings/update", json={**named, "retention_days": 30})
        assert client.post("/project/ttl_settings/update", json={**named, "retention": 60}).status_code == 422
        assert client.post("/project/ttl_settings/read", json=named).json() == {"retention_days": 30}


@pytest.mark.parametrize(("method", "path", "body"), BODIES, ids=lambda value: str(value)[:40])
def test_an_unknown_field_is_refused_by_its_name(
    server: HeddleProcess, project: str, method: str, path: str, body: Json
) -> None:
    is_about_none = path.startswith(("/v1/", "/_ui/api/keys", "/inference/"))
    sent = body if is_about_none else {"project_id": project, **body}
    answer = httpx.request(method, server.url + path, json=sent, headers=WITH_KEY)
    name = list(body)[-1]
    name = next(iter(body[name])) if name == "filter" else name
    assert answer.status_code == 422
    assert [(item["loc"][-1], item["type"]) for item in answer.json()["detail"]] == [(name, "extra_forbidden")]
