"""Every step that an annotator can take, and what forbids the others (contract: trace-evals, section 11)."""

import itertools

import pytest

from heddle.errors import InvalidRequest
from heddle.evals.annotation_queues import ALLOWED, check_transition

PRESENT = (None, "unstarted", "in_progress", "completed", "skipped")
CHANGES = {
    *((None, state) for state in ALLOWED),
    *((present, done) for present in ("unstarted", "in_progress") for done in ("completed", "skipped")),
}


@pytest.mark.parametrize(("present", "state"), list(itertools.product(PRESENT, ALLOWED)))
def test_steps(present: str | None, state: str) -> None:
    move = check_transition(state)
    if (present, state) in CHANGES:
        assert move(present) is True
    elif present == state:
        assert move(present) is False
    else:
        wanted = "Cannot transition" if state == "in_progress" else f"Invalid state transition from '{present}'"
        with pytest.raises(InvalidRequest, match=wanted):
            move(present)


@pytest.mark.parametrize("state", ["unstarted", "", "done", "COMPLETED"])
def test_states_that_nobody_can_set(state: str) -> None:
    with pytest.raises(InvalidRequest, match="Invalid annotation_state"):
        check_transition(state)
