"""Where training and evaluations meet: a policy is judged by an evaluation of the trace service."""

from dataclasses import dataclass
from typing import Any, Protocol

from heddle.wire.jsontypes import Json


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the evaluated model answers."""

    temperature: float = 0.0
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Scored:
    """What an evaluation came to."""

    score: float
    """The mean over rows, trials and scorers; a row whose answer failed counts 0."""
    rows: int
    failed: int
    """Answers that failed, of rows times trials."""
    summary: Json
    """Per scorer, as SDKs summarise: `true_count` and `true_fraction`, or `mean`."""
    call_id: str
    """The call that shows the run in the project's trace."""


class Evaluator(Protocol):
    """Runs evaluations that are stored as objects."""

    async def check(self, ref: str, caller: Any) -> str:
        """The ref (`weave:///entity/project/object/name:version`) with its version as a digest.

        Reads everything that a run needs with the caller's rights. Raises InvalidRequest for what cannot be run here,
        NotFound and Forbidden for what cannot be read.
        """
        ...

    async def run(
        self, ref: str, model: str, caller: Any, project: str, *, sampling: Sampling, run_id: str, label: str
    ) -> Scored:
        """Let a chat model answer every row and score the answers; visible as calls of `project` (`entity/project`).

        `run_id` names the run: the same again is the same calls. Raises HeddleError when it cannot be run.
        """
        ...
