"""The server's log: lines for people or one JSON object each, in UTC."""

import io
import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TextIO

_OWN_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class UtcFormatter(logging.Formatter):
    """A line for people; times in UTC with milliseconds."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002
        """The time as ISO 8601."""
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonFormatter(UtcFormatter):
    """One JSON object per record: time, level, logger, message, what `extra` names, and a traceback as `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """The object as a line."""
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _OWN_FIELDS}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """What a line of `JsonFormatter` says."""

    level: int
    logger: str
    text: str
    extra: dict[str, Any]


def read_record(line: str) -> LoggedRecord | None:
    """The record of a line; None for a line that something else wrote."""
    try:
        fields = json.loads(line)
        level = logging.getLevelNamesMapping()[fields.pop("level").upper()]
        name, text = fields.pop("logger"), fields.pop("message")
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if traceback := fields.pop("exception", ""):
        text += f"\n{traceback}"
    fields.pop("time", None)
    return LoggedRecord(level, name, text, fields)


def configure_logs(level: str, form: str, stream: TextIO | io.TextIOBase) -> None:
    """Write everything from a level on to a stream, as `text` or as `json`."""
    text = UtcFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
