"""GET /v1/usage: what each project used, who may see it, and that no delivered answer is missing in it."""

import datetime
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Wire
from tests.support.chat import TINY, Chat
from tests.support.cli import make_key
from tests.support.provider import FakeProvider
from tests.support.server import HeddleProcess

Json = dict[str, Any]
COUNTS = ("requests", "errors", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")


def usage(chat: Chat, **query: Any) -> Json:
    """The answer of /v1/usage."""
    answer = chat.client.get("/v1/usage", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


@pytest.mark.parametrize("header", ["Compat-Project", "OpenAI-Project"])
def test_a_completion_counts_for_the_project_of_its_header(chat: Chat, project: str, header: str) -> None:
    used = chat.answer({header: project}, max_tokens=3, user="ann")["usage"]
    (row,) = usage(chat, project=project)["data"]
    assert (row["object"], row["day"], row["project"], row["model"]) == ("usage", today(), project, TINY)
    assert {name: row[name] for name in COUNTS} == {
        "requests": 1,
        "errors": 0,
        "prompt_tokens": used["prompt_tokens"],
        "completion_tokens": used["completion_tokens"],
        "cached_tokens": used["prompt_tokens_details"]["cached_tokens"],
        "reasoning_tokens": used.get("completion_tokens_details", {}).get("reasoning_tokens", 0),
    }
    assert row["total_tokens"] == used["total_tokens"]
    assert row["latency"]["count"] == row["first_token"]["count"] == 1
    assert row["seconds"] == row["latency"]["mean"] >= row["first_token"]["mean"] > 0
    assert row["latency"]["p50"] == row["latency"]["p95"] >= row["seconds"]


def test_streams_choices_and_cached_tokens_are_counted(chat: Chat, project: str) -> None:
    headers = {"Compat-Project": project}
    messages = [{"role": "user", "content": "word " * 60}]
    fields: Json = {"messages": messages, "max_tokens": 2, "cache_salt": project.replace("/", "-"), "ignore_eos": True}
    first = chat.answer(headers, **fields)["usage"]
    again = chat.answer(headers, **fields, n=2, temperature=1)["usage"]
    with chat.client.stream(
        "POST", "/v1/chat/completions", json=chat.body(**fields, stream=True), headers=headers
    ) as answer:
        assert answer.read().endswith(b"data: [DONE]\n\n")
    (row,) = usage(chat, project=project)["data"]
    assert row["requests"] == 3
    assert row["prompt_tokens"] == 3 * first["prompt_tokens"]
    assert row["completion_tokens"] == 2 + 4 + 2
    assert again["prompt_tokens_details"]["cached_tokens"] > 0
    assert row["cached_tokens"] > again["prompt_tokens_details"]["cached_tokens"]


def test_refused_requests_are_not_counted(chat: Chat, project: str) -> None:
    headers = {"Compat-Project": project}
    assert chat.ask(headers, temperature=-1).status_code in (400, 422)
    assert chat.ask(headers, model="no-such-model").status_code == 404
    assert usage(chat, project=project)["data"] == []


@pytest.mark.parametrize("value", ["team", "a/b/c", "/", "team/p:q"])
def test_a_malformed_project_header_is_400_and_named(chat: Chat, value: str) -> None:
    answer = chat.ask({"Compat-Project": value})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["type"]) == ("Compat-Project", "BadRequestError")
    assert repr(value) in error["message"]


def test_rows_can_be_grouped_and_their_totals_agree(chat: Chat, project: str) -> None:
    for user in ("ann", "bob", "bob", None):
        chat.answer({"Compat-Project": project}, max_tokens=1, user=user)
    answer = usage(chat, project=project, group_by="user")
    assert [(row["user"], row["requests"]) for row in answer["data"]] == [(None, 1), ("ann", 1), ("bob", 2)]
    assert "day" not in answer["data"][0]
    assert answer["totals"]["requests"] == 4
    assert answer["totals"]["total_tokens"] == sum(row["total_tokens"] for row in answer["data"])
    (row,) = usage(chat, project=project, model=TINY, group_by=["day", "project"])["data"]
    assert (row["day"], row["project"], row["requests"]) == (today(), project, 4)
    assert usage(chat, project=project, model="other")["data"] == []
    assert usage(chat, project=project, start="2020-01-01", end="2020-12-31")["data"] == []
    assert usage(chat, project=project, start=today(), end=today())["totals"]["requests"] == 4
    assert usage(chat, project=project, end="0001-01-01")["data"] == []
    assert usage(chat, project=project, start="0001-01-01", end="9999-12-31")["totals"]["requests"] == 4


def test_models_without_a_price_are_named_and_prices_of_the_project_hold(chat: Chat, wire: Wire) -> None:
    used = chat.answer({"Compat-Project": wire.project}, max_tokens=2)["usage"]
    answer = usage(chat, project=wire.project)
    assert answer["x_unpriced_models"] == [TINY]
    assert (answer["data"][0]["cost"], answer["totals"]["cost"]) == (None, None)
    prices = {"prompt_token_cost": 1.0, "completion_token_cost": 100.0, "cache_read_input_token_cost": 1.0}
    wire.post("/cost/create", costs={TINY: prices})
    answer = usage(chat, project=wire.project)
    assert answer["x_unpriced_models"] == []
    assert answer["totals"]["cost"] == used["prompt_tokens"] + 100 * used["completion_tokens"]


def test_concurrent_completions_are_all_counted_and_leave_no_place_taken(chat: Chat, project: str) -> None:
    headers = {"Compat-Project": project}
    limit = {"kind": "project", "name": project, "concurrency": 1000}

    def one(number: int) -> int:
        body = chat.body(max_tokens=1 + number % 3, ignore_eos=True, stream=number % 2 == 0)
        answer = chat.client.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200
        return 1 + number % 3

    assert chat.client.put("/v1/limits", json=limit).status_code == 200
    with ThreadPoolExecutor(8) as threads:
        tokens = list(threads.map(one, range(48)))
    totals = usage(chat, project=project)["totals"]
    assert (totals["requests"], totals["errors"], totals["completion_tokens"]) == (48, 0, sum(tokens))
    (shown,) = [row for row in chat.client.get("/v1/limits").json()["data"] if row["name"] == project]
    assert shown["running"] == 0


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ({"start": "yesterday"}, 422, "start"),
        ({"group_by": "planet"}, 422, "group_by"),
        ({"start": "2026-02-02", "end": "2026-02-01"}, 400, "start"),
        ({"project": "nowhere"}, 400, "entity/project"),
    ],
)
def test_bad_questions_are_refused_by_name(chat: Chat, query: Json, status: int, words: str) -> None:
    answer = chat.client.get("/v1/usage", params=query)
    assert answer.status_code == status
    assert words in answer.text


def test_usage_needs_a_bearer(server: HeddleProcess) -> None:
    assert httpx.get(f"{server.url}/v1/usage").status_code == 401


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HeddleProcess, dict[str, str]]]:
    """A server that needs keys, and some."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    scopes = ("--scope", "read", "--scope", "write")
    keys = {
        "root": make_key(data, "root", "--scope", "admin"),
        "one": make_key(data, "one", "--project", "team/one", *scopes),
        "team": make_key(data, "team", "--entity", "team", *scopes),
        "writer": make_key(data, "writer", "--scope", "write"),
    }
    with HeddleProcess(data, auth="on") as process:
        yield process, keys


def test_a_key_sees_the_projects_that_it_reaches(guarded: tuple[HeddleProcess, dict[str, str]]) -> None:
    process, keys = guarded

    def chat(who: str) -> Chat:
        return Chat(process.url, keys[who])

    for who, project in (("root", "team/one"), ("root", "team/two"), ("root", "other/one"), ("team", "team/two")):
        chat(who).answer({"OpenAI-Project": project}, max_tokens=1)
    for who in ("root", "team", "one"):
        chat(who).answer(max_tokens=1)

    def seen(who: str, **query: Any) -> list[tuple[str | None, int]]:
        rows = usage(chat(who), group_by="project", **query)["data"]
        return [(row["project"], row["requests"]) for row in rows]

    assert sorted(seen("root"), key=str) == [("other/one", 1), ("team/one", 2), ("team/two", 2), (None, 2)]
    assert sorted(seen("team"), key=str) == [("team/one", 2), ("team/two", 2), (None, 1)]
    assert seen("one") == [("team/one", 2)], "its request without a header counts for the project it is bound to"
    assert seen("root", project="") == [(None, 2)]
    assert seen("team", project="") == [(None, 1)]
    for who, project in (("one", "team/two"), ("team", "other/one")):
        assert chat(who).client.get("/v1/usage", params={"project": project}).status_code == 403
        refused = chat(who).ask({"Compat-Project": project})
        assert refused.status_code == 403
        assert refused.json()["error"]["param"] == "Compat-Project"
    assert chat("writer").client.get("/v1/usage").status_code == 403
    by_key = usage(chat("root"), project="team/two", group_by="key")["data"]
    assert sorted(row["requests"] for row in by_key) == [1, 1]
    assert all(row["key"] and row["key"] not in keys.values() for row in by_key)


def test_no_count_of_a_delivered_answer_is_lost_by_a_kill(tmp_path: Path) -> None:
    delivered = 0
    with FakeProvider() as provider:
        process = HeddleProcess(tmp_path / "data", model="none", providers=f"fake={provider.url}")
        for _ in range(2):
            process.start()
            body = {
                "project_id": "team/p",
                "inputs": {"model": "fake/m", "messages": [{"role": "user", "content": "x"}]},
            }
            with httpx.Client(base_url=process.url, timeout=60) as client:
                for path in ("/completions/create", "/completions/create_stream") * 5:
                    assert client.post(path, json=body).status_code == 200
                    delivered += 1
            process.kill()
        process.start()
        with Chat(process.url) as chat:
            totals = usage(chat, project="team/p")["totals"]
            assert (totals["requests"], totals["prompt_tokens"]) == (delivered, 7 * delivered)
        assert process.terminate() == 0
