"""The tables of docs/evaluation.md say what the code does."""

import re
from pathlib import Path
from typing import get_args

from heddle.evals.scorer_kinds import KINDS
from heddle.trace.alerts.service import Metric

PAGE = (Path(__file__).parent.parent.parent.parent / "docs" / "evaluation.md").read_text()


def rows(header: str) -> list[list[str]]:
    """The cells of a table's lines behind its header."""
    table = PAGE.split(header, 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_every_built_in_scorer_is_listed_with_its_settings() -> None:
    listed = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in rows("| class | settings | score |")}
    assert listed == {name: set(kind.settings) for name, kind in KINDS.items()}


def test_every_metric_of_alerts_is_listed() -> None:
    assert [row[0].strip("`") for row in rows("| metric | of the calls")] == list(get_args(Metric))
