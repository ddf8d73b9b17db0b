"""Every request and answer of `trace-core.json` and `trace-evals.json` against the server's OpenAPI description and its
real answers: all 100 routes of the interface, and those beside them."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from tests.conformance.schema_session import Answer, Session
from tests.conformance.schema_session_evals import EvalsSession
from tests.conformance.schema_shapes import (
    ANYTHING,
    CONTRACT,
    ENDPOINTS,
    Schema,
    Shape,
    request_schema,
    resolve,
    response_schemas,
    shape,
)
from tests.support.description import openapi
from tests.support.server import HeddleProcess

OLD_SPELLINGS = [(key, old) for key in ENDPOINTS for old in ENDPOINTS[key].get("also_served_at", ())]

# pattern of a place in a request or answer -> why the description differs there from the contract on purpose
DIFFERENCES = {
    r".*\.(query|filter)\.\$expr": "the query language is recursive: described in words, parsed by wire/query.py",
    r".*\.summary": "a free object; usage and status_counts are read leniently, so nothing of a client's is refused",
    r"POST /call/upsert_batch: body\.batch\[\]\.mode is required": "it tells the kinds apart; every client sends it",
    r"GET /health: answer\{\}": "the texts are named: status, and reason when it is not ok",
    r"POST /graphql: answer\.data": "null beside errors, as GraphQL has it",
    r"GET /geolocate: answer\.location": "heddle looks nothing up: always null",
}


@pytest.fixture(scope="module")
def described() -> Schema:
    """The server's description."""
    return openapi()


@pytest.fixture(scope="module")
def answers(server: HeddleProcess) -> dict[str, Answer]:
    """One answer per route, of a session that touches them all."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        sessions = (Session(client, "schema/session"), EvalsSession(client, "schema/evals"))
        # Of several answers of a route the first counts: it is the one that says most.
        return {answer.key: answer for session in sessions for answer in reversed(list(session.run()))}


def operation(described: Schema, key: str) -> Schema:
    """The operation that the description gives for `METHOD path`, whatever it calls the path parameters."""
    method, path = key.split(" ")
    wanted = [part if part[:1] != "{" else "{}" for part in path.split("/")]
    for known, item in described["paths"].items():
        if [part if part[:1] != "{" else "{}" for part in known.split("/")] == wanted and method.lower() in item:
            return dict(item[method.lower()])
    raise AssertionError(f"{key} is not described")


def differs(place: str) -> bool:
    """True where the table says that the description differs."""
    return any(re.fullmatch(pattern, place) for pattern in DIFFERENCES)


def problems(
    contract: list[Schema], ours: list[Schema], root: Schema, place: str, request: bool, depth: int = 0
) -> Iterator[str]:
    """Where our schema accepts less than the contract's (a request) or promises less (an answer)."""
    wanted, have = shape(contract, CONTRACT), shape(ours, root)
    if differs(place) or depth > 8 or wanted.types == ANYTHING:
        return
    yield from type_problems(wanted, have, place, request)
    for name, schemas in wanted.properties.items():
        if name in have.properties:
            yield from problems(schemas, have.properties[name], root, f"{place}.{name}", request, depth + 1)
        elif not differs(f"{place}.{name}"):
            yield f"{place}.{name} is not described"
    for their, our, mark in ((wanted.items, have.items, "[]"), (wanted.values, have.values, "{}")):
        if their and our:
            yield from problems(their, our, root, place + mark, request, depth + 1)
        elif their and shape(their, CONTRACT).types != ANYTHING and not differs(place + mark):
            yield f"{place}{mark} is not described"


def type_problems(wanted: Shape, have: Shape, place: str, request: bool) -> Iterator[str]:
    """Differences of JSON types, required keys and enums at one place."""
    theirs = wanted.types | ({"integer"} if "number" in wanted.types else set())
    ours = have.types | ({"integer"} if "number" in have.types else set())
    if not (theirs <= ours if request else ours <= theirs):
        yield f"{place}: types {sorted(have.types)}, the contract says {sorted(wanted.types)}"
    for name in sorted(wanted.required - have.required):
        yield f"{place}.{name} should be required"
    for name in sorted(have.required - wanted.required if request else ()):
        if not differs(f"{place}.{name} is required"):
            yield f"{place}.{name} is required"
    if wanted.enum is not None and (wanted.enum != have.enum if request else not (have.enum or set()) <= wanted.enum):
        yield f"{place}: values {sorted(have.enum or [])}, the contract says {sorted(wanted.enum)}"


def form_problems(key: str, body: Schema, root: Schema) -> Iterator[str]:
    """The same for a multipart form."""
    ours = shape([body], root)
    for name, field in ENDPOINTS[key]["request"]["form"].items():
        if name not in ours.properties:
            yield f"{name} is not described"
        elif field["required"] != (name in ours.required):
            yield f"{name}: required is {name in ours.required}, the contract says {field['required']}"


def parameter_problems(key: str, described_operation: Schema) -> Iterator[str]:
    """The same for query parameters."""
    ours = {item["name"]: item for item in described_operation.get("parameters", []) if item["in"] == "query"}
    for name, field in ENDPOINTS[key]["request"]["query"].items():
        if name not in ours:
            yield f"{name} is not described"
        elif field["required"] != ours[name].get("required", False):
            yield f"{name}: required differs, the contract says {field['required']}"


@pytest.mark.parametrize("key", ENDPOINTS)
def test_request_is_described(key: str, described: Schema) -> None:
    """The description takes every field of the contract's request, with its types, values and requiredness."""
    ours = operation(described, key)
    contract = ENDPOINTS[key]["request"]
    if not contract:
        assert "requestBody" not in ours
        return
    if "content_types" in contract:
        found = sorted(set(contract["content_types"]) - set(ours["requestBody"]["content"]))
    elif "query" in contract:
        found = list(parameter_problems(key, ours))
    else:
        (content,) = ours["requestBody"]["content"].values()
        body = resolve(content["schema"], described)
        if "form" in contract:
            found = list(form_problems(key, body, described))
        else:
            found = list(problems([request_schema(key)], [body], described, f"{key}: body", request=True))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("key", [key for key in ENDPOINTS if ENDPOINTS[key]["response"].get("type") != "binary"])
def test_response_is_described(key: str, described: Schema) -> None:
    """The description of the answer promises what the contract's response promises."""
    content = operation(described, key)["responses"]["200"]["content"]
    assert ENDPOINTS[key]["media_type"] in content
    ours: Any = content[ENDPOINTS[key]["media_type"]].get("schema", {})
    found = [
        problem
        for contract in response_schemas(key)
        for problem in problems([contract], [ours], described, f"{key}: answer", request=False)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("key", "old"), OLD_SPELLINGS)
def test_old_spelling_is_served(key: str, old: str, answers: dict[str, Answer]) -> None:
    """The path that older SDKs use answers the same."""
    assert answers[old].response.status_code == 200, answers[old].response.text
    assert answers[old].values == answers[key].values
    if not answers[key].values:
        assert answers[old].response.content == answers[key].response.content


@pytest.mark.parametrize("key", ENDPOINTS)
def test_answer_fits(key: str, answers: dict[str, Answer]) -> None:
    """A real answer of the route is 200, of the contract's media type, and valid under its response schema."""
    answer = answers[key]
    assert answer.response.status_code == 200, answer.response.text
    assert answer.response.headers["content-type"].partition(";")[0] == ENDPOINTS[key]["media_type"]
    if ENDPOINTS[key]["response"].get("type") == "binary":
        assert answer.response.content == b"content"
        return
    assert answer.values, "nothing was answered, so nothing was checked"
    for value in answer.values:
        for schema in response_schemas(key):
            jsonschema.Draft202012Validator(schema).validate(value)
