"""Addresses of related interfaces that are not served: 404 in their own error shape, with what exists instead."""

import pytest

from tests.support.chat import Chat

MISSING = {
    "/v1/moderations": "/v1/chat/completions",
    "/v1/audio/speech": "text",
    "/v1/audio/transcriptions": "text",
    "/v1/images/generations": "/image/create",
    "/v1/files": "/file/create",
    "/v1/batches": "at the same time",
    "/v1/assistants": "/v1/responses",
    "/v1/threads/x/runs": "/v1/responses",
    "/v1/fine_tuning/jobs": "/v1/preview/sft-training-jobs",
    "/v1/vector_stores": "/v1/embeddings",
    "/v1/rerank": "/v1/embeddings",
    "/v1/score": "/v1/embeddings",
    "/v1/v1/models": "must not end in /v1",
}


@pytest.mark.parametrize("path", MISSING)
def test_what_exists_instead_is_said(chat: Chat, path: str) -> None:
    answer = chat.client.post(path, json={})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("NotFoundError", 404, None)
    assert f"POST {path}" in error["message"] and MISSING[path] in error["message"]


def test_an_address_without_its_version(chat: Chat) -> None:
    answer = chat.client.post("/chat/completions", json={})
    assert answer.status_code == 404 and "must end in /v1" in answer.json()["reason"]
    assert "must end in /v1" in chat.client.get("/models").json()["reason"]


def test_other_addresses_are_simply_not_there(chat: Chat) -> None:
    error = chat.client.get("/v1/nothing").json()["error"]
    assert error["message"] == "Not Found: GET /v1/nothing"


def test_the_list_of_models_with_a_slash(chat: Chat) -> None:
    assert chat.client.get("/v1/models/").json() == chat.client.get("/v1/models").json()
