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
    "/v1/containers": "run in the client",
    "/v1/organization/costs": "/calls/usage",
    "/v1/memory_stores": "run in the client",
    "/v1/rerank": "/v1/embeddings",
    "/v1/score": "/v1/embeddings",
    "/v1/v1/models": "must not end in /v1",
    "/v1/private/traces/batch": "POST /v1/traces",
    "/v1/spans": "POST /v1/traces",
}


@pytest.mark.parametrize("path", MISSING)
def test_what_exists_instead_is_said(chat: Chat, path: str) -> None:
    answer = chat.client.post(path, json={})
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("NotFoundError", 404, None)
    assert f"POST {path}" in error["message"] and MISSING[path] in error["message"]


OPERATIONS = {
    "POST /v1/responses/compact": (405, "does not compact conversations"),
    "GET /v1/responses": (405, "POST /v1/responses"),
    "GET /v1/conversations": (405, "there is no list"),
    "GET /v1/chat/completions": (405, "/calls/stream_query"),
    "GET /v1/chat/completions/x": (404, "/calls/stream_query"),
    "POST /v1/chat/completions/x": (404, "/calls/stream_query"),
    "GET /v1/chat/completions/x/messages": (404, "/calls/stream_query"),
    "DELETE /v1/models/x": (405, "/v1/unload_lora_adapter"),
    "POST /v1/models/a/b/predictions": (405, "/v1/chat/completions"),
    "GET /v1/spans": (404, "/calls/stream_query"),
    "POST /v1/messages/batches": (404, "at the same time"),
    "GET /v1/files/x/content": (404, "/file/create"),
    "POST /v1/batches/x/cancel": (404, "at the same time"),
}
"""Operations of the OpenAI SDK below addresses that are served in part."""


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_that_is_not_served_says_what_is(chat: Chat, operation: str) -> None:
    method, path = operation.split()
    status, word = OPERATIONS[operation]
    answer = chat.client.request(method, path)
    message = answer.json()["error"]["message"]
    assert (answer.status_code, operation in message, word in message) == (status, True, True), message


def test_another_method_of_an_address_without_hint_is_simply_refused(chat: Chat) -> None:
    answer = chat.client.get("/completions/create")
    assert (answer.status_code, answer.json()["reason"]) == (405, "Method Not Allowed: GET /completions/create")


def test_an_address_without_its_version(chat: Chat) -> None:
    answer = chat.client.post("/chat/completions", json={})
    assert answer.status_code == 404 and "must end in /v1" in answer.json()["reason"]
    assert "must end in /v1" in chat.client.get("/models").json()["reason"]


OTHER_INTERFACES = {
    "/api/chat": "Ollama",
    "/api/tags": "/v1/chat/completions",
    "/v2/chat": "Cohere",
    "/v1beta/models/x:generateContent": "Gemini",
    "/openai/deployments/x/chat/completions": "Azure",
    "/runs/multipart": "POST /v1/traces",
    "/api/2.0/mlflow/experiments/search": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
}


@pytest.mark.parametrize("path", OTHER_INTERFACES)
def test_a_client_of_another_interface_is_told_what_is_served(chat: Chat, path: str) -> None:
    answer = chat.client.post(path, json={})
    assert answer.status_code == 404
    assert f"POST {path}" in answer.json()["reason"] and OTHER_INTERFACES[path] in answer.json()["reason"]


def test_an_address_below_openai_is_the_same_address(chat: Chat) -> None:
    """The SDKs of Groq and Azure put `/openai` in front of `/v1`."""
    assert chat.client.get("/openai/v1/models").json() == chat.client.get("/v1/models").json()
    answer = chat.client.post("/openai/v1/chat/completions", json=chat.body())
    assert (answer.status_code, answer.json()["object"]) == (200, "chat.completion")
    refused = chat.client.post("/openai/v1/moderations", json={})
    assert (refused.status_code, refused.json()["error"]["type"]) == (404, "NotFoundError")
    assert chat.client.get("/openai/health").status_code == 404
    page = chat.client.get("/openai/v1/weave/traces")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")


def test_other_addresses_are_simply_not_there(chat: Chat) -> None:
    error = chat.client.get("/v1/nothing").json()["error"]
    assert error["message"] == "Not Found: GET /v1/nothing"


def test_the_list_of_models_with_a_slash(chat: Chat) -> None:
    assert chat.client.get("/v1/models/").json() == chat.client.get("/v1/models").json()
