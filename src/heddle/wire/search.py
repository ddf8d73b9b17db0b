"""Text search: what a search text asks for, the words of a text as an index takes them, and whether a text has them.

Words are runs of letters and digits, whatever their case and accents. `getUserName` is also the words of which it is
made, and so is everything with points, dashes and underscores. Scripts without spaces are indexed by pairs of letters.
"""

import re
import string
import sys
import unicodedata
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from heddle.errors import InvalidRequest

MAX_TEXT = 32_768
"""So many characters of each field of a call are searched."""
MAX_SEARCH = 1000
_MOST_WORDS = 50
_MOST_CAMEL = 64

DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
"""The letters of scripts that have no spaces between words, as a class of regular expressions has them."""
_DENSE_RUN = re.compile(f"[{DENSE}]+")
_TOKEN = re.compile(f"[{DENSE}]+|[^\\W_{DENSE}]+")
_PIECE = re.compile(r'"([^"]*)(?:"(\*)?|$)|([^\s"]+)')
_PART = r"(?:[A-Z]{2,}(?![a-z])|[A-Z][a-z]+\d*)"
_CAMEL = re.compile(rf"(?:[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+\d*){_PART}+")
_CAMEL_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*")
_CLASSES = bytes(
    ord("a") if 97 <= code <= 122 or 48 <= code <= 57 else ord("A") if 65 <= code <= 90 else ord(" ")
    for code in range(256)
)
_HUMP = re.compile(b"A(?:(?<=aA)|Aa)")
"""A capital inside of a word, of its classes; it begins with a letter, which is found quickly."""
_MARK = re.compile("[\u0300-\u036f]+")
_NESTED_ESCAPE = re.compile(r"\\\\([bfnrt])([^\W_]+)")
_ESCAPES = ("\\\\", "\\n", "\\t", "\\r", "\\b", "\\f")
_CODED = re.compile(r"\\u([0-9a-fA-F]{4})")
_LEAST_NOISE, _LEAST_NUMBERS = 160, 16
_NOISE = re.compile(
    rf"[A-Za-z0-9+/_=-]{{{_LEAST_NOISE},}}|(?:-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?\s*,\s*){{{_LEAST_NUMBERS},}}"
)
_NOISE_CLASSES = tuple(
    (bytes(ord("x") if chr(code) in letters else ord(" ") for code in range(256)), b"x" * least)
    for letters, least in (
        (string.ascii_letters + string.digits + "+/_=-", _LEAST_NOISE),
        (string.digits + "-+.,eE", 2 * _LEAST_NUMBERS),
    )
)
"""Where no run of these letters has so many, `_NOISE` need not be looked for."""
_LONG = 512
_LONG_RUN = re.compile(rf"(?<!\S)\S{{{_LONG + 1},}}")
_BLOCK = _LONG // 2
"""A longer run holds a whole block of these."""
_END = " endoffield "
"""Stands between fields, so that no phrase goes on in the next one."""
_BETWEEN = r"[\W_]+"
_OTHERS = re.compile(_BETWEEN)
_LOWEST = slice(0 if sys.byteorder == "little" else 3, None, 4)
_PLAIN = {code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)}


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that a call must hold: the words by which an index finds it, the last as a prefix where it is one.

    `pattern` is how it reads in a text; `is_whole` tells that it begins where a word does, `is_certain` that the words
    alone decide. `letters` are the words in lower case for an index to which a letter of a script without spaces is a
    word, and `is_dense` that the last of them is such a letter. `codes` are the codes of a phrase, where it has any.
    """

    words: tuple[str, ...]
    is_prefix: bool
    pattern: re.Pattern[str]
    is_whole: bool
    is_certain: bool
    letters: tuple[str, ...]
    is_dense: bool
    codes: bytes

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Where a folded text has it."""
        # A pattern that begins with letters is found quickly; one that looks behind first is not.
        for match in self.pattern.finditer(text):
            start = match.start()
            if not self.is_whole or start == 0 or not text[start - 1].isalnum():
                yield match.span()


@dataclass(frozen=True, slots=True)
class TextSearch:
    """All terms must be held; `exact` is the whole text where it may be the id of a call, a trace or a thread."""

    terms: tuple[Term, ...]
    exact: str | None

    @property
    def is_certain(self) -> bool:
        """Whether an index of words answers it without a look at the texts."""
        return all(term.is_certain for term in self.terms)

    def is_held_by(self, text: str) -> bool:
        """Whether a text of `searched` has every term."""
        known = folded(text)
        return all(next(term.spans(known), None) is not None for term in self.terms)


@lru_cache(maxsize=64)
def parse_search(text: str) -> TextSearch:
    """What a text asks for: words, "phrases", and beginnings of words as `begin*`; raises InvalidRequest."""
    if len(text) > MAX_SEARCH:
        raise InvalidRequest(f"The search text can have at most {MAX_SEARCH} characters, got {len(text)}")
    terms: list[Term] = []
    for phrase, star, word in _PIECE.findall(text):
        piece = phrase or word
        if (term := _term(piece, bool(star) or piece.endswith("*"))) is not None:
            terms.append(term)
    if not terms:
        raise InvalidRequest("The search text must contain a letter or a digit")
    if sum(len(term.words) for term in terms) > _MOST_WORDS:
        raise InvalidRequest(f"The search text can have at most {_MOST_WORDS} words")
    exact = text.strip().strip('"')
    return TextSearch(tuple(terms), exact if exact and not any(map(str.isspace, exact)) else None)


def held_words(text: str) -> Term | None:
    """What an index of `indexed` words has of every document with a text as a JSON string; None where that is unsure.

    The text may be spelled in one way alone, and be no noise.
    """
    if not (text.isascii() and text.isprintable()) or '"' in text or "\\" in text or len(text) >= _LEAST_NOISE:
        return None
    return None if text.count(",") >= _LEAST_NUMBERS else _term(text, False)


def _term(piece: str, is_prefix: bool) -> Term | None:
    words: list[str] = []
    shown: list[str] = []
    letters: list[str] = []
    tokens = _TOKEN.findall(unicodedata.normalize("NFC", piece))
    for at, token in enumerate(tokens):
        parts = _camel_parts(token)
        if _DENSE_RUN.match(token):
            words += map("".join, pairwise(folded(token))) if len(token) > 1 else [folded(token)]
            shown.append(re.escape(folded(token)))
            letters += folded(token)
        elif parts:
            words += map(str.lower, parts)
            letters += map(str.lower, parts) if len(tokens) == 1 else [token.lower()]
            joined = _BETWEEN.join(re.escape(part.lower()) for part in parts)
            shown.append(f"(?:{re.escape(token.lower())}{_BETWEEN})?{joined}" if at else joined)
        else:
            words.append(folded(token))
            letters.append(folded(token))
            shown.append(re.escape(folded(token)))
    if not words:
        return None
    first, last = (_DENSE_RUN.match(token) is not None for token in (tokens[0], tokens[-1]))
    is_letter = last and len(tokens[-1]) == 1
    pattern = shown[0]
    for before, token, text in zip(tokens, tokens[1:], shown[1:], strict=False):
        is_dense = _DENSE_RUN.match(before) or _DENSE_RUN.match(token)
        pattern += (r"[\W_]*" if is_dense else _BETWEEN) + text
    pattern += "" if last or is_prefix else r"(?![^\W_])"
    is_certain = len(words) == 1 and not (last and is_prefix and not is_letter)
    # Beside others the letters of a dense script and a compound may stand in more than one way.
    is_plain = not any(_DENSE_RUN.match(token) or _camel_parts(token) for token in tokens[1:])
    sequence = words[:-1] if is_prefix and not last else words
    has_codes = is_plain and len(sequence) > 1 and (len(tokens) == 1 or not first)
    return Term(
        tuple(words),
        (is_prefix and not last) or is_letter,
        re.compile(pattern),
        not first,
        is_certain,
        tuple(letters),
        last,
        codes_of(" ".join(sequence)) if has_codes else b"",
    )


def searched(texts: Iterable[str | None], documents: Iterable[str | None]) -> str:
    """Texts and JSON documents of a call as one text: bounded, escapes undone, noise left out, compounds in parts."""
    found = [text[:MAX_TEXT].replace("\\", " ") for text in texts if text]
    whole = _END.join([text[:MAX_TEXT] for text in documents if text])
    if "\\" in whole:
        if "\\\\" in whole:
            whole = _NESTED_ESCAPE.sub(r" \1\2 \2", whole)
        for escape in _ESCAPES:
            whole = whole.replace(escape, " ")
        if "\\u" in whole:
            whole = _CODED.sub(" ", whole)
    whole = _END.join([*found, whole])
    has_long = any(whole.find(" ", at, at + _BLOCK) < 0 for at in range(0, len(whole) - _BLOCK, _BLOCK))
    if has_long and _may_have_noise(whole):
        # Texts have spaces: what has none for long may be encoded data, or numbers in a row.
        whole = _LONG_RUN.sub(lambda run: _NOISE.sub(" ", run[0]), whole)
    return _with_camel_parts(whole)


def _may_have_noise(text: str) -> bool:
    letters = text.encode("latin-1", "replace")
    return any(letters.translate(classes).find(least) >= 0 for classes, least in _NOISE_CLASSES)


def indexed(text: str) -> str:
    """The words of a text of `searched` between spaces, without case and accents; dense scripts in pairs of letters."""
    text = text.replace(_END, "\n")
    return text.translate(_PLAIN) if text.isascii() else _OTHERS.sub(" ", _DENSE_RUN.sub(_pairs, folded(text)))


def codes_of(words: str) -> bytes:
    """A text of `indexed` as one byte for each word: a phrase can only be where its bytes are."""
    return array("I", map(zlib.crc32, words.encode("utf-8", "replace").split())).tobytes()[_LOWEST]


def _pairs(match: re.Match[str]) -> str:
    run = match[0]
    return f" {' '.join(map(''.join, pairwise(run)))} {run[-1]} "


def folded(text: str) -> str:
    """A text without case and accents."""
    return text.lower() if text.isascii() else _fold_marks(text).lower()


def _fold_marks(text: str) -> str:
    return unicodedata.normalize("NFC", _MARK.sub("", unicodedata.normalize("NFD", text)))


def _camel_parts(word: str) -> list[str]:
    if len(word) <= _MOST_CAMEL and not word.islower() and _CAMEL.fullmatch(word):
        return _CAMEL_PARTS.findall(word)
    return []


def _with_camel_parts(text: str) -> str:
    """The text with `getUserName get User Name` in the place of `getUserName`."""
    classes = text.encode("latin-1", "replace").translate(_CLASSES)
    found: list[str] = []
    done = at = 0
    while (hump := _HUMP.search(classes, at)) is not None:
        start = classes.rfind(b" ", at, hump.start()) + 1 or at
        at = classes.find(b" ", hump.start())
        at = len(classes) if at < 0 else at
        parts = _camel_parts(text[start:at])
        if parts:
            found += (text[done:at], " ", " ".join(parts))
            done = at
    return "".join((*found, text[done:])) if found else text


_AROUND = 60


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a text: plain text and hits in turn, beginning with plain text."""

    parts: tuple[str, ...]


def excerpt(search: TextSearch, text: str) -> Excerpt | None:
    """The first place of a text that holds a term, with what stands around it; None where it holds none."""
    low = text.lower() if len(text.lower()) == len(text) else text
    if not low.isascii() and len(bare := _fold_marks(low)) == len(low):
        low = bare
    hits = sorted(match.span() for term in search.terms for match in _loose(term).finditer(low[: MAX_TEXT * 4]))
    if not hits:
        return None
    start, stop = max(0, hits[0][0] - _AROUND), min(len(text), hits[0][1] + 2 * _AROUND)
    parts: list[str] = []
    at = start
    for begin, end in hits:
        if begin >= at and end <= stop:
            parts += (text[at:begin], text[begin:end])
            at = end
    parts.append(text[at:stop])
    parts[0] = ("…" if start else "") + parts[0]
    parts[-1] += "…" if stop < len(text) else ""
    return Excerpt(tuple(" ".join(part.split("\n")) for part in parts))


@lru_cache(maxsize=64)
def _loose(term: Term) -> re.Pattern[str]:
    """A term as it may stand in a text whose compounds were not split."""
    return re.compile(term.pattern.pattern.replace(_BETWEEN, r"[\W_]*"))


def score(search: TextSearch, texts: Sequence[tuple[str, float]]) -> float:
    """How much texts of `searched`, each with a weight, are about the terms; repetitions count less and less."""
    total = 0.0
    for text, weight in texts:
        known = folded(text)
        for term in search.terms:
            count = sum(1 for _ in zip(term.spans(known), range(20), strict=False))
            total += weight * count / (count + 1.5) / (1 + len(known) / 8192)
    return total
