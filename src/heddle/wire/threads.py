"""What a list of threads shows of each, beyond its turns."""

from typing import NamedTuple


class ThreadStats(NamedTuple):
    """Tokens of all calls of a thread, their cost in dollars (None where no model has a price), and failed turns."""

    thread_id: str
    tokens: int
    dollars: float | None
    errors: int
