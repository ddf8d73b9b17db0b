"""What others do for a training job: judge a new policy before it is promoted, and show the job in a trace."""

from dataclasses import dataclass, field
from typing import Protocol

from heddle.store.control.jobs import JobRow
from heddle.store.control.training import ModelRow


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether `latest` may move to the new step; `data` goes into the event training_ended (numbers only)."""

    promote: bool
    data: dict[str, float] = field(default_factory=dict)


class PromotionJudge(Protocol):
    """Compares a new step with the latest one by an evaluation of the trace service."""

    async def judge(self, model: ModelRow, job: JobRow, candidate: int, latest: int) -> Verdict:
        """The verdict for a job whose config names an evaluation (`config["promotion"]`); both steps are served.

        Raises HeddleError when the evaluation cannot be run; then `latest` stays where it is.
        """
        ...


class JobObserver(Protocol):
    """Is told about jobs; may be told twice about the same end (after a crash), under the same job id."""

    async def ended(self, model: ModelRow, job: JobRow) -> None:
        """A job is about to be succeeded, failed or cancelled; `job` has its final state, error and metrics."""
        ...
