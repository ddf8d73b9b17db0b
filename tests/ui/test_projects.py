"""The list of projects: what an empty server teaches, what a full one shows, making a project."""

import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from heddle.wire import times
from tests.support.server import HeddleProcess
from tests.ui.support import Watched, look

LONG = "a-project-whose-name-somebody-made-very-long-" + "because-nobody-stopped-them-" * 5 + "really"
RIGHT_TO_LEFT = "مشروع-🧶"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server of its own, as others fill the shared one."""
    with HeddleProcess(tmp_path_factory.mktemp("projects") / "data", model="none", training="off") as process:
        yield process


@pytest.fixture(autouse=True)
def watched(page: Page, own: HeddleProcess) -> Iterator[Watched]:
    """Fail on errors of the page, as everywhere."""
    watched = Watched(page, own.url)
    yield watched
    assert watched.problems() == []


def write(url: str, project: str, count: int, errors: int = 0) -> None:
    """Store calls, some of which failed."""
    at = "2020-01-01T00:00:00Z" if project.endswith("old") else times.to_iso(times.now())
    batch = [
        {
            "project_id": project,
            "id": str(uuid.uuid4()),
            "trace_id": str(uuid.uuid4()),
            "op_name": "answer",
            "started_at": at,
            "ended_at": at,
            "inputs": {},
            "attributes": {},
            "output": None,
            "exception": "ValueError: no" if index < errors else None,
            "summary": {"usage": {"gpt-4o": {"prompt_tokens": 1000, "completion_tokens": 500, "requests": 1}}},
        }
        for index in range(count)
    ]
    entity, name = project.split("/")
    answer = httpx.post(f"{url}/v2/{entity}/{name}/calls/complete", json={"batch": batch})
    assert answer.status_code == 200, answer.text


@pytest.mark.thorough
def test_an_empty_server_teaches_lines_that_work(page: Page, own: HeddleProcess) -> None:
    page.goto(f"{own.url}/")
    expect(page.get_by_role("heading", name="Trace your first call")).to_be_visible()
    look(page, "projects-empty", narrow=True)
    lines = page.locator("pre").inner_text().splitlines()
    assert len(lines) == 3
    _, exported, program = lines
    assert exported.split()[1] == f"WANDB_BASE_URL={own.url}"
    environment = os.environ | dict(part.split("=", 1) for part in exported.split()[1:])
    environment["PATH"] = f"{os.path.dirname(sys.executable)}:{environment['PATH']}"
    done = subprocess.run(program, shell=True, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    expect(page.get_by_role("row", name="me / first 1")).to_be_visible(timeout=15_000)
    page.get_by_role("link", name="me / first").click()
    expect(page.get_by_role("heading", name="Overview", level=1)).to_be_visible()


def test_projects_show_what_happened_in_them(page: Page, own: HeddleProcess) -> None:
    write(own.url, "acme/shop", 4, errors=1)
    write(own.url, "acme/old", 1)
    write(own.url, f"acme/{LONG}", 1)
    write(own.url, f"acme/{RIGHT_TO_LEFT}", 1)
    page.goto(f"{own.url}/")
    row = page.get_by_role("row", name="acme / shop")
    expect(row).to_contain_text("25.0 %")
    expect(row).to_contain_text("just now")
    expect(row).to_contain_text("$0.03")
    expect(page.get_by_role("row", name="acme / old")).to_contain_text("01 Jan 2020")
    look(page, "projects", narrow=True)
    page.get_by_role("searchbox", name="Search projects").fill("sho")
    expect(page.get_by_role("row", name="acme / old")).to_be_hidden()
    page.get_by_role("searchbox", name="Search projects").fill("")
    page.get_by_role("columnheader", name="Calls").get_by_role("button").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("shop")
    page.reload()
    expect(page.get_by_role("columnheader", name="Calls")).to_have_attribute("aria-sort", "descending")


def test_a_project_is_made(page: Page, own: HeddleProcess) -> None:
    page.goto(f"{own.url}/")
    page.get_by_role("button", name="New project").click()
    dialog = page.get_by_role("dialog", name="New project")
    page.get_by_label("Name").fill("acme/experiments")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="No traces yet")).to_be_visible()
    listed = httpx.get(f"{own.url}/_ui/api/projects").json()["projects"]
    assert "acme/experiments" in [project["id"] for project in listed]


def test_the_landing_page_has_lines_for_each_client_and_says_when_the_first_call_has_come(
    page: Page, own: HeddleProcess
) -> None:
    project = "shop/first"
    page.goto(f"{own.url}/{project}/weave")
    tabs = page.get_by_role("tablist", name="Client").get_by_role("tab")
    expect(tabs).to_have_text(["Python", "JavaScript", "OpenTelemetry", "OpenAI", "LangChain", "Anthropic", "Langfuse"])
    for name in tabs.all_inner_texts():
        tabs.filter(has_text=name).first.click()
        expect(page.locator("pre")).to_contain_text(own.url)
        expect(page.locator("pre")).to_contain_text(project)
    look(page, "landing", narrow=True)
    expect(page.get_by_text("Waiting for the first call")).to_be_visible()
    _expect_announced(page, own.url, project)
    expect(page.get_by_role("heading", name="No traces yet")).to_be_hidden()


def _expect_announced(page: Page, url: str, project: str) -> None:
    """Write the first call and see the message, which goes by itself, on a busy machine before it is looked for."""
    page.evaluate(
        """() => {
          window.shown = [];
          new MutationObserver(() => window.shown.push(document.body.innerText))
            .observe(document.body, { childList: true, subtree: true });
        }"""
    )
    write(url, project, 1)
    come = f"Live: the first call of {project} has arrived"
    page.wait_for_function("text => window.shown.some((one) => one.includes(text))", arg=come)


def test_the_overview_announces_the_first_call_where_it_sees_it_before_the_lines(
    page: Page, own: HeddleProcess
) -> None:
    project = "shop/other"
    page.route("**/calls/query_stats", lambda route: route.fulfill(json={"count": 0}))
    page.goto(f"{own.url}/{project}/weave")
    expect(page.get_by_text("Waiting for the first call")).to_be_visible()
    _expect_announced(page, own.url, project)


def test_the_example_project_is_loaded_and_deleted_with_a_click_each(page: Page, own: HeddleProcess) -> None:
    page.goto(f"{own.url}/shop/fresh/weave")
    page.get_by_role("button", name="Load the example project").click()
    expect(page).to_have_url(re.compile("/shop/example/weave"))
    expect(page.get_by_text("This is the example project")).to_be_visible()
    page.goto(f"{own.url}/shop/example/weave/traces")
    expect(page.get_by_text("30 of 30 calls")).to_be_visible()
    page.goto(f"{own.url}/shop/example/weave/evaluations")
    expect(page.get_by_role("link", name="gpt-4o-mini", exact=True)).to_be_visible()
    page.goto(f"{own.url}/shop/example/weave")
    page.get_by_role("button", name="Delete it").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Projects")).to_be_visible()
    expect(page.get_by_role("row", name="shop / example")).to_have_count(0)
