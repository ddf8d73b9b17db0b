"""Instants: datetimes at the edge, integer microseconds since 1970 (UTC) inside."""

import time
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
SECOND = 1_000_000
DAY = 86_400 * SECOND


def now() -> int:
    """This instant in microseconds."""
    return time.time_ns() // 1000


def to_micros(instant: datetime) -> int:
    """Microseconds of a datetime; a naive one is taken as UTC."""
    aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
    return (aware - EPOCH) // _MICROSECOND


def to_datetime(micros: int) -> datetime:
    """The UTC datetime of an instant."""
    return EPOCH + timedelta(microseconds=micros)


def to_iso(micros: int) -> str:
    """ISO 8601 text with microseconds and `Z`."""
    return to_datetime(micros).isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def optional_iso(micros: int | None) -> str | None:
    """ISO text, or None."""
    return None if micros is None else to_iso(micros)


def parse(text: str) -> int | None:
    """Microseconds of ISO text (a bare date is midnight UTC), or None when it is no instant."""
    try:
        return to_micros(datetime.fromisoformat(text.strip()))
    except (ValueError, OverflowError):
        return None
