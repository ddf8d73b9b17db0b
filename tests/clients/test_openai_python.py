"""The unmodified newest `openai` package for Python against heddle's own model."""

import re
from pathlib import Path

import httpx
import pytest

from tests.conftest import API_KEY, ROOT, SCENARIOS, Client
from tests.support.chat import Chat
from tests.support.server import HeddleProcess
from tests.support.vllm_server import ENGINE_NAME

VERSION = "3.57.0"

pytestmark = pytest.mark.client


def sdk_of(server: HeddleProcess, project: str, folder: Path) -> Client:
    """The SDK in its own environment; skips where `make clients` has not installed it."""
    python = ROOT / ".clients" / f"openai-{VERSION}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"openai {VERSION} is not installed: run `make clients`")
    return Client([str(python)], SCENARIOS, server.url, project, folder)


@pytest.fixture
def openai(server: HeddleProcess, project: str, tmp_path: Path) -> Client:
    """The SDK against the shared server."""
    return sdk_of(server, project, tmp_path)


def address(client: Client) -> dict[str, str]:
    """The variables that the SDK reads."""
    return {"OPENAI_BASE_URL": f"{client.server}/v1", "OPENAI_API_KEY": API_KEY}


def test_chats(openai: Client) -> None:
    """Plain, streamed, tools, structured outputs, log-probabilities, thirty at once."""
    seen = openai.run("openai_chat.py", **address(openai))
    assert seen["version"] == {"openai": VERSION}
    plain = seen["plain"]
    assert plain["again"] == plain["text"] and plain["text"]
    assert (plain["finish"], plain["policy"], plain["retries"]) == ("length", "heddle-tiny", 0)
    usage = plain["usage"]
    assert usage["completion_tokens"] == 8 and usage["total_tokens"] == usage["prompt_tokens"] + 8
    assert plain["fingerprint"].startswith(f"{ENGINE_NAME}-")
    assert "heddle-tiny" in plain["models"] and plain["model"] == "heddle-tiny"
    assert plain["choices"] == [0, 1, 2]

    streamed = seen["streamed"]
    assert streamed["text"] == plain["text"]
    assert (streamed["final"], streamed["finish"]) == ("Hello there.", "stop")
    assert streamed["usage"]["completion_tokens"] == 8
    assert {"chunk", "content.delta", "content.done"} <= set(streamed["kinds"])

    tools = seen["tools"]
    assert tools["name"] == "weather" and tools["arguments"]["city"] in ("Oslo", "Lima")
    assert not tools["after"] and tools["done"] == ["weather"]
    assert tools["parsed"] == [{"city": "Oslo"}] or tools["parsed"] == [{"city": "Lima"}]
    assert len(set(tools["ids"])) == 2

    structured = seen["structured"]
    for thing in (structured["parsed"], structured["final"]):
        assert set(thing) == {"colour", "count", "tags"} and thing["colour"] in ("red", "blue")
    assert structured["cut"] == "LengthFinishReasonError"
    assert structured["object"] in ("stop", "length")

    logprobs = seen["logprobs"]
    text = bytes(byte for token in logprobs["bytes"] for byte in token).decode("utf-8", "replace")
    assert text.replace("<|im_end|>", "") == plain["text"]
    assert logprobs["top"] == [3] * 8 and logprobs["best"] is True
    assert seen["many"]["texts"] == [plain["text"]]


def test_failures_and_cancelled_streams(openai: Client) -> None:
    """Each status is its own exception class with the field it names; closed streams leave nothing behind."""
    seen = openai.run("openai_errors.py", SCENARIO_PART="failures", **address(openai))
    failures = seen["failures"]
    found = {name: (item["class"], item["status"], item["param"]) for name, item in failures.items()}
    assert found == {
        "bad_request": ("BadRequestError", 400, "top_p"),
        "unprocessable": ("UnprocessableEntityError", 422, "body.temperature"),
        "not_found": ("NotFoundError", 404, "model"),
        "unauthenticated": ("AuthenticationError", 401, None),
        "streamed": ("NotFoundError", 404, "model"),
        "too_long": ("BadRequestError", 400, "max_tokens"),
    }
    assert "zzz" in failures["not_found"]["message"]
    assert seen["cancelled"] == {"closed": 6}
    with Chat(openai.server) as chat:
        figures = chat.until_idle()
        assert figures["aborted"] >= 6 and chat.answer()["choices"]


def test_every_operation_of_the_sdk_is_served_or_refused_with_what_exists_instead(openai: Client) -> None:
    """The operations are read from the SDK's resources."""
    resources = next((ROOT / ".clients" / f"openai-{VERSION}").glob("lib/python*/site-packages/openai/resources"))
    request = re.compile(r'self\._(get|post|put|patch|delete|get_api_list)\(\s*(?:path_template\(\s*)?f?"(/[^"]+)"')
    found = {
        (match[1].upper().removesuffix("_API_LIST"), re.sub(r"{\w+}", "x", match[2]))
        for file in resources.rglob("*.py")
        for match in request.finditer(file.read_text(encoding="utf-8"))
    }
    assert len(found) > 200
    unexplained = []
    with httpx.Client(base_url=openai.server, headers={"authorization": f"Bearer {API_KEY}"}, timeout=60) as http:
        for method, path in sorted(found):
            answer = http.request(method, f"/v1{path}", content=b"{" if method == "POST" else None)
            if answer.status_code in (404, 405) and re.match(
                r"(Not Found|Method Not Allowed): (?!.*Instead: )", _message(answer)
            ):
                unexplained.append((method, path))
            assert answer.status_code < 500, (method, path, answer.text)
    assert unexplained == []


def _message(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


@pytest.mark.thorough
def test_rate_limits_and_retries(openai: Client) -> None:
    """One completion of the project at a time: 429 for a second one, until the SDK's own retries find room."""
    with Chat(openai.server) as chat:
        body = {"kind": "project", "name": openai.project, "concurrency": 1}
        assert chat.client.put("/v1/limits", json=body).status_code == 200
    seen = openai.run("openai_errors.py", SCENARIO_PART="limited", **address(openai))
    refused = seen["limited"]["refused"]
    assert (refused["class"], refused["status"]) == ("RateLimitError", 429)
    assert int(refused["retry_after"]) >= 1
    assert seen["limited"]["patient"] == 200
    retried = seen["retried"]
    assert retried["status"] == 200
    assert retried["attempts"][0] == 429 and retried["attempts"][-1] == 200
    assert retried["retries"] == len(retried["attempts"]) - 1
