"""Limits on the wire: 429 with what clients need to come back, set by settings or by PUT /v1/limits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chat import Chat, until
from tests.support.cli import make_key
from tests.support.server import HeddleProcess

Json = dict[str, Any]
LONG: Json = {"max_tokens": 200, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server where a project may run one completion at a time and use 2,000 tokens per minute."""
    data = tmp_path_factory.mktemp("limited") / "data"
    settings = {"inference_project_concurrency": 1, "inference_project_tokens_per_minute": 2000}
    with HeddleProcess(data, **settings) as process:
        yield process


@pytest.fixture
def chat(limited: HeddleProcess) -> Iterator[Chat]:
    """A caller of that server."""
    with Chat(limited.url) as caller:
        yield caller


def put(chat: Chat, **body: Any) -> Json:
    """The answer of PUT /v1/limits."""
    answer = chat.client.put("/v1/limits", json=body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_a_second_completion_of_a_project_is_429_while_the_first_runs(chat: Chat, project: str) -> None:
    headers = {"Compat-Project": project}
    body = chat.body(**LONG, stream=True)
    with chat.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as running:
        assert running.status_code == 200
        assert running.headers["x-ratelimit-limit-requests"] == "1"
        assert running.headers["x-ratelimit-remaining-requests"] == "0"
        lines = running.iter_lines()
        next(lines)
        refused = chat.ask(headers)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.headers["x-ratelimit-limit-tokens"] == "2000"
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("RateLimitError", 429)
        assert f"project '{project}'" in error["message"]
        assert chat.ask({"Compat-Project": f"{project}-2"}).status_code == 200, (
            "other projects have places of their own"
        )
        for _ in lines:
            pass
    assert chat.ask(headers).status_code == 200


def test_a_client_that_goes_away_gives_its_place_back(chat: Chat, project: str) -> None:
    headers = {"Compat-Project": project}
    put(chat, kind="project", name=project, tokens_per_minute=0)
    for _ in range(3):
        body = chat.body(**LONG | {"max_tokens": 1500}, stream=True)
        with chat.client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as running:
            next(running.iter_lines())
        until(lambda: chat.ask(headers, max_tokens=1).status_code == 200, "the place is free again")


def test_tokens_per_minute_are_limited_and_corrected_to_what_was_used(chat: Chat, project: str) -> None:
    headers = {"Compat-Project": project}
    first = chat.ask(headers, max_tokens=900)
    assert first.status_code == 200
    reserved = 2000 - int(first.headers["x-ratelimit-remaining-tokens"])
    used = first.json()["usage"]
    assert reserved == used["prompt_tokens"] + 900
    second = chat.ask(headers, max_tokens=1)
    free = int(second.headers["x-ratelimit-remaining-tokens"])
    assert free >= 2000 - used["total_tokens"] - used["prompt_tokens"] - 2
    put(chat, kind="project", name=project, tokens_per_minute=10)
    refused = chat.ask(headers, max_tokens=1)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 1
    assert refused.headers["x-ratelimit-limit-tokens"] == "10"
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"
    assert "10 tokens per minute" in refused.json()["error"]["message"]


def test_limits_of_single_projects_are_set_shown_and_survive(tmp_path: Path) -> None:
    process = HeddleProcess(tmp_path / "data", inference_key_concurrency=7, model="none")
    with process, Chat(process.url) as chat:
        shown = put(chat, kind="project", name="team/p", concurrency=3)
        assert shown.pop("object") == "limit"
        assert [shown.pop(name) for name in ("quotas", "own", "uses")] == ["none", ["concurrency"], []]
        assert shown == {"kind": "project", "name": "team/p", "concurrency": 3, "tokens_per_minute": 0, "running": 0}
        put(chat, kind="key", name="local", tokens_per_minute=50)
    with process, Chat(process.url) as chat:
        answer = chat.client.get("/v1/limits").json()
        assert [(row["kind"], row["concurrency"]) for row in answer["defaults"]] == [("project", 0), ("key", 7)]
        rows = [(row["name"], row["concurrency"], row["tokens_per_minute"]) for row in answer["data"]]
        assert rows == [("local", 7, 50), ("team/p", 3, 0)]
        put(chat, kind="key", name="local")
        assert [row["name"] for row in chat.client.get("/v1/limits").json()["data"]] == ["team/p"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"kind": "planet", "name": "x"}, 422, "kind"),
        ({"kind": "project"}, 422, "name"),
        ({"kind": "project", "name": "team/p", "concurrency": -1}, 422, "concurrency"),
        ({"kind": "project", "name": "nowhere", "concurrency": 1}, 400, "entity/project"),
        ({"kind": "key", "name": "unknown", "concurrency": 1}, 422, "unknown"),
    ],
)
def test_bad_limits_are_refused_by_name(chat: Chat, body: Json, status: int, words: str) -> None:
    answer = chat.client.put("/v1/limits", json=body)
    assert answer.status_code == status
    assert words in answer.text


def test_only_admins_of_the_whole_server_set_limits(tmp_path: Path) -> None:
    data = tmp_path / "data"
    keys = [
        make_key(data, "root", "--scope", "admin"),
        make_key(data, "bound", "--scope", "admin", "--entity", "team"),
        make_key(data, "writer", "--scope", "write"),
    ]
    body = {"kind": "project", "name": "team/p", "concurrency": 1}
    with HeddleProcess(data, auth="on", model="none") as process:
        answers = [Chat(process.url, key).client.put("/v1/limits", json=body).status_code for key in keys]
        assert answers == [200, 403, 403]
        answers = [Chat(process.url, key).client.get("/v1/limits").status_code for key in keys]
        assert answers == [200, 403, 403]


def test_refusals_and_completions_are_in_the_metrics_without_names(chat: Chat, project: str) -> None:
    put(chat, kind="project", name=project, tokens_per_minute=1)
    headers = {"Compat-Project": project}
    assert chat.ask(headers).status_code == 200
    assert chat.ask(headers).status_code == 429
    text = chat.client.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values["heddle_inference_limited_total"]) >= 1
    assert float(values['heddle_inference_requests_total{model="heddle-tiny",status="200"}']) >= 1
    assert float(values['heddle_inference_first_token_seconds_count{model="heddle-tiny"}']) >= 1
    assert values['heddle_engine_ready{model="heddle-tiny"}'] == "1.0"
    assert values['heddle_engine_kv_blocks_used{model="heddle-tiny"}'] == "0.0"
    assert project.partition("/")[0] not in text
    assert chat.engine()["kv_use"] == 0.0
