"""Custom runtimes: described whole, asked through /completions/create, at no address that the settings do not name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import Wire
from tests.support.provider import FakeProvider
from tests.support.server import HeddleProcess

Json = dict[str, Any]
KEY = "sk-of-the-runtime"


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    """The server behind the runtimes."""
    with FakeProvider() as fake:
        yield fake


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider) -> Iterator[HeddleProcess]:
    """A server that may ask it, with a key and without one."""
    entries = f"open={provider.url}; keyed={provider.url},RUNTIME_TEST_KEY"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUNTIME_TEST_KEY", KEY)
        with HeddleProcess(tmp_path_factory.mktemp("runtimes") / "data", providers=entries) as process:
            yield process


@pytest.fixture
def ask(asking: HeddleProcess, project: str) -> Iterator[Wire]:
    """Raw HTTP to the test's project on that server."""
    wire = Wire(asking.url, project)
    yield wire
    wire.client.close()


def put(wire: Wire, name: str = "box", **body: Any) -> httpx.Response:
    """The answer to describing a runtime."""
    return wire.client.put(f"/v2/{wire.project}/runtimes/{name}", json=body)


def complete(wire: Wire, model: str, **inputs: Any) -> Json:
    """The response of a completion."""
    given = {"model": model, "messages": [{"role": "user", "content": "hello"}], **inputs}
    return dict(wire.post("/completions/create", inputs=given)["response"])


def test_a_runtimes_models_are_asked(ask: Wire, provider: FakeProvider) -> None:
    made = put(ask, base_url=provider.url + "/", runtime_ids=[{"id": "org/model-a"}, {"id": "b", "max_tokens": 9}],
               headers={"x-team": "blue"}, api_key_secret="RUNTIME_TEST_KEY")  # fmt: skip
    assert made.status_code == 200, made.text
    assert made.json() == {
        "name": "box", "base_url": provider.url, "api_key_secret": "RUNTIME_TEST_KEY", "headers": {"x-team": "***"},
        "runtime_ids": [
            {"id": "org/model-a", "max_tokens": 4096, "playground_id": "custom::box::org/model-a"},
            {"id": "b", "max_tokens": 9, "playground_id": "custom::box::b"},
        ],
    }  # fmt: skip
    listed = ask.client.get(f"/v2/{ask.project}/runtimes").json()
    assert listed == {"runtimes": [made.json()]}
    answer = complete(ask, "custom::box::org/model-a", extra_headers={"x-more": "1"})
    assert answer["choices"][0]["message"]["content"] == "HELLO"
    sent = provider.requests[-1]
    assert sent["body"]["model"] == "org/model-a"
    assert sent["headers"]["Authorization"] == f"Bearer {KEY}"
    assert (sent["headers"]["x-team"], sent["headers"]["x-more"]) == ("blue", "1")
    # Who reads the description and writes it back changes nothing of what it hides.
    put(ask, base_url=provider.url, runtime_ids=[{"id": "b", "max_tokens": 9}], headers={"x-team": "***"},
        api_key_secret="RUNTIME_TEST_KEY")  # fmt: skip
    assert "9" in complete(ask, "custom::box::b", max_tokens=10)["error"]
    assert "choices" in complete(ask, "custom::box::b", max_tokens=9)
    assert provider.requests[-1]["headers"]["x-team"] == "blue"


def test_a_later_description_replaces_the_earlier_one(ask: Wire, provider: FakeProvider) -> None:
    put(ask, base_url=provider.url, runtime_ids=[{"id": "a"}, {"id": "b"}], headers={"x-old": "1"})
    made = put(ask, base_url=provider.url, runtime_ids=[{"id": "b"}, {"id": "c"}])
    assert (made.json()["headers"], made.json()["api_key_secret"]) == ({}, None)
    assert complete(ask, "custom::box::a") == {"error": "The runtime box has no model 'a'"}
    assert "choices" in complete(ask, "custom::box::c")
    assert "Authorization" not in provider.requests[-1]["headers"]
    assert "x-old" not in provider.requests[-1]["headers"]
    assert put(ask, base_url=provider.url, runtime_ids=[]).json()["runtime_ids"] == []
    assert "error" in complete(ask, "custom::box::c")


def test_only_addresses_and_keys_of_the_settings_work(ask: Wire, provider: FakeProvider) -> None:
    before = len(provider.requests)
    put(ask, base_url="http://127.0.0.1:9/v1", runtime_ids=[{"id": "a"}])
    assert "setting 'providers'" in complete(ask, "custom::box::a")["error"]
    put(ask, base_url=provider.url, runtime_ids=[{"id": "a"}], api_key_secret="PATH")
    assert "has no key 'PATH'" in complete(ask, "custom::box::a")["error"]
    assert len(provider.requests) == before


def test_runtimes_belong_to_their_project(ask: Wire, provider: FakeProvider) -> None:
    put(ask, base_url=provider.url, runtime_ids=[{"id": "a"}])
    other = Wire(ask.url, "somebody/else")
    assert other.client.get("/v2/somebody/else/runtimes").json() == {"runtimes": []}
    assert "error" in complete(other, "custom::box::a")


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("box", {}, 422),
        ("box", {"base_url": "http://x/v1"}, 422),
        ("box", {"base_url": "http://x/v1", "runtime_ids": [{"id": ""}]}, 422),
        ("box", {"base_url": "http://x/v1", "runtime_ids": [{"id": "a b"}]}, 422),
        ("box", {"base_url": "http://x/v1", "runtime_ids": [{"id": "a", "max_tokens": 0}]}, 422),
        ("box", {"base_url": "http://x/v1", "runtime_ids": [], "headers": {"x": 1}}, 422),
        ("a%3A%3Ab", {"base_url": "http://x/v1", "runtime_ids": []}, 422),
        ("box", {"base_url": "file:///etc/passwd", "runtime_ids": []}, 400),
        ("box", {"base_url": "", "runtime_ids": []}, 400),
        ("box", {"base_url": "http://x/v1", "runtime_ids": [{"id": "a"}, {"id": "a"}]}, 400),
        ("box", {"base_url": "http://x/v1", "runtime_ids": [], "headers": {"authorization": "x"}}, 400),
        ("box", {"base_url": "http://x/v1", "runtime_ids": [], "headers": {"x": "a\r\nb"}}, 400),
    ],
)
def test_what_is_no_runtime_is_refused(ask: Wire, name: str, body: Json, status: int) -> None:
    answer = put(ask, name, **body)
    assert answer.status_code == status, answer.text
    assert answer.json().keys() & {"reason", "detail"}
    assert ask.client.get(f"/v2/{ask.project}/runtimes").json() == {"runtimes": []}


def test_a_runtime_outlives_a_restart(tmp_path: Path, provider: FakeProvider) -> None:
    server = HeddleProcess(tmp_path / "data", providers=f"open={provider.url}").start()
    try:
        wire = Wire(server.url, "team/box")
        assert put(wire, base_url=provider.url, runtime_ids=[{"id": "a"}]).status_code == 200
        server.kill()
        server.start()
        assert "choices" in complete(wire, "custom::box::a")
    finally:
        server.kill()
