"""Content-Encoding of request bodies: gzip, deflate and zstd, undone a part at a time and within bounds."""

import io
import zlib
from collections.abc import Callable
from typing import Any, Protocol

import zstandard

from heddle.errors import InvalidRequest, UnsupportedMedia

SUPPORTED = "gzip, deflate and zstd"
_ZSTD_WINDOW = 8 * 1024 * 1024
"""What RFC 9659 lets a sender ask of a receiver."""
_ZSTD_PIECE = 256
"""Bytes fed at once: a block of four can stand for 128 KiB, so that a piece becomes 8 MiB at most."""
_ZLIB_PIECE = 64 * 1024
_ZLIB_PLAIN = 1024 * 1024
"""The most plain bytes of gzip and deflate that are made at once."""
_MOST_FRAMES = 10_000
"""Members or frames of one body: empty ones take a few bytes, and as long to begin as others."""


class _Unpacker(Protocol):
    def unpack(self, data: bytes, most: int) -> bytes:
        """The plain bytes of the next part, at most `most`."""
        ...

    @property
    def is_done(self) -> bool:
        """True when the data may end here."""
        ...


class Decoder:
    """Undoes one encoding; raises UnsupportedMedia for one that is not known."""

    def __init__(self, encoding: bytes) -> None:
        self._name = encoding.decode("latin-1")
        maker = _MAKERS.get(encoding)
        if maker is None:
            raise UnsupportedMedia(
                f"Content-Encoding {self._name[:40]!r} is not supported here; supported are {SUPPORTED}"
            )
        self._unpacker = maker()
        self._has_begun = False

    def decode(self, data: bytes, most: int, last: bool) -> bytes:
        """The plain bytes of the next part, at most `most`; raises InvalidRequest for data that is not so encoded."""
        self._has_begun = self._has_begun or bool(data)
        if not self._has_begun:
            return b""
        try:
            plain = self._unpacker.unpack(data, most)
        except (zlib.error, zstandard.ZstdError):
            raise InvalidRequest(f"The body is no valid {self._name}") from None
        if last and len(plain) < most and not self._unpacker.is_done:
            raise InvalidRequest(f"The {self._name} body ends too early")
        return plain


class _Deflate:
    """The format of zlib, which "deflate" means; some clients send the bare stream."""

    def __init__(self) -> None:
        self._inflater: Any = None

    def unpack(self, data: bytes, most: int) -> bytes:
        if self._inflater is None and data:
            self._inflater = zlib.decompressobj(zlib.MAX_WBITS if data[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        plain = io.BytesIO()
        if self._inflater is not None:
            _inflate(self._inflater, data, 0, most, plain)
        return plain.getvalue()

    @property
    def is_done(self) -> bool:
        return self._inflater is not None and bool(self._inflater.eof)


class _Gzip:
    """One gzip member or several, one behind the other."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._begun = 1

    def unpack(self, data: bytes, most: int) -> bytes:
        plain = io.BytesIO()
        place = 0
        while place < len(data) and plain.tell() < most:
            if self._inflater.eof:
                self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
                self._begun = _counted(self._begun)
            place = _inflate(self._inflater, data, place, most, plain)
        return plain.getvalue()

    @property
    def is_done(self) -> bool:
        return self._inflater.eof


def _inflate(inflater: Any, data: bytes, place: int, most: int, plain: io.BytesIO) -> int:
    """Add plain bytes until there are `most` or the stream ends; returns the place in `data` that was reached."""
    piece, rest, is_full = 1024, b"", False
    while (rest or is_full or place < len(data)) and plain.tell() < most and not inflater.eof:
        if not rest and not is_full:
            rest = data[place : place + piece]
            place += len(rest)
            piece = min(2 * piece, _ZLIB_PIECE)
        room = min(_ZLIB_PLAIN, most - plain.tell())
        # What is full may have taken all it was given and still hold plain bytes.
        is_full = plain.write(inflater.decompress(rest, room)) == room
        rest = inflater.unconsumed_tail
    return place - len(inflater.unused_data)


def _counted(begun: int) -> int:
    """One frame more; raises InvalidRequest."""
    if begun >= _MOST_FRAMES:
        raise InvalidRequest(f"The body is compressed in more than {_MOST_FRAMES} parts")
    return begun + 1


class _Zstd:
    """One zstd frame or several."""

    def __init__(self) -> None:
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._frame = self._unpacker.decompressobj()
        self._begun = 1

    def unpack(self, data: bytes, most: int) -> bytes:
        plain = io.BytesIO()
        place, piece = 0, 32
        while place < len(data) and plain.tell() < most:
            if self._frame.eof:
                self._frame = self._unpacker.decompressobj()
                self._begun = _counted(self._begun)
            part = data[place : place + piece]
            piece = min(2 * piece, _ZSTD_PIECE)
            plain.write(self._frame.decompress(part))
            place += len(part) - len(self._frame.unused_data)
        plain.truncate(most)
        return plain.getvalue()

    @property
    def is_done(self) -> bool:
        return bool(self._frame.eof)


_MAKERS: dict[bytes, Callable[[], _Unpacker]] = {
    b"gzip": _Gzip,
    b"x-gzip": _Gzip,
    b"deflate": _Deflate,
    b"zstd": _Zstd,
}
