"""Bad bodies to the routes of Langfuse: a 4xx with a message, never a 5xx, and nothing of a refused one is stored."""

import json
import random
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.bad_input_table import RAW_BODIES, RAW_VALUES, places, with_value, without
from tests.conftest import API_KEY
from tests.support.server import HeddleProcess

Json = dict[str, Any]
PROJECT = "bad/langfuse"
SCORE = {
    "id": "s", "name": "n", "value": 1, "traceId": "t", "observationId": "o", "dataType": "NUMERIC", "comment": "c",
    "metadata": {"a": 1}, "environment": "e", "source": "API", "timestamp": "2026-01-01T00:00:00Z",
}  # fmt: skip
BODIES: dict[str, Json] = {
    "POST v2/prompts": {
        "name": "p", "prompt": [{"role": "user", "content": "x {{y}}"}, {"type": "placeholder", "name": "h"}],
        "type": "chat", "config": {"a": 1}, "labels": ["l"], "tags": ["t"], "commitMessage": "m",
    },
    "PATCH v2/prompts/known/versions/1": {"newLabels": ["blue"]},
    "POST scores": SCORE,
    "POST ingestion": {"batch": [{"id": "e", "type": "score-create", "timestamp": "2026-01-01", "body": SCORE}]},
    "POST v2/datasets": {"name": "d", "description": "x", "metadata": {"a": 1}},
    "POST dataset-items": {
        "datasetName": "known_set", "id": "i", "input": {"a": 1}, "expectedOutput": "x", "metadata": {},
        "sourceTraceId": "t", "status": "ACTIVE",
    },
    "POST dataset-run-items": {
        "runName": "r", "runDescription": "d", "metadata": {"a": 1}, "datasetItemId": "known", "traceId": "t",
    },
    "DELETE traces": {"traceIds": ["t"]},
}  # fmt: skip
VALUES_PER_PLACE = 4


@pytest.fixture
def client(server: HeddleProcess) -> Iterator[httpx.Client]:
    """A client with a prompt and a dataset; the server's log must stay free of tracebacks."""
    start = server.log_path.stat().st_size
    with httpx.Client(base_url=f"{server.url}/api/public/", auth=(PROJECT, API_KEY), timeout=60) as client:
        client.post("v2/prompts", json={"name": "known", "prompt": "x"}).raise_for_status()
        client.post("v2/datasets", json={"name": "known_set"}).raise_for_status()
        yield client
    with server.log_path.open(errors="replace") as log:
        log.seek(start)
        assert "Traceback" not in log.read()


@pytest.mark.parametrize("route", BODIES)
def test_bodies_that_are_wrong_somewhere(route: str, client: httpx.Client) -> None:
    method, path = route.split(" ")
    body, chance = BODIES[route], random.Random(route)
    sent = [
        with_value(body, place, raw) for place in places(body) for raw in chance.sample(RAW_VALUES, VALUES_PER_PLACE)
    ]
    for content in [*sent, *(without(body, place) for place in places(body)), *RAW_BODIES]:
        answer = client.request(method, path, content=content, headers={"content-type": "application/json"})
        assert answer.status_code < 500, (content[:300], answer.text[:300])
        told = answer.json()
        assert answer.status_code < 300 or isinstance(told.get("message"), str), (content[:300], told)
        json.dumps(told, allow_nan=False)


@pytest.mark.parametrize("route", BODIES)
def test_a_wrong_body_is_told_before_a_missing_project(route: str, client: httpx.Client) -> None:
    method, path = route.split(" ")
    nowhere = {"authorization": "Bearer any", "content-type": "application/json"}
    for content in ("{", "[1", '"text"', "{}"):
        told = client.request(method, path, content=content)
        without = httpx.request(method, client.base_url.join(path), content=content, headers=nowhere)
        assert (without.status_code, without.json()) == (told.status_code, told.json()), content
        assert told.status_code in (400, 422) and "No project" not in told.text
    missing = httpx.request(method, client.base_url.join(path), json=BODIES[route], headers=nowhere)
    assert missing.status_code == 400 and missing.json()["message"].startswith("No project: ")


@pytest.mark.parametrize(
    "path",
    ["v2/prompts/x%00y", "v2/prompts/%ff", "scores/%00", "traces/%00", "observations/%F0%9F%92%A9", "sessions/%00"]
    + ["v2/datasets/%00", "dataset-items?datasetName=%00", "v2/prompts?name=%00&tag=%00&label=%00"]
    + ["v3/scores?name=%00&traceId=%00", "v2/scores?scoreIds=%00,", "traces?name=%00&userId=%00&version=%00"]
    + ["v2/observations?name=%00&userId=%00&environment=%00", "v3/scores?valueMin=1e400&dataType=NUMERIC"]
    + ["v3/scores?value=nan,inf&dataType=NUMERIC", f"v3/scores?name={'x,' * 3000}", f"traces/{'x' * 5000}"]
    + ["dataset-items?datasetName=known_set&page=2147483648&limit=100", "traces?page=2147483648&limit=100"]
    + ["v2/scores?page=2147483648", "dataset-items?datasetName=known_set&version=0001-01-01T00:00:00Z"]
    + ["traces?fromTimestamp=9999-12-31T23:59:59Z&toTimestamp=0001-01-01T00:00:00Z"],
)
def test_odd_questions(path: str, client: httpx.Client) -> None:
    answer = client.get(path)
    assert answer.status_code in (200, 400, 404), (path[:100], answer.status_code, answer.text[:300])
    assert answer.status_code == 200 or answer.json()["message"]


@pytest.mark.parametrize("credentials", [b"Basic \xff", b"Basic \xc3\xa9==", b"Basic ===", b"Basic"], ids=repr)
@pytest.mark.parametrize("path", ["/api/public/v2/prompts", "/api/public/projects", "/v1/models", "/health"])
def test_credentials_that_cannot_be_read(credentials: bytes, path: str, client: httpx.Client) -> None:
    answer = httpx.get(client.base_url.join(path), headers={b"authorization": credentials})
    assert answer.status_code in (200, 400, 401), answer.text[:300]


ODD_TIMES = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00")


@pytest.mark.parametrize("at", ODD_TIMES)
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("v2/scores", "fromTimestamp"),
        ("v3/scores", "toTimestamp"),
        ("observations", "fromStartTime"),
        ("v2/observations", "toStartTime"),
        ("traces", "toTimestamp"),
        ("v2/prompts", "fromUpdatedAt"),
        ("dataset-items?datasetName=known_set", "version"),
    ],
)
def test_times_outside_the_calendar_are_refused(path: str, name: str, at: str, client: httpx.Client) -> None:
    told = client.get(path, params={**dict(httpx.URL(path).params), name: at})
    assert told.status_code == 400 and "within the years 1 to 9999" in told.json()["message"]


@pytest.mark.parametrize("at", ODD_TIMES)
def test_scores_of_times_outside_the_calendar_are_refused(at: str, client: httpx.Client) -> None:
    assert client.post("scores", json={**SCORE, "timestamp": at}).status_code == 400
    event = {"id": "e", "type": "score-create", "timestamp": at, "body": {"name": "n", "value": 1, "traceId": "t"}}
    told = client.post("ingestion", json={"batch": [event]})
    assert told.status_code == 207 and told.json()["successes"] == []
    assert "within the years 1 to 9999" in told.json()["errors"][0]["message"]
