"""Instants, and ids that sort by theirs: datetimes at the border, integer microseconds since 1970 (UTC) inside."""

import os
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from heddle.errors import InvalidRequest

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = EPOCH.replace(tzinfo=None)
SECOND = 1_000_000
_MINUTE = 60 * SECOND
DAY = 86_400 * SECOND


def now() -> int:
    """This instant in microseconds."""
    return time.time_ns() // 1000


def _since_epoch(instant: datetime) -> int:
    since = instant - EPOCH
    return since.days * DAY + since.seconds * SECOND + since.microseconds


FIRST, LAST = (_since_epoch(edge.replace(tzinfo=UTC)) for edge in (datetime.min, datetime.max))
"""The first and the last instant of the calendar."""


def to_micros(instant: datetime) -> int:
    """Microseconds of a datetime; a naive one is taken as UTC. Raises InvalidRequest outside its years 1 to 9999."""
    micros = _since_epoch(instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC))
    if not FIRST <= micros <= LAST:
        raise InvalidRequest(f"The time {instant.isoformat()} must be within the years 1 to 9999 in UTC")
    return micros


def to_datetime(micros: int) -> datetime:
    """The UTC datetime of an instant."""
    return EPOCH + timedelta(microseconds=micros)


def to_iso(micros: int) -> str:
    """ISO 8601 text with microseconds and `Z`."""
    minute, rest = divmod(micros, _MINUTE)
    return f"{_beginning(minute)}:{rest // SECOND:02d}.{rest % SECOND:06d}Z"


@lru_cache(maxsize=1024)
def _beginning(minute: int) -> str:
    """ISO text of a minute since 1970, which many instants share."""
    return (_NAIVE_EPOCH + timedelta(minutes=minute)).isoformat("T", "minutes")


def optional_iso(micros: int | None) -> str | None:
    """ISO text, or None."""
    return None if micros is None else to_iso(micros)


def parse(text: str) -> int | None:
    """Microseconds of ISO text (a bare date is midnight UTC), or None when it is no instant."""
    try:
        return to_micros(datetime.fromisoformat(text.strip()))
    except (ValueError, OverflowError, InvalidRequest):
        return None


_PERIOD = re.compile(r"(\d+(?:\.\d+)?)([smhd])", re.ASCII)
_MOST_DAYS = 36_600
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def read_period(text: str) -> float:
    """The seconds of a text such as 90d, 12h or 30m, at most a hundred years; raises InvalidRequest."""
    match = _PERIOD.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else -1.0
    if not 0 <= seconds <= _MOST_DAYS * 86_400:
        raise InvalidRequest(
            f"Invalid duration {text[:100]!r}; expected a value such as 90d, 12h or 30m, at most {_MOST_DAYS}d"
        )
    return seconds


_id_lock = threading.Lock()
_last_ticks = 0
_random_bytes = b""
_taken_bytes = 0


def uuid7() -> str:
    """A new UUID version 7 (RFC 9562), lower case; later ones sort after earlier ones of this process.

    The 12 bits after the milliseconds carry its fraction, so that ids made within one millisecond keep their order.
    """
    global _last_ticks, _random_bytes, _taken_bytes
    with _id_lock:
        ticks = time.time_ns() * 4096 // 1_000_000
        _last_ticks = ticks = max(ticks, _last_ticks + 1)
        if _taken_bytes >= len(_random_bytes):
            # Each look at the system's randomness gives other threads the interpreter, hence many bytes at once.
            _random_bytes, _taken_bytes = os.urandom(4096), 0
        random = _random_bytes[_taken_bytes : _taken_bytes + 8]
        _taken_bytes += 8
    milliseconds, fraction = divmod(ticks, 4096)
    tail = int.from_bytes(random, "big") & 0x3FFF_FFFF_FFFF_FFFF
    number = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | 0x7 << 76 | fraction << 64 | 0b10 << 62 | tail
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
