"""Reasoning as the opaque text that clients keep and send back. It is compressed, not secret: it is theirs to read."""

import base64
import binascii
import zlib

from heddle.errors import InvalidRequest

_PREFIX = "heddle1."
_PREFIXES = (_PREFIX, "heddle.")


def encode_reasoning(text: str) -> str:
    """The opaque text of some reasoning."""
    return _PREFIX + base64.urlsafe_b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"))).decode()


class ReasoningDecoder:
    """Decodes the opaque texts of one request, together at most so many bytes: kilobytes stand for very much text."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = self._bytes_left = most_bytes

    def decode(self, opaque: str, at: str) -> str | None:
        """The reasoning, None where it was not made here; raises InvalidRequest naming `at` for too many bytes."""
        prefix = next(filter(opaque.startswith, _PREFIXES), None)
        if prefix is None:
            return None
        inflater = zlib.decompressobj()
        try:
            packed = base64.b64decode(opaque.removeprefix(prefix), altchars=b"-_", validate=True)
            text = inflater.decompress(packed, self._bytes_left + 1)  # 0 would mean without a limit
            self._bytes_left -= len(text)
            if self._bytes_left < 0:
                raise InvalidRequest(
                    f"{at}: opaque reasoning can have at most {self._most_bytes} bytes per request", param=at
                )
            return text.decode("utf-8", "surrogatepass") if inflater.eof else None
        except (ValueError, zlib.error, binascii.Error):
            return None
