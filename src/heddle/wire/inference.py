"""Where inference and trace meet: small records and protocols; neither package imports the other."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from heddle.errors import HeddleError
from heddle.wire.calls import CostOf
from heddle.wire.jsontypes import Json


class Identity(Protocol):
    """Who asks: the part of a recognised caller that accounts need."""

    @property
    def user(self) -> str:
        """The user of the key."""

    @property
    def key_id(self) -> str | None:
        """The id of the key; None where keys are not checked."""


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
    """The whole answer of the interface, also for streams; None when nothing came."""
    op_name: str = "heddle.chat.completions"
    """Of its call in the trace."""
    thread_id: str | None = None
    """The thread of the trace that it is a turn of."""
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


PriceChanges = Callable[[str], Awaitable[Sequence[int]]]
"""The instants (microseconds) at which the price of some model changes in a project (internal id), in order."""


def sum_of_costs(costs: Iterable[float | None]) -> float | None:
    """The sum of those that are known; None where none is."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """The default price of a provider's model: US dollars per token, from a day on (ISO date)."""

    model: str
    since: str
    prompt: float
    completion: float
    cache_read: float
    cache_creation: float


class PricesOf(Protocol):
    """What tokens cost."""

    async def __call__(self, project: str) -> CostOf:
        """The prices that hold in a project (internal id; empty: default prices only)."""

    async def changes(self, project: str) -> list[int]:
        """The instants (microseconds) at which the price of some model changes in a project, in order."""

    def of_provider(self, provider: str) -> list[ModelPrice]:
        """The newest default price of every model of a provider, by name; empty for one that is not known."""


class ProviderFailed(HeddleError):
    """A provider cannot be reached, or answered a failure; `answered` is its status then, else 0."""

    status = 502

    def __init__(self, reason: str, answered: int = 0, headers: dict[str, str] | None = None) -> None:
        super().__init__(reason, headers)
        self.answered = answered


class Completions(Protocol):
    """Completions as POST /completions/create answers them: on this server's engine, or by a provider."""

    async def create(self, inputs: Json, caller: Any, project: str) -> Json:
        """The `chat.completion` to some `inputs` of that route in `entity/project`, refs in them internal.

        It is counted, and not shown as a call of its own. Raises HeddleError (of a provider: ProviderFailed) where the
        route answers with an `error`.
        """
