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
_ZSTD_MOST_RATIO = 32_768
"""A block of four bytes can stand for 128 KiB."""


class _Unpacker(Protocol):
    def unpack(self, data: bytes, most: int) -> bytes:
        """The plain bytes of the next part; about `most`, no more is needed."""
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
            plain = self._unpacker.unpack(data, most)[:most]
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
        return b"" if self._inflater is None else bytes(self._inflater.decompress(data, most))

    @property
    def is_done(self) -> bool:
        return self._inflater is not None and bool(self._inflater.eof)


class _Gzip:
    """One gzip member or several, one behind the other."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def unpack(self, data: bytes, most: int) -> bytes:
        parts: list[bytes] = []
        left = most
        while data and left > 0:
            if self._inflater.eof:
                self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
            parts.append(self._inflater.decompress(data, left))
            left -= len(parts[-1])
            data = self._inflater.unused_data
        return b"".join(parts)

    @property
    def is_done(self) -> bool:
        return self._inflater.eof


class _Zstd:
    """One zstd frame or several; fed in pieces so small that none can unpack to much more than was asked for."""

    def __init__(self) -> None:
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._frame = self._unpacker.decompressobj()

    def unpack(self, data: bytes, most: int) -> bytes:
        # Its value is not copied once more, as that of a list of parts would be.
        plain = io.BytesIO()
        left = most
        piece = max(64, most // _ZSTD_MOST_RATIO)
        place = 0
        while place < len(data) and left > 0:
            if self._frame.eof:
                self._frame = self._unpacker.decompressobj()
            part = data[place : place + piece]
            left -= plain.write(self._frame.decompress(part))
            place += len(part) - len(self._frame.unused_data)
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
