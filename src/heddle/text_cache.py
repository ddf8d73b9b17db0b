"""Remembers what was made of short texts."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

T = TypeVar("T")
Text = TypeVar("Text", str, bytes)


def cache_texts(most: int, longest: int = 300) -> Callable[[Callable[[Text], T]], Callable[[Text], T]]:
    """Remember what a function of a text returned for the last `most` texts of at most `longest` letters or bytes.

    What clients send may be megabytes long: thousands of such texts would stay in memory.
    """

    def decorate(function: Callable[[Text], T]) -> Callable[[Text], T]:
        remembered = lru_cache(most)(function)

        @wraps(function)
        def call(text: Text) -> T:
            return remembered(text) if len(text) <= longest else function(text)

        return call

    return decorate
