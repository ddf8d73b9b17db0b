"""The web interface in Debian's Chromium: one browser per worker, a clean context per test, no error goes unseen."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.support.server import HeddleProcess
from tests.ui.support import Watched

# What is waited for comes; on a busy machine later than a person would wait.
expect.set_options(timeout=20_000)
# A page costs the shell, which has no windows, an eighth of what it costs Chromium.
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium-headless-shell") or shutil.which("chromium")
MISSING = "no Chromium: apt-get install chromium-headless-shell, or set CHROMIUM"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say why nothing of this folder runs where there is no browser; on CI its absence is a failure."""
    if CHROMIUM or os.environ.get("CI"):
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """Debian's browser, as root in a container."""
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    return {**browser_type_launch_args, "executable_path": CHROMIUM, "args": flags}


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    """A laptop's window; the clipboard may be written."""
    return {
        **browser_context_args,
        "viewport": {"width": 1440, "height": 860},
        "reduced_motion": "reduce",
        "permissions": ["clipboard-read", "clipboard-write"],
    }


@pytest.fixture(scope="session")
def base_url(server: HeddleProcess) -> str:
    """The address of the worker's server, so that `page.goto("/…")` works."""
    return server.url


@pytest.fixture(autouse=True)
def watched(page: Page, base_url: str) -> Iterator[Watched]:
    """Fail a test on any error of the page, any error in its console, and any request to another host.

    A test that provokes an error says so: `watched.allow("404")`.
    """
    watched = Watched(page, base_url)
    yield watched
    assert watched.problems() == []
