"""A log record on its way into a call."""

from typing import NamedTuple


class StoredRecord(NamedTuple):
    """What a log record (or the span itself) says of a span or a session.

    `owner` is the trace, or the session, that it belongs to; `span_id` the span within the trace, empty for sessions.
    `id` tells the records of one owner apart; `at` is in nanoseconds, `content` JSON text.
    """

    project: str
    owner: str
    span_id: str
    id: str
    at: int
    user: str
    content: str
