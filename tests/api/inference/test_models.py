"""GET and POST /v1/models."""

from typing import Any

import pytest

from tests.support.chat import Chat, error_of


def base(chat: Chat) -> dict[str, Any]:
    """The entry of the served base model."""
    body = chat.client.get("/v1/models").json()
    return dict(next(model for model in body["data"] if model["id"] == chat.model))


def test_the_list(chat: Chat) -> None:
    answer = chat.client.get("/v1/models")
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"object", "data"} and body["object"] == "list"
    assert len([model for model in body["data"] if model["id"] == chat.model]) == 1


def test_the_fields_of_a_model(chat: Chat) -> None:
    model = base(chat)
    assert {"id", "object", "created", "owned_by", "root"} <= set(model)
    assert model["object"] == "model" and model["owned_by"] == "heddle"
    assert (model["root"], model["parent"]) == (chat.model, None)
    assert isinstance(model["created"], int) and 1_500_000_000 < model["created"] < 10_000_000_000
    assert isinstance(model["max_model_len"], int) and model["max_model_len"] > 0


def test_created_is_the_time_of_the_model_not_of_the_call(chat: Chat) -> None:
    assert base(chat) == base(chat)


def test_post_is_the_same(chat: Chat) -> None:
    assert chat.client.post("/v1/models").json() == chat.client.get("/v1/models").json()
    assert chat.client.post("/v1/models", json={}).status_code == 200


def test_one_model(chat: Chat) -> None:
    assert chat.client.get(f"/v1/models/{chat.model}").json() == base(chat)
    answer = chat.client.get("/v1/models/zzz")
    assert answer.status_code == 404 and error_of(answer)["param"] == "model"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_list_needs_a_bearer(chat: Chat, method: str) -> None:
    with Chat(chat.url, bearer=None) as nobody:
        answer = nobody.client.request(method, "/v1/models")
    assert answer.status_code == 401 and error_of(answer)["type"] == "AuthenticationError"
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_the_list_does_not_load_the_model(chat: Chat) -> None:
    """Reading names needs no weights."""
    assert chat.client.get("/v1/models").status_code == 200
