"""How an annotator's progress on one item may go on (contract: trace-evals, section 11)."""

from heddle.errors import InvalidRequest
from heddle.store.control.annotation_queues import COMPLETED, DONE, IN_PROGRESS, SKIPPED, Move

ALLOWED = (COMPLETED, IN_PROGRESS, SKIPPED)


def move_to(state: str) -> Move:
    """The check of a step to a state; raises InvalidRequest for a state that nobody can set."""
    if state not in ALLOWED:
        shown = ", ".join(f"'{name}'" for name in ALLOWED)
        raise InvalidRequest(f"Invalid annotation_state '{state[:100]}'. Must be one of: {shown}")

    def move(present: str | None) -> bool:
        if present is None:
            return True
        if present == state:
            return False
        if state == IN_PROGRESS:
            raise InvalidRequest(
                f"Cannot transition to 'in_progress' when a record already exists (current state: '{present}')"
            )
        if present in DONE:
            raise InvalidRequest(
                f"Invalid state transition from '{present}' to '{state}'. "
                "Only 'in_progress' and 'unstarted' can become 'completed' or 'skipped'"
            )
        return True

    return move
