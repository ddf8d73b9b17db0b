"""What tests of the web interface share: watching for errors, axe, screens, budgets."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import CDPSession, Page, expect

ROOT = Path(__file__).parent.parent.parent
AXE = ROOT / ".node" / "node_modules" / "axe-core" / "axe.min.js"
SCREENS = Path(os.environ["HEDDLE_SCREENS"]) if "HEDDLE_SCREENS" in os.environ else None
"""Where screens are kept; `make test-all` names a folder."""
# Without preload: axe copies imported style sheets into style elements, which the page's policy refuses, loudly.
_AXE_RUN = """async (rules) => {
    const html = (nodes) => nodes.slice(0, 4).map((node) => node.html.slice(0, 200)).join(" | ");
    const options = { preload: false, resultTypes: ["violations"], ...(rules.length ? { runOnly: rules } : {}) };
    return (await axe.run(options)).violations.map((found) => `${found.id} (${found.impact}): ${html(found.nodes)}`);
}"""


class Watched:
    """Collects what should not happen on a page."""

    def __init__(self, page: Page, base_url: str) -> None:
        self._found: list[str] = []
        self._allowed: list[str] = []
        page.on("pageerror", lambda error: self._found.append(f"page error: {error}"))
        page.on("console", lambda message: self._console(message.type, f"{message.text} {message.location}"))
        page.on("request", lambda request: self._request(request.url, base_url))

    def _console(self, kind: str, text: str) -> None:
        if kind == "error":
            self._found.append(f"console: {text}")

    def _request(self, url: str, base_url: str) -> None:
        if not url.startswith((base_url, "data:", "blob:")):
            self._found.append(f"request to another host: {url}")

    def allow(self, pattern: str) -> None:
        """Errors that hold this pattern are part of the test."""
        self._allowed.append(pattern)

    def problems(self) -> list[str]:
        """What was found and is not allowed."""
        return [text for text in self._found if not any(re.search(pattern, text) for pattern in self._allowed)]

    def take(self) -> list[str]:
        """The same, told once: for tests that open many pages and say which of them failed."""
        found = self.problems()
        self._found.clear()
        return found


def look(page: Page, name: str, narrow: bool = False) -> None:
    """Run axe on the page once it has loaded; where screens are kept, in light and in dark, with a screen of both.

    Without screens light is enough: tests/unit/test_contrast.py holds the colours of both themes.

    Raises AssertionError with what axe found.

    With `narrow` a third screen shows it 900 px wide.
    """
    assert AXE.exists(), "axe-core is not installed: run `make clients`"
    expect(page.locator("h1").first).to_be_attached()
    expect(page.locator("main .skeleton")).to_have_count(0)
    found = {}
    for theme in ("light", "dark") if SCREENS else ("light",):
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        keep_screen(page, f"{name}-{theme}")
        # The second theme changes nothing but colours.
        found[theme] = axe(page) if theme == "light" else axe(page, ["color-contrast"])
    if narrow:
        page.set_viewport_size({"width": 900, "height": 860})
        keep_screen(page, f"{name}-narrow")
        assert page.evaluate("document.documentElement.scrollWidth") <= 900, "the page is wider than its window"
        page.set_viewport_size({"width": 1440, "height": 860})
    page.evaluate("() => { document.documentElement.dataset.theme = 'light'; }")
    assert not any(found.values()), found


def keep_screen(page: Page, name: str) -> None:
    """Keep what the page looks like, where screens are kept."""
    if SCREENS is not None:
        SCREENS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENS / f"{name}.jpg", type="jpeg", quality=85)


def axe(page: Page, rules: Sequence[str] = ()) -> list[str]:
    """The violations that axe finds on the page as it is; of all its rules, or of some."""
    if not page.evaluate("typeof axe !== 'undefined'"):
        # Through the evaluator, as the page's own policy lets no foreign script in.
        page.evaluate(AXE.read_text(encoding="utf-8"))
    return list(page.evaluate(_AXE_RUN, list(rules)))


class Budget:
    """Counts what a page costs from now on: requests, bytes on the wire, main-thread seconds, DOM nodes."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._session: CDPSession = page.context.new_cdp_session(page)
        self._bytes: dict[str, int] = {}
        self._session.send("Network.enable")
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self._session.on("Network.requestWillBeSent", lambda event: self._sent(event["requestId"]))
        self._session.on("Network.loadingFinished", self._finished)
        self._start = self._task_seconds()

    def _sent(self, request: str) -> None:
        self._bytes.setdefault(request, 0)

    def _finished(self, event: dict[str, Any]) -> None:
        self._bytes[event["requestId"]] = int(event["encodedDataLength"])

    def _metrics(self) -> dict[str, float]:
        return {item["name"]: item["value"] for item in self._session.send("Performance.getMetrics")["metrics"]}

    def _task_seconds(self) -> float:
        return self._metrics()["TaskDuration"]

    @property
    def requests(self) -> int:
        """How many requests were sent, those that the cache answered included."""
        return len(self._bytes)

    @property
    def bytes(self) -> int:
        """What came over the wire, headers included."""
        return sum(self._bytes.values())

    @property
    def seconds(self) -> float:
        """The CPU seconds of the page's main thread."""
        return self._task_seconds() - self._start

    @property
    def nodes(self) -> int:
        """The elements in the document."""
        return int(self._page.evaluate("document.querySelectorAll('*').length"))
