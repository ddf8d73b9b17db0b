"""The unmodified npm `openai` package against heddle's own model."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import API_KEY, NODE_PACKAGES, NODE_SCENARIOS, Client
from tests.support.chat import Chat
from tests.support.server import HeddleProcess

pytestmark = pytest.mark.client


@pytest.fixture
def openai(server: HeddleProcess, project: str, tmp_path: Path) -> Client:
    """The package under node; skips where node or the package is missing."""
    if not (NODE_PACKAGES / "openai").exists() or shutil.which("node") is None:
        pytest.skip("node or npm openai is not installed: run `make clients`")
    return Client(["node"], NODE_SCENARIOS, server.url, project, tmp_path)


def test_chats_failures_and_cancelled_streams(openai: Client) -> None:
    """Plain, streamed, tools run by the package, structured outputs, errors as classes, aborted streams."""
    seen = openai.run("openai.js", OPENAI_BASE_URL=f"{openai.server}/v1", OPENAI_API_KEY=API_KEY)
    assert seen["text"] and seen["again"] == seen["text"] and seen["policy"] == "heddle-tiny"
    assert seen["usage"]["completion_tokens"] == 8 and seen["logprobs"] == [2] * 8
    assert seen["choices"] == [0, 1, 2] and "heddle-tiny" in seen["models"]
    streamed = seen["streamed"]
    assert streamed["text"] == streamed["pieces"] == streamed["final"] == seen["text"]
    assert streamed["usage"]["completion_tokens"] == 8
    tools = seen["tools"]
    assert (tools["finish"], tools["name"], tools["after"]) == ("tool_calls", "weather", None)
    assert tools["arguments"]["city"] in ("Oslo", "Lima") and tools["ran"]["city"] in ("Oslo", "Lima")
    assert seen["structured"]["finish"] == "stop"
    assert set(seen["structured"]["content"]) == {"colour", "count"}
    found = {name: (item["class"], item["status"], item["param"]) for name, item in seen["failures"].items()}
    assert found == {
        "badRequest": ("BadRequestError", 400, "top_p"),
        "unprocessable": ("UnprocessableEntityError", 422, "body.temperature"),
        "notFound": ("NotFoundError", 404, "model"),
        "unauthenticated": ("AuthenticationError", 401, None),
        "streamed": ("NotFoundError", 404, "model"),
    }
    assert seen["cancelled"] == {"closed": 5}
    with Chat(openai.server) as chat:
        assert chat.until_idle()["aborted"] >= 5
