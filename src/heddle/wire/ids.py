"""Identifiers that the server makes."""

import os
import threading
import time

_lock = threading.Lock()
_last = 0
_random = b""
_taken = 0


def uuid7() -> str:
    """A new UUID version 7 (RFC 9562), lower case; later ones sort after earlier ones of this process.

    The 12 bits after the milliseconds carry its fraction, so that ids made within one millisecond keep their order.
    """
    global _last, _random, _taken
    with _lock:
        ticks = time.time_ns() * 4096 // 1_000_000
        _last = ticks = max(ticks, _last + 1)
        if _taken >= len(_random):
            # Each look at the system's randomness gives other threads the interpreter, hence many bytes at once.
            _random, _taken = os.urandom(4096), 0
        random = _random[_taken : _taken + 8]
        _taken += 8
    milliseconds, fraction = divmod(ticks, 4096)
    tail = int.from_bytes(random, "big") & 0x3FFF_FFFF_FFFF_FFFF
    number = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | tail
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
