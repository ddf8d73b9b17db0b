"""Every page at the widths of a phone and of tablets, with a finger: nothing cut, out of reach or too small."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page

from tests.conftest import Wire
from tests.support import shop
from tests.support.server import HeddleProcess
from tests.ui.support import AXE, Budget, Watched, axe, keep_screen
from tests.ui.test_safety import NAMES, addresses, visit

pytestmark = pytest.mark.thorough

SIZES = {390: 844, 768: 1024, 1024: 768}
GEOMETRY = (Path(__file__).parent / "geometry.js").read_text(encoding="utf-8")
MORE = {
    "trace": ["?call={call}", "?view=flame", "?view=chat"],
    "settings": ["?tab=server"],
    "calls": ["?s=order&roots=0"],
}
"""More addresses of a page, beside the plain one."""
OPENERS = re.compile(
    "^(New .*[^t]$|Add (a|to|calls|price) |Import|Columns|Views|Export$|Load|Edit|Built-in|Score calls|Other t|More)"
)
"""Buttons that open something above the page and do nothing yet."""
MOST_BYTES = 150 * 1024
MOST_TRACE_BYTES = 450 * 1024
"""A trace comes with the calls that it shows."""
_STILL = "() => document.getAnimations().every((animation) => animation.playState !== 'running')"
_ABOVE = "dialog[open], .menu:popover-open, .popover"


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    """A phone's window and a finger."""
    return {**browser_context_args, "viewport": {"width": 390, "height": 844}, "has_touch": True}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server whose alerts may be sent, to nobody."""
    with HeddleProcess(tmp_path_factory.mktemp("widths") / "data", alert_webhooks="http://127.0.0.1:9") as process:
        yield process


@pytest.fixture(scope="module")
def filled(serving: HeddleProcess) -> Iterator[shop.Shop]:
    """The shop's project."""
    wire = Wire(serving.url, "acme/support-bot")
    yield shop.write(wire)
    wire.client.close()


@pytest.fixture(autouse=True)
def watched(page: Page, serving: HeddleProcess) -> Iterator[Watched]:
    """Fail on errors of the page, as everywhere."""
    watched = Watched(page, serving.url)
    watched.allow("status of 404 .*/improvements/read")
    yield watched
    assert watched.problems() == []


def places(filled: shop.Shop) -> Iterator[tuple[str, str]]:
    """A name for each address, and the address."""
    seen: dict[str, int] = {}
    for shown, path in addresses(filled.project, filled.parts, NAMES | shop.NAMES):
        if "?" in path and shown != "compare":
            continue
        told = path.replace("visit-of-a-customer", "conversation-about-a-parcel") if shown == "conversation" else path
        extras = MORE.get(shown, []) if "?" not in path else []
        for address in (told, *(told + extra.format(**filled.parts) for extra in extras)):
            seen[shown] = seen.get(shown, 0) + 1
            yield shown if seen[shown] == 1 else f"{shown}-{seen[shown]}", address


def wrong(page: Page, name: str, width: int, themes: tuple[str, ...] = ("light",)) -> list[str]:
    """What geometry and axe find on the page as it is, at a width."""
    page.set_viewport_size({"width": width, "height": SIZES[width]})
    # Charts are drawn anew for their width in the next frame.
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.wait_for_function(_STILL)
    found: list[str] = page.evaluate(GEOMETRY)
    for theme in themes:
        page.evaluate("theme => { document.documentElement.dataset.theme = theme; }", theme)
        keep_screen(page, f"{width}-{name}-{theme}")
        # The second theme changes nothing but colours.
        found += axe(page, [] if theme == themes[0] else ["color-contrast"])
    return [f"{width}: {problem}" for problem in found]


def test_every_page_at_a_width(page: Page, serving: HeddleProcess, filled: shop.Shop, watched: Watched) -> None:
    """Each address at one of the widths; the tests below have all widths, the tabs and the dark theme."""
    assert AXE.exists(), "axe-core is not installed: run `make clients`"
    problems: dict[str, list[str]] = {}
    for at, (name, address) in enumerate(places(filled)):
        width = list(SIZES)[at % len(SIZES)]
        page.set_viewport_size({"width": width, "height": SIZES[width]})
        try:
            visit(page, serving.url + address)
            found = wrong(page, name, width)
            if address.startswith(f"/{filled.project}") and not page.title().endswith(f" · {filled.project} · heddle"):
                found.append(f"its title is {page.title()}")
        except Error as error:
            found = [str(error).splitlines()[0]]
        if found := [*found, *watched.take()]:
            problems[f"{name} {address}"] = found
    assert not problems, json.dumps(problems, indent=1, ensure_ascii=False)[:9000]


def test_a_first_visit_is_small(browser: Browser, serving: HeddleProcess, filled: shop.Shop) -> None:
    """Bytes on the wire, headers and the font included."""
    weights = {}
    for name, address in places(filled):
        context = browser.new_context(viewport={"width": 390, "height": 844})
        page = context.new_page()
        budget = Budget(page)
        visit(page, serving.url + address)
        page.wait_for_load_state("networkidle")
        weights[name] = budget.bytes
        context.close()
    limits = {name: MOST_TRACE_BYTES if name.startswith("trace") else MOST_BYTES for name in weights}
    assert {name: size for name, size in weights.items() if size > limits[name]} == {}


@pytest.mark.parametrize("width", SIZES)
def test_every_tab_of_every_page_in_both_themes(
    page: Page, serving: HeddleProcess, filled: shop.Shop, watched: Watched, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": SIZES[width]})
    problems: dict[str, list[str]] = {}
    for name, address in places(filled):
        try:
            visit(page, serving.url + address)
            found = wrong(page, name, width, ("light", "dark"))
            tabs = page.get_by_role("main").get_by_role("tab", selected=False)
            for text in [text.strip() for text in tabs.all_inner_texts()]:
                page.get_by_role("main").get_by_role("tab", name=text, exact=True).click()
                page.wait_for_function("() => !document.querySelector('main .skeleton')", timeout=15_000)
                shown = f"{name}-{re.sub('[^a-z]+', '-', text.lower())}"
                found += [f"{text}: {problem}" for problem in wrong(page, shown, width, ("light", "dark"))]
        except Error as error:
            found = [str(error).splitlines()[0]]
        if found := [*found, *watched.take()]:
            problems[f"{name} {address}"] = found
    assert not problems, json.dumps(problems, indent=1, ensure_ascii=False)[:20_000]


def test_what_opens_above_a_page_fits_a_phone(
    page: Page, serving: HeddleProcess, filled: shop.Shop, watched: Watched
) -> None:
    problems: dict[str, list[str]] = {}
    opened = 0
    for name, address in places(filled):
        visit(page, serving.url + address)
        buttons = page.get_by_role("main").get_by_role("button", name=OPENERS)
        for place in range(min(8, buttons.count())):
            button = buttons.nth(place)
            if not button.is_visible() or button.is_disabled():
                continue
            label = button.inner_text().strip() or button.get_attribute("aria-label")
            try:
                button.click()
                above = page.locator(_ABOVE).first
                above.wait_for(timeout=5000)
                page.wait_for_function("() => !document.querySelector('dialog[open] .skeleton')", timeout=15_000)
                opened += 1
                found = wrong(page, f"{name}-{label}", 390, ("light", "dark"))
                page.keyboard.press("Escape")
                above.wait_for(state="detached", timeout=5000)
            except Error as error:
                found = [str(error).splitlines()[0]]
                visit(page, serving.url + address)
            if found := [*found, *watched.take()]:
                problems[f"{name} {label}"] = found
    assert not problems, json.dumps(problems, indent=1, ensure_ascii=False)[:20_000]
    assert opened > 30
