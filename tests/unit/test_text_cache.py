"""Remembering what was made of texts, without keeping long ones."""

import pytest

from heddle.text_cache import cache_texts


def test_short_texts_are_remembered_and_long_ones_are_not() -> None:
    made: list[str] = []

    @cache_texts(2, longest=3)
    def upper(text: str) -> str:
        made.append(text)
        return text.upper()

    assert [upper(text) for text in ("abc", "abc", "abcd", "abcd")] == ["ABC", "ABC", "ABCD", "ABCD"]
    assert made == ["abc", "abcd", "abcd"]
    for text in ("x", "y", "abc"):
        upper(text)
    assert made[3:] == ["x", "y", "abc"], "beyond the most it begins anew"


def test_failures_are_not_remembered() -> None:
    @cache_texts(2)
    def parse(text: str) -> int:
        return int(text)

    for _ in range(2):
        with pytest.raises(ValueError, match="invalid literal"):
            parse("x")
