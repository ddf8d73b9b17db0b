"""Token ids to text, piece by piece: bytes of tokens, detokenizers, and stop strings."""

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class PieceRule:
    """How the pieces of one vocabulary become bytes."""

    byte_level: bool = False
    byte_tokens: bool = False
    """`<0x0A>` is the byte 10."""
    replace: tuple[tuple[str, str], ...] = ()
    strip_start: int = 0
    """Up to this many spaces at the very start of a text are dropped."""
    strip_first: str = ""
    """This character is dropped wherever it stands in the first piece of a text."""

    def bytes_of(self, piece: str) -> bytes:
        """The bytes of one piece, as they stand in the middle of a text."""
        if self.byte_level:
            table = byte_level_table()
            if all(character in table for character in piece):
                return bytes(table[character] for character in piece)
            return piece.encode("utf-8", "replace")
        if self.byte_tokens and (match := _BYTE_TOKEN.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        for old, new in self.replace:
            piece = piece.replace(old, new)
        return piece.encode("utf-8", "replace")


@cache
def byte_level_table() -> dict[str, int]:
    """The 256 characters of byte-level BPE: printable Latin-1 stands for itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + number): byte for number, byte in enumerate(others)}


def read_rule(decoder: dict[str, Any] | None) -> PieceRule | None:
    """The rule that a decoder of a `tokenizer.json` amounts to; None when it is not one of the two families."""
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return PieceRule(byte_level=True) if set(kinds) <= {"ByteLevel", "Fuse"} else None
    if not kinds or set(kinds) - {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        return None
    replace: list[tuple[str, str]] = []
    strip_start, strip_first = 0, ""
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                replace.append((old, new))
            case {"type": "Metaspace", "replacement": old}:
                replace.append((old, " "))
                strip_first = "" if step.get("prepend_scheme", "always") == "never" else old
            case {"type": "Strip", "content": " ", "start": start, "stop": 0}:
                strip_start += start
            case {"type": "ByteFallback" | "Fuse"}:
                pass
            case _:
                return None
    return PieceRule(
        byte_tokens="ByteFallback" in kinds, replace=tuple(replace), strip_start=strip_start, strip_first=strip_first
    )


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The text of one growing sequence."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids complete; bytes of an unfinished character wait for the next call."""

    def flush(self) -> str:
        """What still waits, at the end of the sequence; an unfinished character is U+FFFD."""


class ByteDetokenizer:
    """For vocabularies whose pieces are bytes: reads the concatenated bytes as UTF-8."""

    def __init__(
        self,
        piece: Callable[[int], str | None],
        piece_bytes: Callable[[int], bytes],
        rule: PieceRule,
        skip: frozenset[int],
        at_start: bool = True,
    ) -> None:
        """`piece` and `piece_bytes` give the vocabulary entry of an id and its bytes by the rule.

        `skip` are ids without text; `at_start`: no text goes before.
        """
        self._piece = piece
        self._piece_bytes = piece_bytes
        self._strip_first = rule.strip_first if at_start else ""
        self._skip = skip
        self._rule = rule
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = rule.strip_start if at_start else 0

    def push(self, ids: Sequence[int]) -> str:
        text = "".join(self._utf8.decode(self._bytes(token_id)) for token_id in ids if token_id not in self._skip)
        return self._strip_start(text) if self._strip else text

    def flush(self) -> str:
        return self._strip_start(self._utf8.decode(b"", True))

    def _bytes(self, token_id: int) -> bytes:
        if self._strip_first and (piece := self._piece(token_id)) is not None:
            dropped, self._strip_first = self._strip_first, ""
            return self._rule.bytes_of(piece.replace(dropped, ""))
        return self._piece_bytes(token_id)

    def _strip_start(self, text: str) -> str:
        while self._strip and text:
            if not text.startswith(" "):
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text


class WindowDetokenizer:
    """For any other decoder: decodes a short window twice, without and with the new ids, and shows the difference."""

    def __init__(
        self, decode: Callable[[list[int]], str], skip: frozenset[int], raw: dict[int, str], before: Sequence[int] = ()
    ) -> None:
        """`raw`: ids that follow one another with exactly this text; `before`: ids whose text goes before."""
        self._decode = decode
        self._skip = skip
        self._raw = raw
        self._window = list(before)
        self._shown = len(self._window)
        self._after_raw = False

    def push(self, ids: Sequence[int]) -> str:
        return "".join(self._push_one(token_id) for token_id in ids if token_id not in self._skip)

    def flush(self) -> str:
        return self._take(final=True)

    def _push_one(self, token_id: int) -> str:
        raw = self._raw.get(token_id)
        follows_raw, self._after_raw = self._after_raw and raw is not None, raw is not None
        if follows_raw and raw is not None:
            text = self._take(final=True)
            self._window, self._shown = [token_id], 1
            return text + raw
        self._window.append(token_id)
        return self._take(final=False)

    def _take(self, final: bool) -> str:
        before = self._decode(self._window[: self._shown])
        text = self._decode(self._window)
        if len(text) <= len(before) or (text.endswith(REPLACEMENT) and not final):
            return ""
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        return text[len(before) :]


class StopStrings:
    """Looks for stop strings and holds back text that may still become one.

    The match that is complete earliest wins; of two that are complete at the same character, the longer one. What
    comes out does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str], include_in_output: bool = False) -> None:
        """`stops` are non-empty; `include_in_output`: the text ends after the match, not before it."""
        self._stops = tuple(dict.fromkeys(stops))
        self._include = include_in_output
        self._tail = ""
        self._searched = 0
        """Length of the part of the tail in which no match may end any more."""
        self._shown = 0
        """Length of the part of the tail that was given out already."""
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Add text; gives what may be shown now and the stop string that ended the text, if one did."""
        if self.matched is not None:
            return "", self.matched
        self._tail += text
        found = min((match for stop in self._stops if (match := self._find(stop))), default=None)
        if found is None:
            return self._advance(), None
        end, start, self.matched = found
        shown = self._tail[self._shown : end if self._include else start]
        self._tail = ""
        return shown, self.matched

    def skip(self, text: str) -> str:
        """Add text in which no stop string may end (below `min_tokens`), though one may begin; as `push`."""
        if self.matched is not None:
            return ""
        self._tail += text
        return self._advance()

    def flush(self) -> str:
        """What is still held back, at the end of the text."""
        shown, self._tail = self._tail[self._shown :], ""
        self._searched = self._shown = 0
        return shown

    def _find(self, stop: str) -> tuple[int, int, str] | None:
        start = self._tail.find(stop, max(0, self._searched - len(stop) + 1))
        return (start + len(stop), start, stop) if start >= 0 else None

    def _advance(self) -> str:
        """Keep the longest end of the text that begins a stop string; show the rest (all of it when included)."""
        keep = max((overlap(self._tail, stop) for stop in self._stops), default=0)
        cut = len(self._tail) - keep
        shown = self._tail[self._shown :] if self._include else self._tail[self._shown : cut]
        self._tail = self._tail[cut:]
        self._searched = keep
        self._shown = keep if self._include else 0
        return shown


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of the text that is a true beginning of the mark."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)
