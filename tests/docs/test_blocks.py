"""Every block of code on a page runs as it stands there, in the order of the page, with a server of the page's own."""

import importlib
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from tests.docs.blocks import PAGES, Block, blocks_of
from tests.docs.desk import Desk
from tests.docs.stories import AFTER, CHECKED, ENDS_WITH, GIVEN, IN_MODULE, INSTEAD, NOT_RUN, READ
from tests.support.selection import with_breadth

FIRST = ("README.md", "docs/start.md", "CONTRIBUTING.md", "docs/search.md", "docs/langfuse.md")
"""The pages that `make test` tries; the others are tried by `make test-all`."""
WITH_BLOCKS = sorted((page for page in PAGES if blocks_of(page)), key=lambda page: page not in FIRST)
TABLES = {"NOT_RUN": NOT_RUN, "IN_MODULE": IN_MODULE, "READ": READ, "ENDS_WITH": ENDS_WITH, "AFTER": AFTER}
Value = TypeVar("Value")


def entry_of(block: Block, table: dict[tuple[str, str], Value]) -> Value | None:
    """What a table says of a block."""
    return next((value for (page, words), value in table.items() if is_of(block, page, words)), None)


def is_of(block: Block, page: str, words: str) -> bool:
    """Whether a page and a beginning are those of a block."""
    return block.page == page and block.text.startswith(words)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_entry_is_of_one_block(table: dict[tuple[str, str], object]) -> None:
    for page, words in table:
        assert sum(is_of(block, page, words) for block in blocks_of(page)) == 1, f"{page}: {words}"


def test_entries_of_pages_are_of_pages() -> None:
    assert {*GIVEN, *CHECKED, *FIRST} <= set(WITH_BLOCKS)
    assert all(any(words in block.text for block in blocks_of(page)) for page, words in INSTEAD)


@pytest.mark.parametrize("page_name", with_breadth(WITH_BLOCKS, keep=len(FIRST)))
def test_the_blocks_of_a_page_run(page_name: str, tmp_path: Path) -> None:
    words = {told: other for (page, told), other in INSTEAD.items() if page == page_name}
    with ExitStack() as ends, Desk(tmp_path, words) as desk:
        if page_name in GIVEN:
            GIVEN[page_name](desk, ends)
        for block in blocks_of(page_name):
            if entry_of(block, NOT_RUN) is None:
                try:
                    run_block(desk, block)
                except AssertionError as failure:
                    raise AssertionError(f"{block.where} {failure}") from None
        if page_name in CHECKED:
            CHECKED[page_name](desk)


def run_block(desk: Desk, block: Block) -> None:
    """Run a block, or have it read by whom it is for."""
    module, read, after = (entry_of(block, table) for table in (IN_MODULE, READ, AFTER))
    if module is not None:
        names = vars(importlib.import_module(module)) | dict.fromkeys(("_derive", "_messages"))
        exec(compile(block.text, block.where, "exec"), dict(names))
    elif read is not None:
        read(desk, block.text)
    else:
        if block.language != "sh" or "heddle serve" not in block.text:
            desk.have_server()
        desk.ends_with = entry_of(block, ENDS_WITH) or 0
        runs = {"sh": desk.shell, "console": desk.session, "python": desk.python, "typescript": desk.typescript}
        assert block.language in runs, "is neither run, nor read, nor in the table of what cannot be run"
        printed = runs[block.language](block.text)
        if after is not None:
            after(desk, printed)
