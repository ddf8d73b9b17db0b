"""Whatever arrives: never a 5xx, never a traceback, always JSON that says why, nothing stored when it is refused."""

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from google.rpc import status_pb2

from tests.api.bad_input_cases import CASES, Case
from tests.api.bad_input_table import (
    CALL,
    DIGEST,
    HUGE,
    PROJECT,
    RAW_BODIES,
    RAW_VALUES,
    START,
    TARGET,
    places,
    with_key,
    with_value,
    without,
)
from tests.api.bad_input_table_evals import ALL_ROUTES, EVALS_PATHS, TAKE_NOTHING, V2
from tests.conformance.schema_shapes import ENDPOINTS
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess

REGISTRY = "bad/wandb-registry-models"
SOAK = os.environ.get("HEDDLE_SOAK") == "1"
PARTS = 1 if SOAK else 2
VALUES_PER_PLACE = len(RAW_VALUES) if SOAK else 3
KEYS_PER_PLACE = 5 if SOAK else 1
RAW_KEYS = ['"\\ud800"', '"a\\u0000b"', '"\'; DROP TABLE calls; --"', '"$ref"', '""']
WRITES = re.compile(
    r"PUT|/(start|end|complete|upsert_batch|update|delete|create|replace|purge|remove|create_from_digests)$"
    r"|/(annotation_queues|items|progress|link_to_registry|link|link_delete|finish)$"
    r"|/(ops|datasets|scorers|evaluations|models|evaluation_runs|predictions|scores)$"
)
NEED_NOTHING = {f"POST {V2}/ops"}
"""Every field of theirs has a default, so that these bodies are requests:"""
EMPTY = {b"", b'{"a":NaN}', b'{"project_id":1e400}'}
LINES = ("application/jsonl", "application/x-ndjson")
JSON = {"content-type": "application/json"}


@pytest.fixture
def client(server: HeddleProcess) -> Iterator[httpx.Client]:
    """A connection to the server; its log must stay free of tracebacks."""
    before = server.log_path.stat().st_size
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
    with server.log_path.open(errors="replace") as log:
        log.seek(before)
        assert "Traceback" not in log.read()


def refuse_constant(text: str) -> None:
    """NaN and Infinity are no JSON."""
    raise ValueError(f"{text} in an answer")


def strict(text: str) -> Any:
    """Parse JSON as a strict client does."""
    return json.loads(text, parse_constant=refuse_constant)


def objection(answer: httpx.Response) -> str | None:
    """What is wrong with an answer to bad input, or None."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    if answer.status_code >= 500:
        return f"{answer.status_code} {answer.text[:300]}"
    if answer.status_code < 300:
        if kind == "application/octet-stream":
            return None
        for text in answer.text.split("\n") if kind in LINES else [answer.text]:
            if text:
                strict(text)
        return None
    if kind == "application/x-protobuf":
        told = status_pb2.Status.FromString(answer.content)
        return None if told.code and told.message else f"{answer.status_code} says nothing"
    body = strict(answer.text) if kind == "application/json" else None
    if not isinstance(body, dict) or not (isinstance(body.get("reason"), str) or isinstance(body.get("detail"), list)):
        return f"{answer.status_code} says neither reason nor detail: {answer.text[:300]}"
    return None


def stored(client: httpx.Client) -> dict[str, Any]:
    """What the project holds: counts and sizes of everything that a request could have left."""
    body = {"project_id": PROJECT}

    def ask(path: str, **more: Any) -> Any:
        return client.post(path, json={**body, **more}).raise_for_status().json()

    return {
        "calls": ask("/calls/query_stats")["count"],
        "objects": len(ask("/objs/query", metadata_only=True)["objs"]),
        "feedback": ask("/feedback/query", fields=["id"])["total_count"],
        "files": ask("/files/query_stats")["total_size_bytes"],
        "costs": len(ask("/cost/query", fields=["id"])["results"]),
        "sizes": ask("/project/stats"),
        "tags": client.get("/tags", params=body).json(),
        "aliases": client.get("/aliases", params=body).json(),
        "queues": client.post("/annotation_queues/query", json=body).raise_for_status().text,
        "runtimes": client.get(f"{V2}/runtimes").raise_for_status().json(),
        "portfolios": client.get("/registry/portfolios", params={"project_id": REGISTRY}).raise_for_status().json(),
        "links": ask("/dataset_sources/query", dataset_object_id="d"),
        "spans": ask("/agents/spans/query")["total_count"],
    }


class Probe:
    """Sends bad requests and notes objections; what was refused is sent once more to see that it leaves nothing."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.objections: list[str] = []
        self.refused: list[tuple[str, bytes, str]] = []
        self.sent = 0

    def send(self, route: str, content: bytes, why: str) -> httpx.Response:
        """One request to `METHOD path`."""
        answer = self._request(route, content)
        self.sent += 1
        problem = objection(answer)
        if problem:
            self.objections.append(f"{route} {why}: {problem}")
        elif answer.status_code >= 400 and WRITES.search(route):
            self.refused.append((route, content, why))
        return answer

    def _request(self, route: str, content: bytes) -> httpx.Response:
        method, path = route.split(" ")
        return self.client.request(method, path, content=content, headers=JSON)

    def finish(self) -> None:
        """Raise when there were objections, or when the refused requests changed what is stored."""
        assert self.sent
        if self.refused:
            before = stored(self.client)
            accepted = [why for route, content, why in self.refused if self._request(route, content).status_code < 300]
            assert not accepted, f"refused first and accepted then: {accepted[:5]}"
            assert stored(self.client) == before, "refused requests changed what is stored"
        shown = "\n".join(self.objections[:15])
        assert not self.objections, f"{len(self.objections)} of {self.sent}:\n{shown}"


@pytest.mark.soak
@pytest.mark.parametrize("part", with_breadth(range(PARTS)))
@pytest.mark.parametrize("route", ALL_ROUTES)
def test_bodies_that_are_wrong_somewhere(route: str, part: int, client: httpx.Client) -> None:
    """Every place of the body gets values of every kind, is left out, and its key replaced by a nasty one.

    Each part is a seeded choice of the values; the first one also takes bodies that are no request at all.
    """
    probe = Probe(client)
    chance = random.Random(f"{route} {part}")
    for place in places(ALL_ROUTES[route]):
        for raw in chance.sample(RAW_VALUES, VALUES_PER_PLACE):
            probe.send(route, with_value(ALL_ROUTES[route], place, raw), f"{place} = {raw[:80]}")
        if isinstance(place[-1], str):
            for raw_key in chance.sample(RAW_KEYS, KEYS_PER_PLACE):
                probe.send(route, with_key(ALL_ROUTES[route], place, raw_key), f"{place} named {raw_key}")
        if part == 0:
            probe.send(route, without(ALL_ROUTES[route], place), f"without {place}")
    for content in RAW_BODIES if part == 0 else ():
        answer = probe.send(route, content, f"body {content[:40]!r}")
        is_request = route in NEED_NOTHING and content in EMPTY
        assert is_request or answer.status_code >= 400, f"{content[:40]!r} was accepted"
    probe.finish()


@pytest.mark.soak
@pytest.mark.parametrize("route", with_breadth(ALL_ROUTES, every=10))
def test_huge_text(route: str, client: httpx.Client) -> None:
    """5 MB in the place of each text."""
    probe = Probe(client)
    texts = [place for place in places(ALL_ROUTES[route]) if isinstance(value_at(ALL_ROUTES[route], place), str)]
    for place in texts if SOAK else texts[:3]:
        probe.send(route, with_value(ALL_ROUTES[route], place, HUGE), f"5 MB at {place}")
    probe.finish()


def value_at(body: Any, place: tuple[str | int, ...]) -> Any:
    """What stands at a place of a body."""
    for name in place:
        body = body[name]
    return body


def area(case: Case) -> str:
    """The first part of a case's path, such as `/calls`."""
    return "/" + case.path.split("/")[1]


@pytest.mark.parametrize("group", sorted({area(case) for case in CASES}))
def test_refused_as_the_contract_says(group: str, client: httpx.Client) -> None:
    """One rule of the contract each: the status, the words that matter, the headers, and nothing stored."""
    before = stored(client)
    wrong = [found for case in CASES if area(case) == group for found in differences(case, client)]
    assert not wrong, "\n".join(wrong)
    assert stored(client) == before


def differences(case: Case, client: httpx.Client) -> Iterator[str]:
    """How the answer to a case differs from what the contract says."""
    answer = client.request(case.method, case.path, **case.request)
    problem = objection(answer)
    if problem is not None:
        yield f"{case.name}: {problem}"
    if answer.status_code not in case.statuses:
        yield f"{case.name}: {answer.status_code} {answer.text[:500]}"
    if not re.search(case.says, answer.text):
        yield f"{case.name}: does not say {case.says!r}: {answer.text[:500]}"
    for name, value in case.headers.items():
        if answer.headers.get(name) != value:
            yield f"{case.name}: {name} is {answer.headers.get(name)!r}, not {value!r}"


def equals_one(field: str) -> dict[str, Any]:
    """A comparison."""
    return {"$eq": [{"$getField": field}, {"$literal": 1}]}


def deep(levels: int) -> dict[str, Any]:
    """A negation of a negation of a ..."""
    query = equals_one("inputs.x")
    for _ in range(levels):
        query = {"$not": [query]}
    return query


HEAVY: dict[str, dict[str, Any]] = {
    "90 negations": {"query": {"$expr": deep(90)}},
    "400 negations": {"query": {"$expr": deep(400)}},
    "10,000 terms": {"query": {"$expr": {"$or": [equals_one(f"inputs.k{number}") for number in range(10_000)]}}},
    "100,000 alternatives": {"query": {"$expr": {"$in": [{"$getField": "id"}, [{"$literal": "x"}] * 100_000]}}},
    "50,000 parts": {"query": {"$expr": equals_one("inputs" + ".a" * 50_000)}},
    "path of indexes": {"query": {"$expr": equals_one("inputs" + ".0" * 500)}},
    "huge index": {"query": {"$expr": equals_one(f"inputs.a.{10**40}")}},
    "huge literal": {"query": {"$expr": {"$gt": [{"$getField": "inputs.x"}, {"$literal": 10**400}]}}},
    "huge number for a text column": {"query": {"$expr": {"$eq": [{"$getField": "id"}, {"$literal": 2**80}]}}},
    "huge unix time": {"query": {"$expr": {"$gt": [{"$getField": "started_at"}, {"$literal": 1e300}]}}},
    "boolean time": {"query": {"$expr": {"$gt": [{"$getField": "started_at"}, {"$literal": True}]}}},
    "no time": {"query": {"$expr": {"$gt": [{"$getField": "started_at"}, {"$literal": "yesterday"}]}}},
    "literals only": {"query": {"$expr": {"$lt": [{"$literal": None}, {"$literal": None}]}}},
    "300 sort terms": {"sort_by": [{"field": f"inputs.k{n}", "direction": "asc"} for n in range(300)]},
    "10,000 columns": {"columns": [f"inputs.k{n}" for n in range(10_000)]},
    "unknown columns": {"columns": ["nonsense", "inputs'", "", ".", "a" * 100_000]},
    "odd expansions": {"expand_columns": ["inputs", "inputs.", "", ".", "inputs.a" + ".b" * 1000, "id", "nonsense"]},
    "expansions by no index": {"expand_columns": ["inputs.a.b.²", f"inputs.a.b.{'9' * 5000}"]},
    "huge page": {"limit": 2**62, "offset": 2**62},
    "page beyond 64 bits": {"limit": 2**70, "offset": 2**70},
    "wildcards": {
        "filter": {"op_names": ["*", ":*", "%", "_", "weave:///bad/input/op/%:*"], "input_refs": [":*", "*"]}
    },
    "odd ids": {"filter": {"call_ids": ["", "\0", "x" * 100_000, "'"], "trace_ids": ["\U0001f600"]}},
}


@pytest.mark.parametrize("path", ["/calls/stream_query", "/calls/query_stats", "/trace/usage"])
@pytest.mark.parametrize("name", HEAVY)
def test_heavy_queries(name: str, path: str, client: httpx.Client) -> None:
    """Queries that no person writes are answered or refused, for a project that has calls."""
    start = {**START, "wb_run_id": None, "inputs": {"x": 1, "a": {"b": [1]}, "ref": TARGET}}
    assert client.post("/call/start", json={"start": start}).status_code == 200
    answer = client.post(path, json={"project_id": PROJECT, **HEAVY[name]})
    assert objection(answer) is None, objection(answer)


PATHS = [
    "GET /tags", "GET /aliases", "GET /tags?project_id=", "GET /tags?project_id=%00/x", "GET /aliases?project_id=a/b/c",
    "GET /tags?project_id=%ff%fe", "GET /geolocate?ip=%00",
    "GET /geolocate?ip=999.1.1.1", "GET /nothing", "DELETE /call/start", "GET /calls/stream_query", "POST /%00",
    "POST /%ff%fe", "PUT /objs/%00/aliases", "PUT /objs/a%2Fb/aliases", "PUT /objs/x/versions/%ff/tags",
    "POST /objs/..%2F..%2Fetc/aliases/remove", "POST /v2/a%00b/c/call/start", "POST /v2/%ff/%fe/call/start",
    "POST /v2/a/b%2Fc/call/end", f"POST /{'x' * 20_000}", "POST /v2/../../call/start", "POST /traces/nothing",
    "OPTIONS /call/start", "TRACE /call/start", *EVALS_PATHS,
]  # fmt: skip


def test_paths(client: httpx.Client) -> None:
    """Paths and query strings that lead nowhere."""
    body = {"project_id": PROJECT, "digest": DIGEST, "aliases": ["a"], "tags": ["t"], "batch": [], "start": {}}
    before = stored(client)
    for line in PATHS:
        method, path = line.split(" ")
        answer = client.request(method, path, json=body if method in ("POST", "PUT") else None)
        said = f"{line[:60]}: {answer.status_code} {answer.text[:300]}"
        assert answer.status_code < 500, said
        assert answer.status_code >= 400 or "geolocate" in line, said
        assert answer.headers["content-type"].startswith("application/json"), said
        strict(answer.text)
    assert stored(client) == before


def names(line: str) -> re.Pattern[str]:
    """Requests to a route of the contract, its path parameters filled in."""
    return re.compile(re.sub(r"\\\{\w+\\\}", "[^/?]+", re.escape(line)) + r"(\?.*)?")


@pytest.mark.parametrize("key", ENDPOINTS)
def test_every_route_of_the_contract_gets_bad_input(key: str) -> None:
    """The tables above hold a body for each route that takes one, and a bad path or query for each other."""
    request = ENDPOINTS[key]["request"]
    takes_body = bool(request) and "query" not in request
    if key in TAKE_NOTHING or {"form", "content_types"} & request.keys():
        return
    table = ALL_ROUTES if takes_body else PATHS
    assert any(names(key).fullmatch(line) for line in table)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/traces",
        "/otel/v1/traces",
        "/agents/otel/v1/traces",
        "/api/public/otel/v1/traces",
        "/v1/logs",
        "/v1/metrics",
    ],
)
def test_exports_that_are_none(path: str, client: httpx.Client) -> None:
    """Neither encoding lets anything but an export in."""
    before = stored(client)
    for kind in ("application/json", "application/x-protobuf", "text/plain"):
        for content in (*RAW_BODIES, b"\x0a\xff\xff\xff\x0f", b"\x0a\x05\x12", b'{"resourceSpans":[[]]}'):
            headers = {"content-type": kind, "project_id": PROJECT}
            answer = client.post(path, content=content, headers=headers)
            assert objection(answer) is None, (kind, content[:40], objection(answer))
    assert stored(client) == before


HEADERS = [
    {"content-encoding": "gzip"}, {"content-encoding": "br"}, {"content-type": "multipart/form-data"},
    {"content-type": "application/x-protobuf"}, {"authorization": "Basic !!!"}, {"authorization": "Basic /w=="},
    {"accept": "image/png"}, {"x-weave-retry-id": "x" * 5000}, {"content-type": "application/json; charset=latin-1"},
]  # fmt: skip


@pytest.mark.parametrize("headers", HEADERS, ids=str)
def test_headers(headers: dict[str, str], client: httpx.Client) -> None:
    """Odd headers neither break a request nor the server."""
    answer = client.post("/calls/query_stats", content=b'{"project_id":"bad/input"}', headers={**JSON, **headers})
    assert objection(answer) is None, objection(answer)


FORM = {"project_id": PROJECT}
MULTIPART = {"content-type": "multipart/form-data; boundary=x"}
FORMS: list[tuple[str, Callable[[], dict[str, Any]]]] = [
    ("nothing", lambda: {"content": b"", "headers": MULTIPART}),
    ("no boundary", lambda: {"content": b"--x--", "headers": {"content-type": "multipart/form-data"}}),
    ("garbage", lambda: {"content": b"\xff" * 999, "headers": MULTIPART}),
    ("cut", lambda: {"content": b"--x\r\nContent-Disp", "headers": MULTIPART}),
    ("JSON", lambda: {"json": {"project_id": PROJECT, "file": "x"}}),
    ("no file", lambda: {"data": {"project_id": PROJECT}, "files": {"other": ("n", b"x")}}),
    ("no project", lambda: {"files": {"file": ("n", b"x")}}),
    ("bad project", lambda: {"data": {"project_id": "no-slash"}, "files": {"file": ("n", b"x")}}),
    ("NUL in project", lambda: {"data": {"project_id": "a\0/b"}, "files": {"file": ("n", b"x")}}),
    ("invalid UTF-8", lambda: {"data": {"project_id": b"\xff/\xfe"}, "files": {"file": ("n", b"x")}}),
    ("wrong digest", lambda: {"data": {**FORM, "expected_digest": DIGEST}, "files": {"file": ("n", b"x")}}),
    ("digest is no digest", lambda: {"data": {**FORM, "expected_digest": "\0"}, "files": {"file": b"x"}}),
]  # fmt: skip


@pytest.mark.parametrize("path", ["/file/create", "/files/create"])
def test_forms(path: str, client: httpx.Client) -> None:
    """Uploads that are none are refused and leave nothing."""
    before = stored(client)
    for name, form in FORMS:
        answer = client.post(path, **form())
        assert 400 <= answer.status_code < 500, f"{name}: {answer.status_code} {answer.text[:300]}"
        assert objection(answer) is None, f"{name}: {objection(answer)}"
    assert stored(client) == before


ODD_VALUES: list[tuple[str, str, Any]] = [
    ("lone surrogate", '"a\\ud800b"', None),
    ("surrogate key", '{"k\\udfff":1}', None),
    ("NUL", '"a\\u0000b"', "a\0b"),
    ("64 bit and more", str(2**70), 2**70),
    ("negative 64 bit and more", str(-(2**70)), -(2**70)),
    ("NaN", "NaN", None),
    ("Infinity", "[Infinity,-Infinity]", [None, None]),
    ("40 levels", "[" * 40 + "]" * 40, json.loads("[" * 40 + "]" * 40)),
    ("smallest float", "5e-324", 5e-324),
    ("minus zero", "-0.0", -0.0),
    ("empty key", '{"":{"":""}}', {"": {"": ""}}),
    ("refs as keys", '{"weave:///a/b/call/c":1}', {"weave:///a/b/call/c": 1}),
    ("astral", '"\U0001f600\\ud83d\\ude00"', "\U0001f600\U0001f600"),
]


@pytest.mark.parametrize(("name", "raw", "expected"), ODD_VALUES, ids=[value[0] for value in ODD_VALUES])
def test_odd_values_survive(name: str, raw: str, expected: Any, client: httpx.Client, project: str) -> None:
    """What JSON (or a careless client) can say is stored, listed, sorted by, read back; surrogates are replaced."""
    head = json.dumps({"start": {**START, "project_id": project, "inputs": {"v": "MARK"}, "wb_run_id": None}})
    assert client.post("/call/start", content=head.replace('"MARK"', raw), headers=JSON).status_code == 200
    query = {"project_id": project, "sort_by": [{"field": "inputs.v", "direction": "desc"}]}
    listed = client.post("/calls/stream_query", json=query)
    read = client.post("/call/read", json={"project_id": project, "id": CALL})
    assert listed.status_code == read.status_code == 200, (listed.text, read.text)
    assert strict(listed.text) == strict(read.text)["call"]
    value = strict(read.text)["call"]["inputs"]["v"]
    if "surrogate" in name:
        assert "\ud800" not in str(value) and "\udfff" not in str(value)
        value.keys() if isinstance(value, dict) else value.encode()
    else:
        assert value == expected and repr(value) == repr(expected)
