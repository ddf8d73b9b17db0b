"""What pages say of files, links, extras and commands is so."""

import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import LANGUAGES, PAGES, ROOT, Block, blocks_of, prose_of, text_of

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_MESSAGES = "src/heddle/**/*.py", "src/heddle/ui/static/**/*.js", "deploy/**/*.*", "docs/**/*.md"


@cache
def committed() -> frozenset[str]:
    """Every file of the checkout, and every folder that holds one."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    files = listed.stdout.splitlines() or [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    parts = (name.split("/") for name in files)
    return frozenset("/".join(path[:depth]) for path in parts for depth in range(1, len(path) + 1))


@cache
def anchors_of(name: str) -> frozenset[str]:
    """The anchors of a page's headings, as both GitHub and the site name them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(name), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain)


def test_only_what_belongs_here_is_committed() -> None:
    """Pictures that a session took, logs and data once went in with `git add --all`."""
    at_the_top = {name for name in committed() if "/" not in name and (ROOT / name).is_file()}
    assert {Path(name).suffix for name in at_the_top} <= {"", ".md", ".toml", ".yml", ".yaml"}, at_the_top
    pictures = {name for name in committed() if Path(name).suffix in (".png", ".jpg", ".jpeg", ".webp", ".log", ".db")}
    assert all(name.startswith(("docs/", "tests/data/", "src/heddle/ui/static/")) for name in pictures), pictures


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_a_block_says_what_it_is(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block.where}: the fence names one of {', '.join(sorted(LANGUAGES))}"


@pytest.mark.parametrize("name", PAGES)
def test_code_is_fenced(name: str) -> None:
    """An indented block has no language, so nothing could run it; in lists it would be a fence, too."""
    without_lists = re.sub(r"^(?:\d+\.|[*-]) .*\n(?:\n*  .*\n)*", "", prose_of(name), flags=re.MULTILINE)
    assert not re.findall(r"(?<=\n\n) {4,}\S.*", without_lists)


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    here = ROOT / name
    for target in _LINK.findall(prose_of(name)):
        address, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", address):
            continue
        path = here if not address else (here.parent / address).resolve()
        found = str(path.relative_to(ROOT))
        assert found in committed(), f"{name}: {target}"
        if anchor:
            assert anchor in anchors_of(found), f"{name}: {target}"


@pytest.mark.parametrize("name", PAGES)
def test_named_files_exist(name: str) -> None:
    told = re.findall(
        r"(?<![\w/.-])((?:benchmarks|tests|tools|deploy|requirements|src/heddle)/[\w./-]*\w)(?![\w<*{])", text_of(name)
    )
    missing = {path for path in told if not {path, f"{path}.py"} & committed()}
    assert not missing


@pytest.mark.parametrize("name", PAGES)
def test_named_targets_of_make_exist(name: str) -> None:
    targets = set(" ".join(re.findall(r"^([a-z][\w -]*):", (ROOT / "Makefile").read_text(), re.MULTILINE)).split())
    named = re.findall(r"`make ([a-z][\w-]*)", prose_of(name))
    named += [
        word for block in blocks_of(name) for word in re.findall(r"^make ([a-z][\w-]*)", block.text, re.MULTILINE)
    ]
    assert set(named) <= targets


OTHER_FLAGS = {
    "--api-key",  # aiperf
    *("--enable-lora", "--runner"),  # vLLM
    *("--delete", "--max-restarts", "--values"),  # rsync, torchrun, helm
    *("--jobs", "--seconds", "--sizes"),  # the trainer, the tiny model, a benchmark
}
"""Flags of other programs that pages name alone."""


def flags_of(name: str) -> set[str]:
    """The flags that a page names outside its blocks; those of performance.md are of benchmarks."""
    return (
        set()
        if name == "docs/performance.md"
        else set(re.findall(r"`(?:heddle serve )?(--[a-z][\w-]*)", prose_of(name)))
    )


@pytest.mark.parametrize("name", PAGES)
def test_named_flags_exist(name: str) -> None:
    assert flags_of(name) <= own_flags() | OTHER_FLAGS, flags_of(name) - own_flags() - OTHER_FLAGS


def test_flags_of_others_are_still_named() -> None:
    assert set().union(*map(flags_of, PAGES)) - own_flags() == OTHER_FLAGS


@cache
def own_flags() -> frozenset[str]:
    """Every flag of every command."""
    from typer.main import get_command

    from heddle.cli import app

    found, waiting = set(), [get_command(app)]
    while waiting:
        command = waiting.pop()
        found |= {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        waiting += getattr(command, "commands", {}).values()
    return frozenset(found)


def test_nobody_is_told_to_install_another_package() -> None:
    """`heddle` belongs to somebody else on the index; extras that are named are there."""
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    seen = 0
    for path in (*(path for pattern in _MESSAGES for path in ROOT.glob(pattern)), *(ROOT / page for page in PAGES)):
        text = path.read_text(encoding="utf-8", errors="replace")
        assert not re.search(r"pip3? install(?: -\S+)* ['\"]?heddle(?![\w/-])", text), path
        for named in re.findall(r"['\"]\.\[([\w,]+)\]['\"]", text):
            seen += 1
            assert set(named.split(",")) <= extras, f"{path}: {named}"
    assert seen > 10
