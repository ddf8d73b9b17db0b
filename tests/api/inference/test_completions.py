"""POST /completions/create and create_stream: on the engine here, on a provider of the settings, and their calls."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Wire
from tests.support.chat import TINY, Chat, until
from tests.support.cli import make_key
from tests.support.provider import USAGE, FakeProvider
from tests.support.server import HeddleProcess

Json = dict[str, Any]
USER = [{"role": "user", "content": "hello"}]
KEY = "sk-of-the-provider"


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    """A provider that the server below is allowed to ask."""
    with FakeProvider() as fake:
        yield fake


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider) -> Iterator[HeddleProcess]:
    """A server with providers: `fake` with a key, `keyless`, `unset` whose key is missing, `dead` without a server."""
    entries = (
        f"fake={provider.url},FAKE_PROVIDER_KEY; keyless={provider.url}/; unset={provider.url},NO_SUCH_KEY;"
        " dead=http://127.0.0.1:9/v1"
    )
    before = os.environ.get("FAKE_PROVIDER_KEY")
    os.environ["FAKE_PROVIDER_KEY"] = KEY
    try:
        with HeddleProcess(tmp_path_factory.mktemp("asking") / "data", providers=entries) as process:
            yield process
    finally:
        os.environ.pop("FAKE_PROVIDER_KEY")
        if before is not None:
            os.environ["FAKE_PROVIDER_KEY"] = before


@pytest.fixture
def ask(asking: HeddleProcess, project: str) -> Iterator[Wire]:
    """Raw HTTP to the test's project on that server."""
    wire = Wire(asking.url, project)
    yield wire
    wire.client.close()


def create(wire: Wire, model: str, inputs: Json | None = None, **body: Any) -> Json:
    """The answer of /completions/create."""
    given = {"model": model, "messages": USER, **(inputs or {})}
    return dict(wire.post("/completions/create", inputs=given, **body))


def stream(wire: Wire, model: str, inputs: Json | None = None, **body: Any) -> list[Json]:
    """The lines of /completions/create_stream."""
    given = {"model": model, "messages": USER, **(inputs or {})}
    body = {"project_id": wire.project, "inputs": given, **body}
    answer = wire.client.post("/completions/create_stream", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def test_a_provider_answers_and_the_call_shows_it(ask: Wire, provider: FakeProvider) -> None:
    inputs = {"temperature": 0.5, "max_tokens": 9, "top_k": 3, "extra_headers": {"x-team": "blue"}, "seed": None}
    made = create(ask, "fake/model-a", inputs)
    assert made["response"]["choices"][0]["message"]["content"] == "HELLO"
    sent = provider.requests[-1]
    assert sent["path"] == "/v1/chat/completions"
    assert sent["headers"]["Authorization"] == f"Bearer {KEY}"
    assert sent["headers"]["x-team"] == "blue"
    assert sent["body"] == {
        "model": "model-a", "messages": USER, "temperature": 0.5, "max_tokens": 9, "top_k": 3, "stream": False,
    }  # fmt: skip
    call = ask.call(made["weave_call_id"], include_costs=True)
    assert made["span_id"] == call["id"]
    assert made["trace_id"] == call["trace_id"]
    assert call["op_name"] == "weave.completions_create"
    assert call["inputs"] == {
        "model": "fake/model-a",
        "messages": USER,
        "temperature": 0.5,
        "max_tokens": 9,
        "top_k": 3,
    }
    assert call["output"] == made["response"]
    assert (call["exception"], call["thread_id"], call["parent_id"]) == (None, None, None)
    assert call["attributes"]["provider"] == "fake"
    assert call["attributes"]["conversation"]["id"] == made["conversation_id"]
    assert call["summary"]["usage"] == {
        "model-a": {
            "requests": 1, "prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10,
            "cache_read_input_tokens": 4, "reasoning_tokens": 2,
        }
    }  # fmt: skip
    assert KEY not in json.dumps(call)


def test_usage_of_a_provider_is_priced_and_counted_for_the_project(ask: Wire) -> None:
    ask.post("/cost/create", costs={"model-a": {"prompt_token_cost": 1.0, "completion_token_cost": 10.0}})
    made = create(ask, "keyless/model-a", {"user": "u-1"})
    costs = ask.call(made["weave_call_id"], include_costs=True)["summary"]["weave"]["costs"]["model-a"]
    assert costs["prompt_tokens_total_cost"] == 3.0
    assert costs["completion_tokens_total_cost"] == 30.0
    stream(ask, "keyless/model-a", {"user": "u-1"})
    with Chat(ask.url) as chat:
        query = {"project": ask.project, "group_by": ["model", "user"]}
        (row,) = chat.client.get("/v1/usage", params=query).json()["data"]
    assert (row["model"], row["user"], row["requests"], row["errors"]) == ("model-a", "u-1", 2, 0)
    assert (row["prompt_tokens"], row["completion_tokens"], row["cached_tokens"]) == (14, 6, 8)
    assert (row["reasoning_tokens"], row["first_token"]["count"], row["cost"]) == (4, 1, 66.0)


def test_a_stream_begins_with_its_ids_and_is_stored_whole(ask: Wire, provider: FakeProvider) -> None:
    lines = stream(ask, "fake/model-a", conversation_id="talk-1", conversation_name="Talk")
    meta = lines[0]["_meta"]
    assert meta.keys() == {"weave_call_id", "span_id", "trace_id", "conversation_id"}
    assert provider.requests[-1]["body"]["stream_options"] == {"include_usage": True}
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in lines[1:-1]) == "HELLO"
    assert lines[-1]["usage"] == USAGE
    call = ask.call(meta["weave_call_id"])
    assert call["output"]["choices"][0] == {
        "index": 0, "message": {"role": "assistant", "content": "HELLO"}, "finish_reason": "stop",
    }  # fmt: skip
    assert call["output"]["object"] == "chat.completion"
    assert (call["thread_id"], call["turn_id"]) == ("talk-1", call["id"]) == (meta["conversation_id"], meta["span_id"])
    assert call["summary"]["usage"]["model-a"]["completion_tokens"] == 3


def test_calls_can_be_nested_or_left_out(ask: Wire) -> None:
    made = create(ask, "fake/model-a", trace_id="trace-1", parent_id="parent-1", source="playground")
    call = ask.call(made["weave_call_id"])
    assert (call["trace_id"], call["parent_id"]) == ("trace-1", "parent-1")
    assert call["attributes"]["source"] == "playground"
    untracked = create(ask, "fake/model-a", track_llm_call=False)
    assert untracked.pop("response")["choices"][0]["message"]["content"] == "HELLO"
    assert untracked == dict.fromkeys(("weave_call_id", "span_id", "trace_id", "conversation_id"))
    assert "_meta" not in stream(ask, "fake/model-a", track_llm_call=False)[0]
    assert len(ask.calls()) == 1


@pytest.mark.parametrize(
    ("model", "inputs", "words"),
    [
        ("fake/model-missing", {}, "fake returned 404: no such model"),
        ("fake/model-html", {}, "fake did not return "),
        ("fake/model-moved", {}, "fake returned 302"),
        ("fake/model-deep-object", {}, " return"),
        ("unset/model-a", {}, "set the environment variable NO_SUCH_KEY"),
        ("dead/model-a", {}, "dead cannot be reached"),
        ("fake/model-a", {"timeout": "soon"}, "timeout must be a number of seconds"),
        ("fake/model-a", {"timeout": -1}, "timeout must be a number of seconds"),
        ("fake/model-a", {"vertex_credentials": "{}"}, "vertex_credentials cannot be used"),
        ("fake/model-a", {"extra_headers": {"Authorization": "Bearer mine"}}, "Authorization cannot be set"),
        ("fake/model-a", {"extra_headers": {"x": "a\r\nb"}}, "must be a header with a string value"),
        ("fake/model-a", {"prompt": "nowhere"}, "Failed to resolve prompt"),
        ("no-such-model", {}, "no-such-model"),
        (TINY, {"functions": [{"name": "f"}]}, "functions cannot be used"),
        (TINY, {"modalities": ["audio"]}, "modalities cannot be used"),
        (TINY, {"messages": [*USER, {"content": "no role"}]}, "messages.1."),
        (TINY, {"temperature": -1}, "temperature"),
        ("custom::nobody::model", {}, "Could not find ProviderModel"),
    ],
)
def test_what_goes_wrong_is_an_answer_with_error_and_a_failed_call(
    ask: Wire, model: str, inputs: Json, words: str
) -> None:
    made = create(ask, model, inputs)
    assert list(made["response"]) == ["error"]
    assert words in made["response"]["error"]
    call = ask.call(made["weave_call_id"])
    assert (call["exception"], call["output"]) == (made["response"]["error"], made["response"])
    assert call["summary"]["weave"]["status"] == "error"
    assert {"extra_headers", "vertex_credentials"}.isdisjoint(call["inputs"])
    meta, *rest = stream(ask, model, inputs)
    assert [list(line) for line in rest] == [["error"]]
    assert words in rest[0]["error"]
    assert ask.call(meta["_meta"]["weave_call_id"])["exception"] == rest[0]["error"]


def test_a_timeout_ends_the_completion(ask: Wire) -> None:
    words = "within"
    made = create(ask, "fake/model-hangs", {"timeout": "0.2"})
    assert words in made["response"]["error"]
    assert words in ask.call(made["weave_call_id"])["exception"]
    meta, chunk, last = stream(ask, "fake/model-hangs", {"timeout": 0.5})
    assert (chunk["object"], list(last)) == ("chat.completion.chunk", ["error"])
    call = ask.call(meta["_meta"]["weave_call_id"])
    assert words in call["exception"]
    assert call["output"]["choices"][0]["message"] == {"role": "assistant", "content": ""}


def test_a_stream_that_breaks_ends_with_the_error_and_keeps_what_came(ask: Wire) -> None:
    lines = stream(ask, "fake/model-breaks")
    assert lines[-1] == {"error": "fake: the engine died"}
    call = ask.call(lines[0]["_meta"]["weave_call_id"])
    assert call["exception"] == "fake: the engine died"
    assert call["output"]["choices"][0]["message"]["content"] == "H"


def test_odd_chunks_are_passed_on_as_strict_json_and_kept(ask: Wire) -> None:
    meta, first, second, third = stream(ask, "fake/model-odd")
    assert (first["id"], first["created"], first["choices"][0]["delta"]["content"]) == ("\ufffd", 10**30, [1])
    assert second["choices"][0]["logprobs"]["content"] == [{"logprob": None}]
    assert third["choices"][0]["delta"] == {"content": "a", "reasoning": "b"}
    call = ask.call(meta["_meta"]["weave_call_id"])
    assert call["exception"] is None
    texts = [choice["message"]["content"] for choice in call["output"]["choices"]]
    assert texts == ["a", "\ufffd"]


def test_a_client_that_goes_away_ends_the_providers_stream(ask: Wire, provider: FakeProvider) -> None:
    provider.gone.clear()
    body = {"project_id": ask.project, "inputs": {"model": "fake/model-hangs", "messages": USER}}
    with ask.client.stream("POST", "/completions/create_stream", json=body) as answer:
        lines = answer.iter_lines()
        call_id = json.loads(next(lines))["_meta"]["weave_call_id"]
        next(lines)
    assert provider.gone.wait(30)
    until(lambda: ask.post("/call/read", id=call_id)["call"] is not None, "the call is stored")
    assert ask.call(call_id)["exception"] == "The client went away"


def test_a_client_that_goes_away_before_the_answer_leaves_a_call_that_says_so(
    ask: Wire, provider: FakeProvider
) -> None:
    asked = len(provider.requests)
    body = {"project_id": ask.project, "inputs": {"model": "fake/model-hangs", "messages": USER}}
    content = json.dumps(body).encode()
    with socket.create_connection(("127.0.0.1", httpx.URL(ask.url).port or 0)) as connection:
        head = f"POST /completions/create HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        until(lambda: len(provider.requests) > asked, "the provider is asked")
    until(lambda: bool(ask.calls()), "the call is stored")
    assert [call["exception"] for call in ask.calls()] == ["The client went away"]


def publish(wire: Wire, object_id: str, value: Json, **more: Any) -> str:
    """The digest of a new object version."""
    made = wire.post("/obj/create", obj={"project_id": wire.project, "object_id": object_id, "val": value, **more})
    return str(made["digest"])


def prompt_value(messages: list[Json]) -> Json:
    """A stored prompt, as the SDK publishes it."""
    bases = ["Prompt", "Object", "BaseModel"]
    return {"_type": "MessagesPrompt", "_class_name": "MessagesPrompt", "_bases": bases, "messages": messages}


def test_a_stored_prompt_comes_first_and_its_variables_are_filled(ask: Wire, provider: FakeProvider) -> None:
    messages = [
        {"role": "system", "content": "Speak {tongue}, {{literally}}."},
        {"role": "assistant", "content": '{"json": {tongue}}'},
    ]
    digest = publish(ask, "greeter", prompt_value(messages))
    given = [{"role": "user", "content": [{"type": "text", "text": '{tongue}? {"a": {"b": 1}} {other}'}]}]
    names = (f"weave:///{ask.project}/object/greeter:{digest}", f"greeter:{digest}", "greeter:v0", "greeter")
    for name in names:
        inputs = {"messages": given, "prompt": name, "template_vars": {"tongue": "French", "n": 1}}
        made = create(ask, "fake/model-a", inputs)
        assert "error" not in made["response"], made
        assert provider.requests[-1]["body"]["messages"] == [
            {"role": "system", "content": "Speak French, {literally}."},
            messages[1],
            {"role": "user", "content": [{"type": "text", "text": 'French? {"a": {"b": 1}} {other}'}]},
        ]
        assert ask.call(made["weave_call_id"])["inputs"]["messages"] == given
    missing = create(ask, "fake/model-a", {"prompt": "greeter", "template_vars": {"n": 1, "m": 2}})
    assert missing["response"]["error"].endswith("'tongue' not found. Available variables: m, n")
    publish(
        ask, "number", {"_type": "Thing", "_class_name": "Thing", "_bases": ["Object", "BaseModel"], "messages": []}
    )
    assert "is not a prompt" in create(ask, "fake/model-a", {"prompt": "number"})["response"]["error"]


def test_a_prompt_of_langfuse_with_a_placeholder(ask: Wire, provider: FakeProvider) -> None:
    chat = [{"role": "system", "content": "Be {{tone}}."}, {"type": "placeholder", "name": "history"}]
    made = ask.client.post(
        "/api/public/v2/prompts",
        json={"name": "talk", "type": "chat", "prompt": chat, "labels": ["production"]},
        headers={"project_id": ask.project},
    )
    assert made.status_code == 201, made.text
    history = [{"role": "user", "content": "hi {tone} {x}"}, {"role": "assistant", "content": "{tone}"}]
    asked = {"prompt": "talk:production", "template_vars": {"tone": "kind", "history": history}}
    assert (
        "error"
        not in create(ask, "fake/model-a", {**asked, "messages": [{"role": "user", "content": "so?"}]})["response"]
    )
    assert provider.requests[-1]["body"]["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi kind {x}"},
        {"role": "assistant", "content": "{tone}"},
        {"role": "user", "content": "so?"},
    ]
    for wrong in ({"tone": "kind"}, {"tone": "kind", "history": "hi"}, {}):
        refused = create(ask, "fake/model-a", {"prompt": "talk", "template_vars": wrong})
        assert "the placeholder 'history' requires a list of messages" in refused["response"]["error"]


def test_a_provider_object_is_used_only_at_an_address_of_the_settings(ask: Wire, provider: FakeProvider) -> None:
    def described(url: str) -> Json:
        return {"name": "Own", "base_url": url, "api_key_name": "HOME", "extra_headers": {"x-own": "1"}}

    def model(digest: str) -> Json:
        return {"name": "model-b", "provider": digest, "max_tokens": 100}

    digest = publish(ask, "own", described(provider.url), builtin_object_class="Provider")
    publish(ask, "own-the_model", model(digest), builtin_object_class="ProviderModel")
    for name in ("custom::own::the/model", "custom::own-the_model"):
        assert create(ask, name)["response"]["choices"][0]["message"]["content"] == "HELLO"
        sent = provider.requests[-1]
        assert sent["body"]["model"] == "model-b"
        assert sent["headers"]["x-own"] == "1"
        assert sent["headers"]["Authorization"] == f"Bearer {KEY}", "the key of the settings, not the one it names"
    named = f"weave:///{ask.project}/object/own-the_model:latest"
    assert create(ask, named)["response"]["model"] == "model-b", "an object's own ref names it, too"
    assert "is not a ProviderModel" in create(ask, f"weave:///{ask.project}/object/own:latest")["response"]["error"]
    asked = len(provider.requests)
    elsewhere = publish(ask, "evil", described("http://127.0.0.1:1/v1"), builtin_object_class="Provider")
    publish(ask, "evil-m", model(elsewhere), builtin_object_class="ProviderModel")
    assert "setting 'providers'" in create(ask, "custom::evil::m")["response"]["error"]
    assert len(provider.requests) == asked
    assert create(ask, "custom::fake::direct")["response"]["model"] == "direct"


@pytest.mark.parametrize(("name", "key"), [("fake", f"Bearer {KEY}"), ("keyless", None)])
def test_a_provider_object_has_the_key_of_its_name(
    ask: Wire, provider: FakeProvider, name: str, key: str | None
) -> None:
    """Of several providers at one address the first one was asked, and paid."""
    value = {"name": name, "base_url": provider.url, "api_key_name": "K"}
    digest = publish(ask, name, value, builtin_object_class="Provider")
    publish(ask, f"{name}-m", {"name": "m", "provider": digest, "max_tokens": 9}, builtin_object_class="ProviderModel")
    assert "choices" in create(ask, f"custom::{name}::m")["response"]
    assert provider.requests[-1]["headers"].get("Authorization") == key


def test_addresses_of_providers_are_not_shown_to_everybody(ask: Wire) -> None:
    assert "providers" not in ask.client.get("/server_info").json()["settings"]


@pytest.mark.parametrize(
    ("body", "status", "place"),
    [
        ({"inputs": {"messages": USER}}, 422, ["body", "inputs", "model"]),
        ({"inputs": {"model": "m", "messages": "hi"}}, 422, ["body", "inputs", "messages"]),
        ({"inputs": {"model": "m"}, "trace_id": ""}, 422, ["body", "trace_id"]),
        ({"inputs": {"model": "m"}, "project_id": "nowhere"}, 400, None),
    ],
)
@pytest.mark.parametrize("path", ["/completions/create", "/completions/create_stream"])
def test_malformed_requests_are_refused(ask: Wire, path: str, body: Json, status: int, place: list[str] | None) -> None:
    answer = ask.client.post(path, json={"project_id": ask.project, **body})
    assert answer.status_code == status
    if place is not None:
        assert answer.json()["detail"][0]["loc"] == place


def test_a_key_may_only_complete_in_projects_it_writes_to(tmp_path: Path) -> None:
    data = tmp_path / "data"
    reader, bound = make_key(data, "r", "--scope", "read"), make_key(data, "b", "--project", "team/one")
    with HeddleProcess(data, auth="on", model="none") as process:

        def status(key: str, project: str) -> int:
            body = {"project_id": project, "inputs": {"model": "m", "messages": USER}}
            return httpx.post(f"{process.url}/completions/create", json=body, auth=("api", key)).status_code

        assert [status(reader, "team/one"), status(bound, "team/two"), status(bound, "team/one")] == [403, 403, 200]


def test_the_engine_here_answers_by_its_own_name(wire: Wire) -> None:
    made = create(wire, TINY, {"max_tokens": 3, "temperature": 0, "seed": 1})
    response = made["response"]
    assert response["object"] == "chat.completion"
    call = wire.call(made["weave_call_id"])
    assert call["output"] == response
    used = response["usage"]
    shown = call["summary"]["usage"][TINY]
    assert (shown["prompt_tokens"], shown["completion_tokens"]) == (used["prompt_tokens"], used["completion_tokens"])
    lines = stream(wire, TINY, {"max_tokens": 3, "temperature": 0, "seed": 1})
    streamed = wire.call(lines[0]["_meta"]["weave_call_id"])["output"]
    assert streamed["choices"][0]["message"]["content"] == response["choices"][0]["message"]["content"]
    assert streamed["usage"]["completion_tokens"] == used["completion_tokens"]
    assert len(wire.calls()) == 2
