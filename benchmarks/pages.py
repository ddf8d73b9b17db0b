"""What a reader waits for in a browser: first rows, frames while scrolling, bytes of a first visit.

    python benchmarks/pages.py                       # 1,000,000 calls and a trace of 20,000 spans
    python benchmarks/pages.py --calls 50000 --only scroll

Times are those of Chromium without a graphics card on this machine: every pixel is drawn by the processor, so a frame
takes longer here than anywhere else. Each visit has a browser context of its own, so that nothing is cached.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks import support
from tests.conftest import Wire
from tests.soak import test_ui_million
from tests.support.bigtrace import BATCH, big_trace
from tests.ui.support import Budget

PARTS = ("list", "trace", "scroll", "bytes")
SPANS = 20_000
VISITS = 5
SECONDS = 4
"""How long each list is scrolled."""
# A wheel turned evenly, and how long the browser took from frame to frame meanwhile.
_SCROLL = """async ([selector, seconds]) => {
    const box = document.querySelector(selector);
    const frames = [];
    let last = performance.now();
    const end = last + seconds * 1000;
    for (;;) {
        await new Promise(requestAnimationFrame);
        const now = performance.now();
        frames.push(now - last);
        last = now;
        if (now > end) return frames.slice(2);
        box.scrollTop += 120;
    }
}"""


@contextmanager
def opened(browser: Browser, url: str) -> Iterator[Page]:
    """A page of a context that has cached nothing."""
    context = browser.new_context(base_url=url, viewport={"width": 1440, "height": 860})
    yield context.new_page()
    context.close()


def waited(browser: Browser, url: str, path: str, until: Callable[[Page], Any]) -> list[float]:
    """Seconds of visits to a page from its address to what is waited for."""
    taken = []
    for _ in range(VISITS):
        with opened(browser, url) as page:
            began = time.perf_counter()
            page.goto(path, wait_until="commit")
            until(page)
            taken.append(time.perf_counter() - began)
    return taken


def frames(browser: Browser, url: str, path: str, box: str) -> list[float]:
    """Milliseconds from frame to frame while a list is scrolled."""
    with opened(browser, url) as page:
        page.goto(path)
        page.locator(f"{box} [role=row]").first.wait_for()
        page.wait_for_load_state("networkidle")
        return list(page.evaluate(_SCROLL, [box, SECONDS]))


def weight(browser: Browser, url: str, path: str) -> tuple[int, int]:
    """Bytes on the wire and requests of a first visit."""
    with opened(browser, url) as page:
        budget = Budget(page)
        page.goto(path)
        page.wait_for_load_state("networkidle")
        return budget.bytes, budget.requests


def streamed(url: str) -> int:
    """Bytes of the answer with the spans of the trace, compressed."""
    headers = {"accept-encoding": "gzip"}
    with httpx.stream("GET", f"{url}/_ui/api/trace/big/calls/spans", headers=headers, timeout=60) as answer:
        return sum(len(part) for part in answer.iter_raw())


def fill(wire: Wire, calls: int) -> None:
    """The calls of the list, and the trace."""
    test_ui_million.CALLS = calls
    test_ui_million.fill(wire)
    spans = big_trace(wire.project, "spans", SPANS)
    for first in range(0, len(spans), BATCH):
        answer = wire.client.post(f"/v2/{wire.project}/calls/complete", json={"batch": spans[first : first + BATCH]})
        assert answer.status_code == 200, answer.text


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--only", choices=PARTS, action="append")
    chosen = parser.parse_args()
    parts = chosen.only or PARTS
    with tempfile.TemporaryDirectory(prefix="heddle-pages-") as folder, support.Heddle(Path(folder) / "data") as server:
        wire = Wire(server.url, "big/calls")
        wire.client.timeout = 600
        fill(wire, chosen.calls)
        assert server.process is not None
        support.settle(server.process.pid)
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=flags)
            report(browser, server.url, chosen.calls, parts)
            browser.close()


def report(browser: Browser, url: str, calls: int, parts: tuple[str, ...] | list[str]) -> None:
    """Print what each part takes."""
    project = "/big/calls/weave"
    rows: list[list[Any]] = []

    def shown(page: Page) -> None:
        page.locator("tbody tr").first.wait_for()

    def whole(page: Page) -> None:
        page.locator(f".tracerows[aria-rowcount='{SPANS}'] [role=row]").first.wait_for()

    def seconds(name: str, taken: list[float], goal: str) -> None:
        rows.append([name, f"{statistics.median(taken):.2f} s", f"{max(taken):.2f} s", goal])

    if "list" in parts:
        for name, query in (("all calls", "?roots=0"), ("traces", "")):
            taken = waited(browser, url, f"{project}/traces{query}", shown)
            seconds(f"list of {calls:,}: {name}", taken, "≤ 0.6 s")
    if "trace" in parts:
        seconds(f"trace of {SPANS:,} spans, whole", waited(browser, url, f"{project}/traces/spans", whole), "≤ 1.5 s")
    if "scroll" in parts:
        taken = sorted(frames(browser, url, f"{project}/traces/spans", ".tracerows"))
        middle, late = (f"{taken[int(share * len(taken))]:.0f} ms" for share in (0.5, 0.95))
        rows.append([f"frames while {SPANS:,} spans are scrolled ({len(taken)})", middle, f"p95 {late}", "p95 ≤ 35 ms"])
    if "bytes" in parts:
        for name, path, most in (("overview", project, 150), ("calls", f"{project}/traces", 150)):
            size, requests = weight(browser, url, path)
            rows.append([f"first visit: {name}", f"{size / 1024:.0f} KiB", f"{requests} requests", f"≤ {most} KiB"])
        rows.append([f"answer of {SPANS:,} spans", f"{streamed(url) / 1024:.0f} KiB", "1 request", "≤ 450 KiB"])
    support.print_table("pages in Chromium", ["page", "median", "most", "goal"], rows)


if __name__ == "__main__":
    main()
