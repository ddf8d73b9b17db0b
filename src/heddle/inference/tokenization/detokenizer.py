"""Token ids to text, piece by piece, without ever showing half a character."""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

from heddle.inference.tokenization.pieces import PieceRule

REPLACEMENT = "\ufffd"


class Detokenizer(Protocol):
    """The text of one growing sequence."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that these ids complete; bytes of an unfinished character wait for the next call."""
        ...

    def flush(self) -> str:
        """What still waits, at the end of the sequence; an unfinished character is U+FFFD."""
        ...


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
        self,
        decode: Callable[[list[int]], str],
        skip: frozenset[int],
        raw: dict[int, str],
        before: Sequence[int] = (),
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
