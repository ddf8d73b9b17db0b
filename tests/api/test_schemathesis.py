"""Schemathesis over the server's own description: no 5xx, answers as described, JSON whenever it says no."""

import os
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance
from schemathesis.specs.openapi.schemas import OpenApiSchema

from tests.conformance.schema_shapes import ENDPOINTS
from tests.support.description import openapi
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
EXAMPLES = 150 if SOAK else 6
SEED = 20261121
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
CHECKS = [not_a_server_error, response_schema_conformance]
PROTOBUF = "application/x-protobuf"
UNREADABLE = {"POST /cost/create"}
"""Operations whose answer holds `prefixItems`, which Schemathesis 4.32 takes for an invalid schema (test_schema.py
validates their answers)."""

pytestmark = pytest.mark.soak


@schemathesis.serializer(PROTOBUF)
def protobuf(_context: Any, value: Any) -> bytes:
    """Any bytes: test_tinker.py and test_fuzz.py send messages."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def described() -> OpenApiSchema:
    """The description that the server serves."""
    return schemathesis.openapi.from_dict(openapi())


PROJECT = "fuzz/schemathesis"
REACHING: dict[str, Any] = {
    "project_id": PROJECT,
    "start": "2026-01-01T00:00:00Z",
    "end": "2026-01-02T00:00:00Z",
    "query": {"$expr": {"$eq": [{"$getField": "id"}, {"$literal": "x"}]}},
    "weave_ref": f"weave:///{PROJECT}/call/c",
}


def reaching(body: Any) -> Any:
    """The body with a valid project, time range and query, so that most cases reach what lies behind those checks."""
    if isinstance(body, dict):
        fixed = {key: reaching(item) for key, item in body.items()}
        return fixed | {key: value for key, value in REACHING.items() if isinstance(fixed.get(key), type(value))}
    return [reaching(item) for item in body] if isinstance(body, list) else body


def probe(operation: Any, mode: GenerationMode, url: str) -> None:
    """Send generated cases of one operation; raises at the first answer that is wrong."""

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        if mode.is_positive:
            case.body = reaching(case.body)
            case.query = reaching(case.query)
            if "entity" in (case.path_parameters or {}):
                case.path_parameters |= dict(zip(("entity", "project"), PROJECT.split("/"), strict=True))
        answer = case.call(base_url=url, timeout=60)
        case.validate_response(answer, checks=CHECKS[:1] if operation.label in UNREADABLE else CHECKS)
        if answer.status_code >= 400:
            assert answer.headers["content-type"][0].startswith("application/json"), answer.content[:300]

    run()


@pytest.mark.parametrize("mode", with_breadth(MODES), ids=[mode.value for mode in MODES])
@pytest.mark.parametrize("key", with_breadth(ENDPOINTS, every=8))
def test_operation(key: str, mode: GenerationMode, described: OpenApiSchema, server: HeddleProcess) -> None:
    """Valid and invalid input for one route of the contract."""
    method, path = key.split(" ")
    operation = described[path][method]
    if mode.is_negative and not operation.body and not operation.query:
        pytest.skip("takes nothing that could be invalid")
    probe(operation, mode, server.url)
    assert httpx.get(server.url + "/health").status_code == 200
    assert "Traceback" not in server.log()


@pytest.mark.thorough
def test_routes_beside_the_contract(described: OpenApiSchema, server: HeddleProcess) -> None:
    """Every other route that the server describes, with valid and invalid input."""
    others = [
        result.ok()
        for result in described.get_all_operations()
        if f"{result.ok().method.upper()} {result.ok().path}" not in ENDPOINTS
    ]
    for operation in others:
        probe(operation, GenerationMode.POSITIVE, server.url)
        if operation.query or any(body.media_type != PROTOBUF for body in operation.body):
            probe(operation, GenerationMode.NEGATIVE, server.url)
    assert "Traceback" not in server.log()
