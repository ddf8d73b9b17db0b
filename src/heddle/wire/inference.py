"""Where inference and trace meet: small records and protocols; neither room imports the other."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

Json = dict[str, Any]


class Identity(Protocol):
    """Who asks: the part of a recognised caller that accounts need."""

    @property
    def user(self) -> str:
        """The user of the key."""
        ...

    @property
    def key_id(self) -> str | None:
        """The id of the key; None where keys are not checked."""
        ...


@dataclass(slots=True)
class Completion:
    """One answered (or failed) completion, whole, when its answer is about to end."""

    request_id: str
    caller: Identity
    project: str | None
    """`team/project`; None when the request named none."""
    model: str
    """As the request asked for it."""
    served: str
    """The id under which it was served: the base model's or the adapter's, without a version."""
    started_at: datetime
    request: Json
    """The body as it was sent."""
    response: Json | None = None
    """A `chat.completion`, also for streams; None when nothing came."""
    error: str | None = None
    status: int = 200
    stream: bool = False
    policy: str | None = None
    """The adapter version that made the tokens."""
    base: str = ""
    """The public id of the base model; the only name of these that is shown in /metrics."""
    user: str | None = None
    """The request's own `user`, for the usage row."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    first_token_seconds: float | None = None
    seconds: float = 0.0
    traced: bool = False
    """True when another call already shows this completion: it is counted but not traced again."""


@dataclass(slots=True)
class InferenceCall:
    """A call that inference wants to see in a project's trace."""

    caller: Identity
    project: str
    """`team/project`, already found to be within the caller's reach."""
    op_name: str
    id: str
    trace_id: str
    started_at: datetime
    ended_at: datetime
    inputs: Json
    output: Json | None = None
    exception: str | None = None
    attributes: Json = field(default_factory=dict)
    usage: Json = field(default_factory=dict)
    """Token counts by model, as `summary.usage` holds them."""
    parent_id: str | None = None
    thread_id: str | None = None
    turn_id: str | None = None
    display_name: str | None = None


class CompletionSink(Protocol):
    """Keeps calls of inference; the trace service is one."""

    async def store(self, call: InferenceCall) -> None:
        """Store a whole call and return after its commit; raises HeddleError when it cannot be stored."""
        ...


class CostOf(Protocol):
    """What tokens of a model come to at an instant (microseconds); None for a model without a price."""

    def __call__(
        self, model: str, at: int, *, requests: int, prompt_tokens: int, completion_tokens: int, cached_tokens: int
    ) -> float | None:
        """US dollars; cached tokens are part of the prompt tokens."""
        ...


PricesOf = Callable[[str], Awaitable[CostOf]]
"""The prices that hold in a project (internal id; empty: default prices only)."""


class Chat(Protocol):
    """The chat service, called without HTTP."""

    async def complete(
        self, body: Mapping[str, Any], caller: Any, project: str | None, *, traced: bool = False
    ) -> Json | AsyncIterator[Json]:
        """Answer one chat completion request as POST /v1/chat/completions would.

        `body` is the request's JSON object; the answer is the `chat.completion`, or with `stream` its chunks. Raises
        HeddleError for what that route would refuse. `traced` says that the caller of this method traces it himself.
        """
        ...
