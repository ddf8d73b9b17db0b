"""Places of templates: Python's format rules, without a way to anything but the values."""

from typing import Any

import pytest

from heddle.errors import InvalidRequest
from heddle.evals import objects

VALUES: dict[str, Any] = {
    "name": "Ada",
    "price": 1234.5,
    "row": {"answer": [{"text": "yes"}], "odd key": 1},
    "brace": "{name}",
    "none": None,
}


@pytest.mark.parametrize(
    "text",
    [
        "Hello {name}!",
        "{{name}} {name}",
        "{row[answer][0][text]} {row[odd key]}",
        "{price:.2f} {price:,} {price:>12} {name:*^9} {name!r} {name!r:>9}",
        "{row}",
        "{brace}",
        "{none}",
        "no place",
        "",
    ],
)
def test_a_template_is_filled_as_python_does(text: str) -> None:
    assert objects.fill_template(text, VALUES) == text.format(**VALUES)


def test_messages_are_filled_inside() -> None:
    message = {"role": "{name}", "content": [{"type": "text", "text": "{name}"}, {"type": "image", "n": 3}]}
    assert objects.fill_template(message, VALUES) == {
        "role": "{name}",
        "content": [{"type": "text", "text": "Ada"}, {"type": "image", "n": 3}],
    }
    assert objects.template_names(message) == {"name"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{name.__class__.__mro__}", "is not a column name"),
        ("{row[answer].append}", "is not a column name"),
        ("{missing}", r"uses \[missing\]"),
        ("{row[answer][7]}", r"uses \[7\]"),
        ("{row[answer][-1]}", r"uses \[-1\]"),
        ("{name[0]}", r"uses \[0\]"),
        ("{name:.2f}", "does not match"),
        ("{name:99999}", "format"),
        ("{price:.9999f}", "format"),
        ("{", "cannot be rendered"),
        ("{0}", r"uses \[0\]"),
    ],
)
def test_what_is_not_there_or_not_allowed_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        objects.fill_template(text, VALUES)
