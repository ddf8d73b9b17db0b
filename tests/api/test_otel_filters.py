"""Filters, orders and columns over the attributes of spans, as a call shows them."""

from typing import Any

import httpx
import pytest

from tests.support.otlp import Exporter, request, span
from tests.support.server import HeddleProcess

ATTRIBUTES: list[dict[str, Any]] = [
    {"llm.model_name": "gpt-4o", "user.id": "ada", "retry": 1, "input.value": "a"},
    {"llm.model_name": "tiny", "user.id": "bob", "retry": 20, "input.value": "b"},
    {"llm.other": True, "user.id": "ada", "input.value": "c"},
]
SPAN = "attributes.otel_span"


@pytest.fixture
def client(server: HeddleProcess, project: str) -> httpx.Client:
    """A client of a project with three spans."""
    spans = [span(number, attributes=values, name=f"s{number}") for number, values in enumerate(ATTRIBUTES, 1)]
    exporter = Exporter(server.url, project)
    assert not exporter.export(request(*spans, resource={"service.name": "shop"})).HasField("partial_success")
    return exporter.client


def found(client: httpx.Client, project: str, field: str, test: str, value: Any, **more: Any) -> list[str]:
    """The ids of the calls that match, in order; the count agrees."""
    query = {"$expr": {test: [{"$getField": field}, {"$literal": value}]}}
    body = {"project_id": project, "query": query, **more}
    answer = client.post("/calls/stream_query", json={**body, "columns": ["id"]})
    assert answer.status_code == 200, answer.text
    ids = [httpx.Response(200, content=line).json()["id"][-1] for line in answer.text.splitlines()]
    assert client.post("/calls/query_stats", json={"project_id": project, "query": query}).json()["count"] == len(ids)
    return ids


def test_filters_over_attributes_of_spans(client: httpx.Client, project: str) -> None:
    asked: list[tuple[str, str, Any, list[str]]] = [
        (f"{SPAN}.attributes.llm.model_name", "$eq", "gpt-4o", ["1"]),
        (f"{SPAN}.attributes.user.id", "$eq", "ada", ["1", "3"]),
        (f"{SPAN}.attributes.retry", "$gt", 1, ["2"]),
        (f"{SPAN}.attributes.llm.other", "$eq", True, ["3"]),
        (f"{SPAN}.attributes.llm.model_name", "$eq", "", ["3"]),
        (f"{SPAN}.name", "$eq", "s2", ["2"]),
        (f"{SPAN}.status.code", "$eq", "UNSET", ["1", "2", "3"]),
        (f"{SPAN}.resource.attributes.service.name", "$eq", "shop", ["1", "2", "3"]),
        (f"{SPAN}.scope.name", "$eq", "tests", ["1", "2", "3"]),
        (f"{SPAN}.attributes.nothing", "$eq", "gpt-4o", []),
    ]
    for field, test, value, ids in asked:
        assert sorted(found(client, project, field, test, value)) == ids, field
    part = {"input": {"$getField": f"{SPAN}.attributes.llm.model_name"}, "substr": {"$literal": "GPT"}}
    query = {"$expr": {"$contains": {**part, "case_insensitive": True}}}
    answer = client.post("/calls/query_stats", json={"project_id": project, "query": query})
    assert answer.json()["count"] == 1


def test_orders_over_attributes_of_spans(client: httpx.Client, project: str) -> None:
    order = [{"field": f"{SPAN}.attributes.retry", "direction": "desc"}]
    assert found(client, project, f"{SPAN}.name", "$gt", "", sort_by=order) == ["2", "1", "3"]


def test_the_list_of_calls_offers_and_shows_them(client: httpx.Client, project: str) -> None:
    facets = client.post("/_ui/api/calls/facets", json={"project_id": project}).json()
    path = f"{SPAN}.attributes.llm.model_name"
    assert {path, f"{SPAN}.resource.attributes.service.name"} <= set(facets["paths"])
    shown = client.post("/_ui/api/calls", json={"project_id": project, "columns": [path], "sort": "started_at"}).json()
    assert [values[0] for values in shown["rows"]["values"]] == ["gpt-4o", "tiny", None]
