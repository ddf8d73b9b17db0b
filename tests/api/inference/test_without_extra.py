"""A server whose environment lacks the packages of inference: all else works, and chat says what to install."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.bare import bare_server
from tests.support.chat import Chat, error_of
from tests.support.server import HeddleProcess


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    """A server that cannot import what inference needs."""
    process = bare_server(tmp_path_factory.mktemp("bare"))
    with Chat(process.url) as caller:
        yield caller
    process.terminate()


def test_the_server_is_ready(bare: Chat) -> None:
    assert bare.client.get("/ready").status_code == 200
    answer = bare.client.post("/calls/query_stats", json={"project_id": "a/b"})
    assert (answer.status_code, answer.json()["count"]) == (200, 0)


def test_no_models(bare: Chat) -> None:
    for method in ("GET", "POST"):
        assert bare.client.request(method, "/v1/models").json() == {"object": "list", "data": []}


@pytest.mark.parametrize("stream", [False, True])
def test_chat_names_the_command(bare: Chat, stream: bool) -> None:
    answer = bare.ask(stream=stream)
    assert answer.status_code == 503
    assert "pip install" in error_of(answer)["message"] and ".[inference]" in answer.text


def test_other_routes_answer(bare: Chat) -> None:
    assert bare.client.get("/v1/engine").json()["data"] == []
    assert bare.client.get("/metrics").status_code == 200
    answer = bare.client.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "/"})
    assert answer.status_code == 503
    assert bare.client.post("/v1/chat/completions", json={"messages": 5}).status_code in (422, 503)


def test_without_a_bearer_it_is_still_401(bare: Chat) -> None:
    assert httpx.post(bare.url + "/v1/chat/completions", json={}).status_code == 401


@pytest.fixture(scope="module")
def none(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    """A server that is told to serve no model."""
    folder = tmp_path_factory.mktemp("none")
    with HeddleProcess(Path(folder) / "data", model="none") as process, Chat(process.url) as caller:
        yield caller


def test_model_none(none: Chat) -> None:
    assert none.client.get("/v1/models").json()["data"] == []
    answer = none.ask()
    assert answer.status_code == 503 and "--model" in error_of(answer)["message"]
    assert none.client.get("/ready").status_code == 200
