"""A page of another origin in a real browser: allowed by the setting `cors_origins`, and otherwise not."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page

from heddle.inference.served_model import TINY
from tests.support.chat import API_KEY, USER
from tests.support.cli import heddle
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess
from tests.ui.support import Watched

ASK = """async ([url, key, body]) => {
    const headers = {"authorization": `Bearer ${key}`, "content-type": "application/json", "openai-project": "a/b"};
    try {
        const answer = await fetch(url, {method: "POST", headers, body: JSON.stringify(body)});
        return [answer.status, await answer.text(), answer.headers.get("x-heddle-policy")];
    } catch (error) {
        return [0, String(error), null];
    }
}"""


class _EmptyPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>An app</title><link rel=icon href=data:,>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def app() -> Iterator[str]:
    """The origin of an app that is not heddle's."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _EmptyPage) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("keys", with_breadth(["on", "off"]))
def test_a_page_of_a_named_origin(page: Page, watched: Watched, app: str, tmp_path: Path, keys: str) -> None:
    """Its requests with a key, whole and streamed, are answered; the reasons of failures can be read."""
    watched.allow(app)
    watched.allow("request to another host")
    watched.allow("Failed to load resource")
    body = {"model": TINY, "messages": USER, "max_tokens": 4, "temperature": 0}
    data = tmp_path / "data"
    key = heddle("keys", "create", "--data", data, "--user", "ann", "--quiet").stdout.strip()
    with HeddleProcess(data, cors_origins=app, auth="auto" if keys == "off" else "on") as server:
        url = f"{server.url}/v1/chat/completions"
        page.goto(app)
        status, text, policy = page.evaluate(ASK, [url, key, body])
        assert (status, policy) == (200, TINY), text
        status, text, _ = page.evaluate(ASK, [url, key, body | {"stream": True}])
        assert status == 200 and text.endswith("data: [DONE]\n\n")
        status, text, _ = page.evaluate(ASK, [url, key, body | {"temperature": "hot"}])
        assert status == 422 and "temperature" in text
        status, text, _ = page.evaluate(ASK, [f"{server.url}/v1/nothing", key, body])
        assert status == 404 and "Not Found" in text


def test_a_page_of_another_origin(page: Page, watched: Watched, app: str, base_url: str) -> None:
    watched.allow(app)
    watched.allow("request to another host")
    watched.allow("CORS policy|Failed to load resource")
    page.goto(app)
    status, error, _ = page.evaluate(ASK, [f"{base_url}/v1/chat/completions", API_KEY, {}])
    assert (status, error) == (0, "TypeError: Failed to fetch")
