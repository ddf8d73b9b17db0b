"""POST /image/create against a provider on this machine: what is stored, what is refused, what is never loaded."""

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import Wire
from tests.support.provider import PICTURE, FakeProvider
from tests.support.server import HeddleProcess

Json = dict[str, Any]
CONTENT = {"type": "weave.type_wrappers.Content.content.Content"}


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    """A provider that makes images."""
    with FakeProvider() as fake:
        yield fake


@pytest.fixture(scope="module")
def drawing(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider) -> Iterator[HeddleProcess]:
    """A server that asks it, also for models without a provider's name."""
    entries = f"fake={provider.url}; unset={provider.url},NO_SUCH_KEY; dead=http://127.0.0.1:9/v1"
    folder = tmp_path_factory.mktemp("drawing")
    with HeddleProcess(folder / "data", providers=entries, image_provider="fake") as process:
        yield process


@pytest.fixture
def draw(drawing: HeddleProcess, project: str) -> Iterator[Wire]:
    """Raw HTTP to the test's project on that server."""
    wire = Wire(drawing.url, project)
    yield wire
    wire.client.close()


def create(wire: Wire, model: str, prompt: str = "a cat", **body: Any) -> Json:
    """The answer of /image/create."""
    inputs = {"model": model, "prompt": prompt, **body.pop("inputs", {})}
    return dict(wire.post("/image/create", inputs=inputs, **body))


def test_images_become_stored_content_and_a_call(draw: Wire, provider: FakeProvider) -> None:
    made = create(draw, "fake/picture", inputs={"n": 2})
    sent = provider.requests[-1]
    assert sent["path"] == "/v1/images/generations"
    assert sent["body"] == {"model": "picture", "prompt": "a cat", "n": 2}
    response = made["response"]
    assert (response["created"], response["model"]) == (1, "picture")
    assert response["usage"] == {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    assert len(response["data"]) == 2
    image = response["data"][0]
    assert image["revised_prompt"] == "A a cat"
    assert (image["b64_json"]["_type"], image["b64_json"]["weave_type"]) == ("CustomWeaveType", CONTENT)
    files = image["b64_json"]["files"]
    assert draw.file(files["content"]) == PICTURE
    described = json.loads(draw.file(files["metadata.json"]))
    assert (described["mimetype"], described["size"], described["extension"]) == ("image/png", len(PICTURE), ".png")
    call = draw.call(made["weave_call_id"])
    assert call["op_name"] == "weave.image_generation_create"
    assert call["inputs"] == {"model": "fake/picture", "prompt": "a cat", "n": 2}
    assert call["output"] == response
    assert call["summary"]["usage"]["picture"]["prompt_tokens"] == 5
    assert call["summary"]["usage"]["picture"]["completion_tokens"] == 7
    assert (call["exception"], call["ended_at"] is not None) == (None, True)


def test_a_model_without_a_provider_goes_to_the_setting(draw: Wire, provider: FakeProvider) -> None:
    made = create(draw, "as-data-url", track_llm_call=False)
    assert made["weave_call_id"] is None
    assert provider.requests[-1]["body"]["model"] == "as-data-url"
    assert draw.file(made["response"]["data"][0]["url"]["files"]["content"]) == PICTURE
    assert draw.calls() == []


def test_an_address_at_the_provider_is_loaded(draw: Wire, provider: FakeProvider) -> None:
    image = create(draw, "fake/as-url")["response"]
    assert provider.loaded[-1] == "/picture.png"
    assert draw.file(image["data"][0]["url"]["files"]["content"]) == PICTURE
    assert "usage" not in image
    (call,) = draw.calls()
    assert call["summary"].get("usage", {}) == {}


class Inner:
    """A server on this machine that nobody outside should be able to read."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        inner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                inner.requests.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(PICTURE)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server.server_port)


@pytest.fixture(scope="module")
def inner() -> Iterator[Inner]:
    """The inner server."""
    found = Inner()
    yield found
    found.server.shutdown()


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:{port}/x.png", "http://localhost:{port}/x.png", "http://[::1]:{port}/x.png",
        "http://[::ffff:127.0.0.1]:{port}/x.png", "http://2130706433:{port}/x.png", "http://0.0.0.0:{port}/x.png",
        "http://0x7f.1:{port}/x.png", "http://169.254.169.254/latest/meta-data", "http://10.0.0.1/x.png",
        "http://[fe80::1]/x.png", "http://user@127.0.0.1:{port}/x.png", "file:///etc/passwd",
        "ftp://127.0.0.1:{port}/x", "http://127.0.0.1:99999/x", "//127.0.0.1:{port}/x.png", "nothing",
    ],
)  # fmt: skip
def test_an_address_that_only_this_machine_reaches_is_never_loaded(
    draw: Wire, provider: FakeProvider, inner: Inner, address: str
) -> None:
    provider.inner_url = address.format(port=inner.port)
    made = create(draw, "fake/as-inner-url")
    assert list(made["response"]) == ["error"], made
    assert "URL" in made["response"]["error"]
    assert inner.requests == []
    call = draw.call(made["weave_call_id"])
    assert call["exception"] == made["response"]["error"]


@pytest.mark.parametrize(
    ("model", "inputs", "says"),
    [
        ("fake/model-missing", {}, "fake returned 404: no such model"),
        ("fake/model-html", {}, "fake did not return valid JSON"),
        ("fake/model-moved", {}, "fake returned 302"),
        ("fake/empty", {}, "The provider returned no images"),
        ("fake/as-text", {}, "other than an image"),
        ("fake/as-noise", {}, "is not base64"),
        ("fake/as-lost-url", {}, "The image URL returned 404"),
        ("dead/picture", {}, "dead cannot be reached"),
        ("unset/picture", {}, "NO_SUCH_KEY"),
        ("custom::nobody::model", {}, "Could not find"),
        ("", {}, "no model specified"),
        ("fake/picture", {"prompt": " "}, "no prompt specified"),
        ("fake/picture", {"n": 0}, "n must be from 1 to 10"),
        ("fake/picture", {"n": 11}, "n must be from 1 to 10"),
    ],
)
def test_failures_are_answers(draw: Wire, model: str, inputs: Json, says: str) -> None:
    made = create(draw, model, inputs=inputs)
    assert list(made["response"]) == ["error"]
    assert says in made["response"]["error"]
    call = draw.call(made["weave_call_id"])
    assert (call["exception"], call["output"]) == (made["response"]["error"], made["response"])


def test_without_a_provider_the_answer_says_how_to_name_one(wire: Wire) -> None:
    made = create(wire, "gpt-image-1")
    assert made["response"]["error"].startswith("no image model configured")
    wrong = wire.client.post("/image/create", json={"project_id": wire.project, "inputs": {"model": "m"}})
    assert wrong.status_code == 422
    assert wrong.json()["detail"][0]["loc"] == ["body", "inputs", "prompt"]


def test_images_are_counted(draw: Wire) -> None:
    create(draw, "fake/picture")
    headers = {"authorization": "Bearer key"}
    answer = httpx.get(draw.url + "/v1/usage", params={"project": draw.project}, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    (row,) = answer.json()["data"]
    assert row["model"] == "picture"
    assert (row["prompt_tokens"], row["completion_tokens"]) == (5, 7)
