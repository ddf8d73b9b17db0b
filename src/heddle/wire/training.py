"""What training needs of others: calls to learn from, evaluations that judge a policy, a host that serves it."""

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from heddle.wire.jsontypes import Json

_JOB_CALLS = uuid.UUID("0d2ac7a5-53a5-5f0c-9d4e-3f6b0a1e7c11")


def call_id_of(job_id: str) -> str:
    """The id of the call that shows a training job."""
    return str(uuid.uuid5(_JOB_CALLS, job_id))


@dataclass(frozen=True, slots=True)
class CallSelection:
    """Which calls of a project; the values are those of a body of /calls/stream_query, refs in either form."""

    project_id: str
    """`entity/project`."""
    filter: Mapping[str, Any] | None = None
    query: Mapping[str, Any] | None = None
    sort_by: Sequence[Mapping[str, str]] | None = None
    limit: int | None = None
    ids_only: bool = False
    """Only `id` and `trace_id` of each call are wanted."""


class CallSource(Protocol):
    """Reads calls with somebody's rights."""

    def read(self, caller: Any, selection: CallSelection, /) -> AsyncIterator[bytes]:
        """The selected calls with their feedback (`summary.weave.feedback`), refs in messages followed.

        Each chunk holds whole lines, one call as JSON in each.

        Raises Forbidden outside the caller's reach, InvalidField and InvalidRequest for a condition that cannot be
        used, before the first slice.
        """


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

    async def run(
        self, ref: str, model: str, caller: Any, project: str, *, sampling: Sampling, run_id: str, label: str
    ) -> Scored:
        """Let a chat model answer every row and score the answers; visible as calls of `project` (`entity/project`).

        `run_id` names the run: the same again is the same calls. Raises HeddleError when it cannot be run.
        """


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A base model that this server serves, and therefore can train."""

    id: str
    folder: Path
    digest: str
    """Eight hex digits of its files."""
    vocab_size: int
    max_model_len: int
    config: dict[str, Any]
    """Its `config.json`."""


@dataclass(frozen=True, slots=True)
class PolicyName:
    """What a trainable model is called; clients write `wandb-artifact:///entity/project/name`."""

    entity: str
    project: str
    name: str


@dataclass(frozen=True, slots=True)
class Drawn:
    """One sequence that a model wrote; `best` has the best tokens for each of its tokens."""

    tokens: list[int]
    logprobs: list[float]
    best: list[tuple[tuple[int, float], ...]]
    has_stopped: bool


@dataclass(frozen=True, slots=True)
class Draws:
    """What came of a prompt; for each of its tokens but the first the logprob and the best tokens, where asked for."""

    sequences: list[Drawn]
    prompt: list[float | None] | None
    prompt_best: list[tuple[tuple[int, float], ...] | None] | None
    cached_tokens: int


class PolicyHost(Protocol):
    """Serves the versions of trainable models."""

    async def base_models(self) -> list[BaseModel]:
        """The base models that can be trained; empty where none is served."""

    async def offer(self, policy: PolicyName, step: int, base_model: str, folder: str, user: str) -> None:
        """Make a step addressable from its PEFT folder, which stays where it is (relative to the data folder).

        Returns when it is listed, and loaded where the engine runs; does nothing when it is offered already.
        Raises InvalidRequest when the folder does not fit the base model. `latest` stays where it is.
        """

    async def point(self, policy: PolicyName, step: int, instead_of: int | None = None) -> None:
        """Let the bare name mean a step, at once and durably; requests that run end with the step they began with.

        Raises Conflict where the name does not mean the step `instead_of`.
        """

    async def latest(self, policy: PolicyName) -> int | None:
        """The step that the bare name means; None for a name that is not trainable."""

    async def withdraw(self, policy: PolicyName, steps: list[int], user: str) -> None:
        """Take steps away: from the engine, the list and the addresses. Their folders are the caller's to remove."""

    async def forget(self, policy: PolicyName, user: str) -> None:
        """Take the whole name away, with all its steps."""

    async def draw(self, body: Json, caller: Any, project: str) -> Draws:
        """Let a model write behind a prompt of token ids; `body` is that of /v1/completions. Raises HeddleError."""
