"""The files of the interface, read as text: nothing unsafe in them, nothing missing, nothing from elsewhere."""

import posixpath
import re
from graphlib import TopologicalSorter
from importlib import resources

import pytest

from heddle.app import served_routes
from heddle.ui.pages import PAGES as ADDRESSES
from heddle.ui.pages import POLICY, assets, find_page, is_reserved

FILES = {name: file.body.decode("utf-8", "replace") for name, file in assets().files.items()}
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
PAGES = sorted({page for _, page in ADDRESSES})
UNSAFE = (
    r"\.innerHTML\b|\.outerHTML\b|insertAdjacentHTML|document\.write|\beval\(|new Function\(|createContextualFragment|"
    r"\bDOMParser\b|srcdoc|setAttribute\(\s*\"(on\w+|style)\""
)
SHOWN = {"www.w3.org", "api.openai.com", "hooks.example.com", "127.0.0.1", "localhost", "host"}
SHOWN |= {"hooks.slack.com", "api.groq.com", "api.mistral.ai", "api.together.xyz", "generativelanguage.googleapis.com"}
SHOWN |= {"api.anthropic.com", "api.deepseek.com", "openrouter.ai"}
"""Hosts that may be named: the namespace of SVG, and what is shown as an example. No page asks any of them."""
SHOWN_IMPORTS = {"lib/weave"}
"""What a program that is shown as an example imports."""
_DYNAMIC = re.compile(r"""import\(\s*["'`](\.{1,2}/[^"'`$]+)["'`]""")


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_scripts_make_no_markup_from_text(name: str) -> None:
    assert re.findall(UNSAFE, SCRIPTS[name]) == []


def test_nothing_names_another_host() -> None:
    found = {
        (name, host)
        for name, text in FILES.items()
        if not name.endswith("license.txt")
        for host in re.findall(r"https?://([\w.-]*\w)", text)
        if host not in SHOWN
    }
    assert found == set()
    assert [name for name, text in FILES.items() if re.search(r"url\(\s*[\"']?(?:https?:)?//", text)] == []


def test_html_holds_one_inline_script_and_no_style() -> None:
    html = FILES["index.html"]
    assert html.count("<script") == 2 and "<script>{theme}</script>" in html
    assert not re.search(r"<style|style=|\son\w+=", html)
    assert POLICY.startswith("default-src 'self'; script-src 'self' 'sha256-")
    assert "unsafe" not in POLICY


def imported(name: str) -> list[str]:
    """The files that a script imports, at once or later."""
    wanted = re.findall(r"""\bfrom\s+["']([^"']+)["']""", SCRIPTS[name]) + _DYNAMIC.findall(SCRIPTS[name])
    return [posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) for target in wanted]


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_imports_lead_somewhere(name: str) -> None:
    assert [target for target in imported(name) if target not in FILES and target not in SHOWN_IMPORTS] == []


def test_there_are_no_circles_among_the_scripts() -> None:
    TopologicalSorter({name: imported(name) for name in SCRIPTS}).prepare()


@pytest.mark.parametrize("shown", PAGES)
def test_each_page_has_its_module_and_all_it_imports_is_loaded_at_once(shown: str) -> None:
    name = f"pages/{shown}.js"
    assert name in SCRIPTS and "export default" in SCRIPTS[name]
    listed = assets().modules(shown)
    for module in listed:
        folder = posixpath.dirname(module)
        for target in re.findall(r"""\bfrom\s+["']([^"']+)["']""", SCRIPTS[module]):
            assert posixpath.normpath(posixpath.join(folder, target)) in listed, f"{module} imports {target}"


@pytest.mark.parametrize("name", [name for name in sorted(FILES) if re.match(r"(pages|lib)/.*\.css$", name)])
def test_style_sheets_of_pages_stay_in_their_layer(name: str) -> None:
    text = re.sub(r"/\*.*?\*/", "", FILES[name], flags=re.DOTALL).strip()
    imports = re.findall(r'@import "([^"]+)";', text)
    rest = re.sub(r'@import "[^"]+";', "", text).strip()
    assert not rest or re.match(r"@layer (page|parts) \{", rest), "rules outside a layer win over everything"
    folder = posixpath.dirname(name)
    assert [target for target in imports if posixpath.normpath(posixpath.join(folder, target)) not in FILES] == []


def test_no_route_of_the_interface_is_taken_for_an_entity() -> None:
    routes = served_routes()
    assert all(is_reserved(routes, name) for name in ("call", "calls", "v1", "v2", "health", "openapi.json", "_ui"))
    assert not any(is_reserved(routes, name) for name in ("team", "cal", "weave"))


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/", "projects"),
        ("/team/one/weave", "overview"),
        ("/team/one/weave/", "overview"),
        ("/team/one/weave/traces", "calls"),
        ("/team/one/weave/traces/t1", "trace"),
        ("/team/one/weave/evaluations/compare", "compare"),
        ("/team/one/weave/evaluations/e1", "evaluation"),
        ("/team/one/weave/threads/a/b c", "thread"),
        ("/team/one/r/call/c1", "call"),
        ("/team/one/r/call/a%2Fb", "call"),
        ("/team/one/weave/queues/q/work", "work"),
        ("/team/one/weave/nowhere", None),
        ("/team//weave", None),
        ("/team/one", None),
    ],
)
def test_addresses_have_their_page(path: str, shown: str | None) -> None:
    assert find_page(path) == shown


def test_comments_are_not_served_and_lines_keep_their_numbers() -> None:
    stored = resources.files("heddle.ui").joinpath("static/lib/values.js")
    served = assets().files["lib/values.js"].body.decode()
    lines = stored.read_text(encoding="utf-8").splitlines()
    assert [line.strip() for line in served.splitlines() if line.strip().startswith(("//", "/*"))] == []
    kept = list(zip(lines, served.splitlines(), strict=True))
    assert all(after in (before, "") for before, after in kept) and any(before and not after for before, after in kept)
