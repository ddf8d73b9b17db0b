"""Damage of the index of text search: words that it must have and lacks, so that a search would pass over a call."""

import re
import sqlite3
from collections.abc import Iterator
from typing import Any

from heddle.store.sqlite.search import KNOWN, VERSION, bounds, version_of, words_of
from heddle.wire.search import codes_of

_MOST_WORDS = 200_000
_WORD = re.compile(r"[0-9A-Za-z\x80-\U0010ffff]+")
"""As FTS5 takes words from a text."""
_OF_END = (3, 7)
"""Where in the columns of KNOWN stands what the end of a call brings."""


def newest_entry(raw: sqlite3.Connection) -> int:
    """The highest number of a call or a row of feedback that is indexed; 0 where the index is off, or is made anew."""
    newest = "SELECT max(high, (SELECT ifnull(max(seq), 0) FROM feedback)) FROM search_state WHERE kind = 'calls'"
    return int(raw.execute(newest).fetchone()[0]) if version_of(raw) == VERSION else 0


def find_search_damage(raw: sqlite3.Connection, first: int, last: int) -> Iterator[str]:
    """The calls and rows of feedback numbered from `first` to before `last` that a search may pass over.

    What the index has too much does no harm: a search reads the texts of what it finds.
    """
    low, high = bounds(raw)
    wanted = _Wanted(raw)
    query = f"SELECT c.rid, c.id, k.codes, {KNOWN} WHERE c.rid >= ? AND c.rid < ?"
    for rid, call, codes, *row in raw.execute(query, (max(first, low + 1), min(last, high + 1))):
        if codes not in _codes(row):
            yield f"call {call!r}"
        else:
            yield from wanted.add(rid, f"call {call!r}", words_of(row))
    yield from wanted.find_lost()
    query = """SELECT seq, id, search_words(payload) FROM feedback WHERE seq >= ? AND seq < ?
        AND seq > (SELECT low FROM search_state WHERE kind = 'feedback')"""
    for seq, name, words in raw.execute(query, (first, last)):
        yield from wanted.add(-seq, f"feedback {name!r}", words)
    yield from wanted.find_lost()


class _Wanted:
    """The words that the index must have of some rows."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw
        self._names: dict[int, str] = {}
        self._rows: dict[str, set[int]] = {}
        self._size = 0

    def add(self, row: int, name: str, words: str) -> list[str]:
        """Want the words of one more row; the names of those that lack one, once there are many."""
        self._names[row] = name
        found = set(_WORD.findall(words))
        for word in found:
            self._rows.setdefault(word, set()).add(row)
        self._size += len(found)
        return self.find_lost() if self._size > _MOST_WORDS else []

    def find_lost(self) -> list[str]:
        """The names of the rows that lack a word; then nothing is wanted any more."""
        lost = set[int]()
        query = "SELECT rowid FROM search WHERE search MATCH ? AND rowid BETWEEN ? AND ?"
        for word, rows in self._rows.items():
            lost |= rows.difference(row for (row,) in self._raw.execute(query, (f'"{word}"', min(rows), max(rows))))
        names = [self._names[row] for row in sorted(lost)]
        self._names, self._rows, self._size = {}, {}, 0
        return names


def _codes(row: list[Any]) -> tuple[bytes, bytes]:
    """The codes of a call that was indexed at once, and those where its end was indexed behind its start."""
    start = [None if place in _OF_END else text for place, text in enumerate(row)]
    end = [text if place in (0, *_OF_END) else None for place, text in enumerate(row)]
    return codes_of(words_of(row)), codes_of(words_of(start)) + codes_of(words_of(end))
