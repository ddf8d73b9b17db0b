"""The engine's page: figures that move while somebody chats, usage by model, limits, and what a bare server teaches."""

import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.chat import API_KEY
from tests.support.server import HeddleProcess
from tests.ui.support import Watched, look


def chat(url: str, project: str, count: int) -> None:
    """So many short chats in a project."""
    headers = {"authorization": f"Bearer {API_KEY}", "openai-project": project}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        for index in range(count):
            body = {"model": "heddle-tiny", "messages": [{"role": "user", "content": f"say {index}"}], "max_tokens": 8}
            assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_figures_move_while_somebody_chats(page: Page, server: HeddleProcess) -> None:
    project = f"team/chats-{uuid.uuid4().hex[:8]}"
    page.goto(f"/{project}/weave/inference")
    expect(page.get_by_role("heading", name="heddle-tiny")).to_be_visible()
    expect(page.get_by_text("No requests in this time range")).to_be_visible()
    with ThreadPoolExecutor(1) as pool:
        # In a thread of its own, since the page's events run in this one.
        pool.submit(chat, server.url, project, 3).result()
    expect(page.get_by_role("status").first).to_have_text("ready")
    expect(page.get_by_text(re.compile("^[1-9][0-9,]* since the start$"))).to_be_visible()
    page.reload()
    row = page.get_by_role("table", name="Usage by model").get_by_role("row", name=re.compile("^heddle-tiny"))
    expect(row).to_contain_text("3")
    look(page, "inference", narrow=True)


@pytest.mark.thorough
def test_a_limit_is_set(page: Page, server: HeddleProcess) -> None:
    project = f"team/limited-{uuid.uuid4().hex[:8]}"
    page.goto("/inference")
    page.get_by_role("button", name="Set limit").click()
    page.get_by_label("Name").fill(project)
    page.get_by_label("Concurrent completions").fill("5")
    look(page, "inference-limit")
    page.get_by_role("button", name="Save").click()
    row = page.get_by_role("table", name="Limits").get_by_role("row", name=project)
    expect(row).to_contain_text("5")
    expect(row).to_contain_text("no limit")


@pytest.mark.thorough
class TestWithoutAModel:
    """A server that serves no model."""

    @pytest.fixture(scope="class")
    def bare(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
        """It."""
        with HeddleProcess(tmp_path_factory.mktemp("bare") / "data", model="none", training="off") as process:
            yield process

    @pytest.fixture(autouse=True)
    def watched(self, page: Page, bare: HeddleProcess) -> Iterator[Watched]:
        """Fail on errors of the page, as everywhere."""
        watched = Watched(page, bare.url)
        yield watched
        assert watched.problems() == []

    def test_it_teaches(self, page: Page, bare: HeddleProcess) -> None:
        page.goto(f"{bare.url}/inference")
        expect(page.get_by_role("heading", name="This server serves no model")).to_be_visible()
        expect(page.locator("pre").nth(1)).to_contain_text(f"{bare.url}/v1/chat/completions")
        look(page, "inference-none")
