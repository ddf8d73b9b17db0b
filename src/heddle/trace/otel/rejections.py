"""What of exports is not stored: why, how often, and what the log says of it."""

import logging
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from heddle.errors import HeddleError
from heddle.http.metrics import REJECTED
from heddle.http.state import ServerState
from heddle.store.control.redaction import RejectionRow
from heddle.wire import times

logger = logging.getLogger("heddle.otlp")
MOST_MESSAGES = 20
_MOST_LOGGED = 1000
"""Causes that are logged, each of them once, in the life of a process."""
_LONGEST_CAUSE = 200
_TEMPORARY = (401, 429, 503, 504)
"""Statuses of requests that are refused for no fault of theirs, or before anything of them is read."""


class Cause(StrEnum):
    """Why something was not stored."""

    NO_PROJECT = "no_project"
    INVALID_ID = "invalid_id"
    INVALID_METRIC = "invalid_metric"
    INVALID_TIME = "invalid_time"
    NO_SPAN = "no_span"
    TOO_LARGE = "too_large"
    TOO_MANY_RECORDS = "too_many_records"
    TOO_MANY_SERIES = "too_many_series"


@dataclass(slots=True)
class Rejected:
    """What of one export was not stored, and why; projects are internal, None where nothing named one."""

    count: int = 0
    messages: list[str] = field(default_factory=list)
    counts: Counter[tuple[str | None, Cause]] = field(default_factory=Counter)
    first: dict[tuple[str | None, Cause], str] = field(default_factory=dict)
    """The first message of each project and cause."""

    def add(self, cause: Cause, message: str, project: str | None = None) -> None:
        """Reject one item."""
        self.count += 1
        self.counts[project, cause] += 1
        self.first.setdefault((project, cause), message)
        if len(self.messages) <= MOST_MESSAGES:
            self.messages.append(message)

    @property
    def text(self) -> str:
        """The first messages in one text."""
        return "; ".join(self.messages[:MOST_MESSAGES]) + ("; ..." if self.count > MOST_MESSAGES else "")


class RejectionLog:
    """Logs each cause once, and so many of them."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, ...]] = set()

    async def note(self, state: ServerState, signal: str, rejected: Rejected) -> None:
        """Count and log what one export lost, and keep it for the pages of its projects, or for the list of them."""
        if not rejected.count:
            return
        rows = []
        for (project, cause), count in rejected.counts.items():
            state.metrics.count(REJECTED, signal, cause, by=count)
            message = rejected.first[project, cause]
            if self._is_new(signal, cause, project or ""):
                logger.warning("OTLP %s: rejected (%s): %s", signal, cause, message)
            rows.append(RejectionRow(project or "", signal, cause, count, times.now(), message))
        try:
            await state.store.rejections.add(rows)
        except HeddleError as error:
            # What was good is stored, and to send it again would mend nothing.
            logger.warning("%d rejections of OTLP %s were not kept: %s", rejected.count, signal, error.reason)

    def note_refusal(self, signal: str, error: HeddleError) -> None:
        """Log why a whole export was refused, where its sender would have to change something."""
        cause = error.reason.partition(":")[0][:_LONGEST_CAUSE]
        if error.status < 500 and error.status not in _TEMPORARY and self._is_new(signal, "refused", cause):
            logger.warning("OTLP %s: an export was refused with %d: %s", signal, error.status, error.reason)

    def _is_new(self, *cause: str) -> bool:
        if cause in self._logged or len(self._logged) >= _MOST_LOGGED:
            return False
        self._logged.add(cause)
        return True
