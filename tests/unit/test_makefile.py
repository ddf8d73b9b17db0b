"""The Makefile: a dry run runs nothing."""

import re
from pathlib import Path

MAKEFILE = Path(__file__).parents[2] / "Makefile"
_STARTS_MAKE = re.compile(r"^\t@?\+|\$[({]MAKE[)}]")
_NOTHING_ELSE = re.compile(r"\t@?\$\(MAKE\) [^;&|`]*")


def test_lines_that_start_make_start_nothing_else() -> None:
    """`make -n` runs such lines whole: a test that stood in one would run."""
    lines = MAKEFILE.read_text().replace("\\\n", " ").splitlines()
    found = [line for line in lines if line.startswith("\t") and _STARTS_MAKE.search(line)]
    assert found and [line for line in found if not _NOTHING_ELSE.fullmatch(line)] == []
