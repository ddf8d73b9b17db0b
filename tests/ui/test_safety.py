"""Every page, with nothing in its project and with texts that try to be more than text."""

import contextlib
import json
import posixpath
import re
import uuid
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Error, Page, expect

from heddle.ui.pages import PAGES, PROJECT, assets
from tests.conftest import Wire
from tests.support.hostile import MARK, Hostile, write
from tests.support.server import HeddleProcess
from tests.ui.support import Watched

EXTRA = {
    "trace": ["?call=chat", "?call=failed", "?call=huge"],
    "compare": ["?runs={runs}"],
    "calls": ["?roots=0"],
    "comparecalls": ["?calls=chat,failed"],
}
"""More addresses of a page, beside the plain one."""
NAMES = {"objects": "prompt", "datasets": "data", "leaderboards": "board", "ops": "op", "models": "model"}
"""What `:name` stands for, by the part of the path before it."""
DETAILS = {page for pattern, page in PAGES if len(re.findall(r"[:*]", pattern)) > 2}
"""Pages of one thing, which may say that there is none of that name."""
UNWRITTEN = {"job", "replay", "improvement"}
"""Pages of things that the hostile project does not have, as making them needs a model."""
SHOWS = {"calls", "trace", "object", "dataset", "thread", "evaluation", "leaderboard", "queue"}
"""Pages on which the hostile text must be seen, as text."""
GONE = r"status of 404 .*'url': '[^']*(?<!\.js)(?<!\.css)'"
"""What a page may say of a job that there is not; its own files must be there."""
_STRUCK = """() => {
    const problems = [];
    if (globalThis.struck !== undefined) problems.push(`script ran: ${globalThis.struck}`);
    const count = (selector, most) => {
        const found = document.querySelectorAll(selector);
        if (found.length > most) problems.push(`${found.length} of ${selector}: ${found[0].outerHTML.slice(0, 200)}`);
    };
    count("script", 2);
    count("iframe, object, embed, base, style, marquee, main b b, main meta", 0);
    for (const element of document.querySelectorAll("*")) {
        for (const { name, value } of element.attributes) {
            if (name.startsWith("on")) problems.push(`${element.tagName} has ${name}`);
            const isAddress = ["href", "src", "action", "formaction", "xlink:href"].includes(name);
            const isScript = /^\\s*(javascript|vbscript|data:text)/i.test(value);
            if (isAddress && isScript) problems.push(`${name}=${value.slice(0, 80)}`);
            if (name === "href" && element.origin && element.origin !== location.origin) {
                const rel = element.getAttribute("rel") ?? "";
                const isSafe = /noopener/.test(rel) && /noreferrer/.test(rel);
                if (!isSafe) problems.push(`link without rel: ${value.slice(0, 80)}`);
            }
        }
    }
    return problems;
}"""
_SETTLED = """() => document.querySelector("main h1, main [role=alert]")
    && !document.querySelector("main .skeleton, main [aria-busy=true]")"""


@pytest.fixture(scope="module")
def hostile(server: HeddleProcess) -> Iterator[Hostile]:
    """The hostile project."""
    wire = Wire(server.url, f"team-{uuid.uuid4().hex[:8]}/hostile")
    yield write(wire)
    wire.client.close()


def addresses(project: str, parts: dict[str, str], names: dict[str, str] = NAMES) -> Iterator[tuple[str, str]]:
    """Each page and an address of it; a part of a path that is not known here fails: say above what it stands for."""
    for pattern, shown in PAGES:
        room = pattern.removeprefix(PROJECT).split("/")[1] if pattern.startswith(f"{PROJECT}/") else ""
        known = dict(zip(("entity", "project"), project.split("/"), strict=True), **parts, name=names.get(room, "x"))
        known["version"] = parts["op version" if room == "ops" else "version"]
        path = "/".join(quote(known[part[1:]]) if part[:1] in (":", "*") else part for part in pattern.split("/"))
        yield shown, path
        if "runs" in parts:
            yield from ((shown, path + extra.format(**parts)) for extra in EXTRA.get(shown, []))


def visit(page: Page, path: str) -> None:
    """Open a page, and wait until it shows what it has."""
    page.goto(path)
    page.wait_for_function(_SETTLED, timeout=15_000)


def looks(page: Page, is_sought: bool) -> Iterator[tuple[list[str], bool]]:
    """What is wrong on the page and whether the hostile text shows, as it opens and behind each of its tabs."""
    seen = shows(page, is_sought)
    yield page.evaluate(_STRUCK), seen
    tabs = page.get_by_role("main").get_by_role("tab", selected=False)
    for name in [text.strip() for text in tabs.all_inner_texts()]:
        page.get_by_role("main").get_by_role("tab", name=name, exact=True).click()
        page.wait_for_function(_SETTLED, timeout=15_000)
        seen = shows(page, is_sought and not seen)
        yield [f"{name}: {problem}" for problem in page.evaluate(_STRUCK)], seen


def shows(page: Page, is_sought: bool) -> bool:
    """True when the page shows the hostile text: now, or soon where it is sought (lists fetch what they show)."""
    main = page.get_by_role("main")
    if is_sought:
        with contextlib.suppress(AssertionError):
            expect(main).to_contain_text(MARK, timeout=3_000)
    return MARK in main.inner_text()


def test_hostile_texts_stay_texts_on_every_page(page: Page, hostile: Hostile, watched: Watched) -> None:
    watched.allow(GONE)
    problems: dict[str, list[str]] = {}
    showing = set()
    for shown, path in addresses(hostile.project, hostile.parts):
        found: list[str] = []
        try:
            visit(page, path)
            for wrong, seen in looks(page, shown in SHOWS and shown not in showing):
                found += wrong
                if seen:
                    showing.add(shown)
            alert = page.get_by_role("main").get_by_role("alert")
            if shown not in UNWRITTEN and alert.count():
                found.append(alert.first.inner_text())
        except Error as error:
            found.append(str(error).splitlines()[0])
        found += watched.take()
        if found:
            problems[path] = found
    assert not problems, json.dumps(problems, indent=1)[:6000]
    assert showing >= SHOWS, f"not seen on {SHOWS - showing}"


@pytest.mark.thorough
def test_every_page_of_an_empty_project_says_what_to_do(page: Page, project: str, watched: Watched) -> None:
    dead = dict.fromkeys(
        ("call", "trace", "thread", "run", "queue", "job", "replay", "improvement", "version", "op version"), "x"
    )
    watched.allow(GONE)
    problems: dict[str, list[str]] = {}
    for shown, path in addresses(project, dead):
        try:
            visit(page, path)
            main = page.get_by_role("main")
            # What a list says of being empty comes with its first answer.
            page.wait_for_function("() => document.querySelector('main').innerText.length > 40", timeout=15_000)
            found: list[str] = []
            if shown not in DETAILS and main.get_by_role("alert").count():
                found.append(main.get_by_role("alert").first.inner_text())
        except Error as error:
            found = [str(error).splitlines()[0]]
        found += watched.take()
        if found:
            problems[path] = found
    assert not problems, json.dumps(problems, indent=1)[:6000]


def test_every_page_says_what_it_may_load(server: HeddleProcess) -> None:
    expected = (
        "default-src 'self'; script-src 'self' 'sha256-{}'; style-src 'self'; img-src 'self' data: blob:; "
        "media-src 'self' data: blob:; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    )
    for pattern, _ in PAGES:
        answer = httpx.get(server.url + re.sub(r"[:*]\w+", "x", pattern))
        assert answer.status_code == 200, pattern
        policy = answer.headers["content-security-policy"]
        assert policy == expected.format(policy.partition("'sha256-")[2].partition("'")[0])
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"


def test_the_policy_stops_what_gets_through(page: Page, project: str, watched: Watched) -> None:
    page.goto(f"/{project}/weave/settings")
    watched.allow("Content Security Policy")
    page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "globalThis.struck = 1";
            document.body.append(script);
            const image = document.createElement("img");
            image.setAttribute("onerror", "globalThis.struck = 2");
            image.src = "/nothing.png";
            document.body.append(image);
        }"""
    )
    watched.allow("404")
    page.wait_for_function("() => document.images.length && [...document.images].every((image) => image.complete)")
    assert page.evaluate("globalThis.struck") is None


def test_modules_of_a_page_are_asked_for_at_once(page: Page, project: str) -> None:
    found = assets()
    for shown in ("overview", "calls", "evaluations", "settings"):
        asked: list[str] = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))  # type: ignore[misc]
        path = {"overview": "", "calls": "/traces"}.get(shown, f"/{shown}")
        visit(page, f"/{project}/weave{path}")
        page.wait_for_load_state("networkidle")
        scripts = [url.partition("/_ui/")[2].partition("/")[2] for url in asked if url.endswith(".js")]
        listed = set(found.modules(shown))
        assert set(scripts) - listed <= later(listed), f"{shown} asks for modules late"
        assert listed <= set(scripts)


def later(listed: set[str]) -> set[str]:
    """The modules that those listed may import when they are needed, with what these import."""
    files = assets().files
    waiting = list(listed)
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in files or name in found:
            continue
        found.add(name)
        text = files[name].body.decode()
        targets = re.findall(r"""(?:from\s+|import\(\s*)["'`](\.{1,2}/[^"'`$]+)["'`]""", text)
        waiting += [posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) for target in targets]
    return found


def test_the_keyboard_reaches_every_part(page: Page, project: str) -> None:
    visit(page, f"/{project}/weave/settings")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("g")
    page.keyboard.press("e")
    expect(page).to_have_url(re.compile("/weave/evaluations$"))
    page.go_back()
    expect(page.get_by_role("heading", name="Settings", level=1)).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Evaluations")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Page, project, object, op, or any text in calls").fill("sett")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Settings", level=1)).to_be_visible()


def test_the_theme_stays(page: Page) -> None:
    page.goto("/settings")
    page.get_by_role("button", name="Theme").click()
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == theme == "dark"
