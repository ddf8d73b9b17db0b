"""The pages that people read, and the fenced blocks of code in them."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md") + tuple(
    sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))
)
LANGUAGES = {"sh", "console", "python", "typescript", "json", "yaml", "toml", "sql", "text"}
"""`console` is a session whose output is compared; `text` is no code: a drawing."""
_FENCE = re.compile(r"^( *)(```+)(\S*)[^\n]*\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block; `line` is that of its fence."""

    page: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        """What an editor opens."""
        return f"{self.page}:{self.line}"


@cache
def text_of(page: str) -> str:
    """A page as it stands."""
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def blocks_of(page: str) -> tuple[Block, ...]:
    """The blocks of a page, first to last."""
    text = text_of(page)
    return tuple(
        Block(page, text.count("\n", 0, found.start()) + 1, found[3], dedent(found[4]))
        for found in _FENCE.finditer(text)
    )


@cache
def prose_of(page: str) -> str:
    """A page without its blocks; lines keep their numbers."""
    return _FENCE.sub(lambda found: "\n" * found[0].count("\n"), text_of(page))
