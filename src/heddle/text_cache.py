"""Remembers what was made of short texts."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
Text = TypeVar("Text", str, bytes)


class _Remembered(dict[Text, T], Generic[Text, T]):
    """What a function made of texts; the first of each that is asked for calls it."""

    def __init__(self, function: Callable[[Text], T], most: int, longest: int) -> None:
        self._function: Callable[[Text], T] = function
        self._most = most
        self._longest = longest

    def __missing__(self, text: Text) -> T:
        made = self._function(text)
        if len(text) <= self._longest:
            if len(self) >= self._most:
                self.clear()
            self[text] = made
        return made


def cache_texts(most: int = 1024, longest: int = 300) -> Callable[[Callable[[Text], T]], Callable[[Text], T]]:
    """Remember what a function of a text returned, for up to `most` texts of at most `longest` letters or bytes.

    What clients send may be megabytes long: thousands of such texts would stay in memory.
    """
    # What is remembered is found without a call of Python.
    return lambda function: _Remembered(function, most, longest).__getitem__
