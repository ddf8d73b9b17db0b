"""Texts that many rows share, once each: rows of calls hold their numbers in the table `names`."""

import hashlib
import sqlite3
from collections.abc import Iterable
from typing import TypeVar

from heddle.wire import refs

K = TypeVar("K")
V = TypeVar("V")

_MAX_CACHED = 5_000
_LONGEST_CACHED = 512
"""Letters; clients choose the texts."""
_ERASED = "erased:"


def _erased(text: str) -> str:
    return _ERASED + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _remember(known: dict[K, V], key: K, value: V, text: str) -> None:
    if len(text) <= _LONGEST_CACHED:
        if len(known) >= _MAX_CACHED:
            known.clear()
        known[key] = value


class Names:
    """The writer's view of the table `names`; entries of an undone transaction are forgotten by `forget`."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._new: list[str] = []
        self._used: set[int] = set()

    def number(self, raw: sqlite3.Connection, text: str) -> int:
        """The number of a text, made when it is new."""
        known = self._numbers.get(text)
        if known is not None:
            return known
        row = raw.execute("SELECT k, v FROM names WHERE v IN (?, ?)", (text, _erased(text))).fetchone()
        label = refs.operation_name(text)
        if row is None:
            number = raw.execute("INSERT INTO names (v, label) VALUES (?, ?)", (text, label)).lastrowid
            assert number is not None
            self._new.append(text)
        else:
            number = int(row[0])
            if row[1] != text:
                raw.execute("UPDATE names SET v = ?, label = ? WHERE k = ?", (text, label, number))
                self._new.append(text)
        self._used.add(number)
        _remember(self._numbers, text, number, text)
        return number

    def watch(self) -> None:
        """Note from now on which numbers are used, for `erase`."""
        self._numbers.clear()
        self._used.clear()

    def erase(self, raw: sqlite3.Connection, unused: Iterable[int]) -> None:
        """Erase the texts of numbers that no row had when it was looked, unless they were used since `watch`.

        A digest takes the place of a text: numbers that readers remember stay those of their texts for ever.
        """
        for number in set(unused) - self._used:
            (text,) = raw.execute("SELECT v FROM names WHERE k = ?", (number,)).fetchone()
            if not text.startswith(_ERASED):
                raw.execute("UPDATE names SET v = ?, label = '' WHERE k = ?", (_erased(text), number))
                self._numbers.pop(text, None)

    def committed(self) -> None:
        """What was made is durable now."""
        self._new.clear()

    def forget(self) -> None:
        """The transaction was undone: drop every number that it made."""
        for text in self._new:
            self._numbers.pop(text, None)
        self._new.clear()


class NameReader:
    """The readers' view: numbers to texts and back; entries never change, so they are cached."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._numbers: dict[str, int] = {}

    def text(self, raw: sqlite3.Connection, number: int | None) -> str | None:
        """The text of a number."""
        if number is None:
            return None
        text = self._texts.get(number)
        if text is None:
            text = str(raw.execute("SELECT v FROM names WHERE k = ?", (number,)).fetchone()[0])
            _remember(self._texts, number, text, text)
        return text

    def number(self, raw: sqlite3.Connection, text: str) -> int | None:
        """The number of a text, None when no row uses it."""
        number = self._numbers.get(text)
        if number is None:
            row = raw.execute("SELECT k FROM names WHERE v = ?", (text,)).fetchone()
            if row is None:
                return None
            number = int(row[0])
            _remember(self._numbers, text, number, text)
        return number

    def numbers(self, raw: sqlite3.Connection, texts: Iterable[str]) -> list[int]:
        """The numbers of exact texts and of `...:*` wildcards; texts that no row uses are left out."""
        found: set[int] = set()
        for text in texts:
            if text.endswith(":*"):
                prefix = text[:-1]
                rows = raw.execute("SELECT k FROM names WHERE v >= ? AND v < ?", (prefix, prefix[:-1] + ";"))
                found.update(int(row[0]) for row in rows)
            elif (number := self.number(raw, text)) is not None:
                found.add(number)
        return sorted(found)
