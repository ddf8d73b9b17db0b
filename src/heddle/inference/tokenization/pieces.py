"""The bytes behind each token of a vocabulary, read from the decoder that a `tokenizer.json` declares.

Two families cover nearly every model: byte-level BPE (each character stands for one byte) and SentencePiece-like
vocabularies (U+2581 for the space, `<0x0A>` for single bytes). For these the text of a sequence is the UTF-8 reading
of its concatenated bytes, which can be streamed exactly; `read_rule` answers None for any other decoder.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

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
