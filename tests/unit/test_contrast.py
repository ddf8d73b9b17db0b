"""The colours of the interface can be told apart: WCAG 2 contrast of every text colour on every ground it stands on."""

import re
from pathlib import Path

import pytest

import heddle

STATIC = Path(heddle.__file__).parent / "ui" / "static"
ENOUGH = 4.5
TEXTS = ("text", "dim", "faint", "accent", "ok", "error", "warn", *(f"series-{number}" for number in range(1, 7)))
GROUNDS = ("bg", "surface", "sunken")
PAIRS = (
    ("accent", "accent-bg"),
    ("text", "accent-bg"),
    ("dim", "accent-bg"),
    ("error", "error-bg"),
    ("warn", "warn-bg"),
    ("on-accent", "accent"),
    ("bg", "text"),
)
"""What stands on a tinted ground: chips, the row that is chosen, failures, primary buttons, messages."""
TINT = 0.08
"""How much of its own colour the ground of a kind's chip has, over the surface."""

Colour = tuple[float, float, float]


def tokens(theme: int) -> dict[str, Colour]:
    """The colours of app.css in light (0) or dark (1)."""
    css = (STATIC / "app.css").read_text(encoding="utf-8")
    found = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", css)
    return {name: parsed(pair[theme]) for name, *pair in found}


def parsed(text: str) -> Colour:
    """#rrggbb as shares of red, green and blue."""
    red, green, blue = (int(text[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue


def luminance(colour: Colour) -> float:
    """Relative luminance, as WCAG defines it."""
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Colour, other: Colour) -> float:
    """From 1 (the same) to 21 (black on white)."""
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def mixed(one: Colour, other: Colour, share: float) -> Colour:
    """So much of the first in the second."""
    red, green, blue = (share * a + (1 - share) * b for a, b in zip(one, other, strict=True))
    return red, green, blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_text_colour_can_be_read_where_it_stands(theme: int) -> None:
    known = tokens(theme)
    asked = [(text, ground) for text in TEXTS for ground in GROUNDS] + list(PAIRS)
    found = {pair: contrast(known[pair[0]], known[pair[1]]) for pair in asked}
    kinds = [known[f"series-{number}"] for number in range(1, 7)]
    found |= {
        (f"series-{number}", "its tint"): contrast(kind, mixed(kind, known["surface"], TINT))
        for number, kind in enumerate(kinds, 1)
    }
    assert {pair: round(value, 2) for pair, value in found.items() if value < ENOUGH} == {}


def test_the_formula_is_that_of_wcag() -> None:
    assert contrast((0, 0, 0), (1, 1, 1)) == pytest.approx(21)
    assert contrast(parsed("#777777"), parsed("#ffffff")) == pytest.approx(4.48, abs=0.01)


def test_pages_use_the_colours_by_name() -> None:
    own = re.compile(r"#[0-9a-f]{3,8}\b|\brgba?\(|\bhsla?\(", re.IGNORECASE)
    found = {
        f"{path.relative_to(STATIC)}: {match[0]}"
        for folder in ("pages", "lib")
        for path in (STATIC / folder).glob("*.css")
        for match in own.finditer(re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL))
        if not re.fullmatch(r"#000[0-9a-f]?", match[0])
    }
    assert found == set(), "a shadow is #0002 or so, a mask #000; everything else is a token of app.css"
