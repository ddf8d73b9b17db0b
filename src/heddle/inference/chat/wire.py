"""What an interface for completions is: how its request is read, and how generated choices become its answer.

Chat completions, Responses, messages and text completions differ in nothing else: `Inference` runs, limits, counts,
traces and cancels all of them.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from heddle.errors import HeddleError, InvalidRequest
from heddle.inference.chat.generation import Choice, Delta, Facts
from heddle.inference.chat.request import ChatRequest
from heddle.inference.engine.base import PromptChoices, Sampling, TokenLogprobs
from heddle.inference.tokenizer import Tokenizer
from heddle.wire.jsontypes import Json


@dataclass(frozen=True, slots=True)
class Shape:
    """What of the answer is wanted, and what is the same in all its parts."""

    id: str
    created: int
    """Seconds."""
    model: str
    fingerprint: str
    role: str
    echo: str
    tokenizer: Tokenizer
    sampling: Sampling
    """That of the first prompt."""
    logprobs: bool = False
    names_as_ids: bool = False
    logprobs_temperature: float | None = None
    """Named beside logprobs that are not raw."""
    token_ids: bool = False
    prompt_ids: bool = False
    """The prompt's token ids, for the whole answer."""
    prompt_ids_in_choices: bool = False
    """The same in each choice, which is what becomes part of a trajectory."""
    include_usage: bool = False
    usage_in_every_chunk: bool = False
    function_call: bool = False
    """A tool call is told as `function_call`, which came before `tool_calls`."""
    reasons: bool = False
    """Whether the model has reasoning blocks; usage then counts their tokens."""

    def name_token(self, token_id: int) -> str:
        """A token beside its log-probability."""
        return f"token_id:{token_id}" if self.names_as_ids else self.tokenizer.token_text(token_id)

    def describe_logprobs(self, items: Sequence[TokenLogprobs]) -> list[Json]:
        """Log-probabilities of tokens, each with its best alternatives."""
        return [
            {
                **self._describe_token(item.token_id, item.logprob),
                "top_logprobs": [self._describe_token(token_id, logprob) for token_id, logprob in item.top],
            }
            for item in items
        ]

    def _describe_token(self, token_id: int, logprob: float) -> Json:
        text, data = self.name_token(token_id), list(self.tokenizer.token_bytes(token_id))
        return {"token": text, "logprob": logprob, "bytes": data}


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Tokens of one answer; those from the cache are part of the prompt's, those of reasoning part of the output's."""

    prompt: int
    cached: int
    output: int
    reasoning: int


def count_tokens(facts: Sequence[Facts], choices: Sequence[Choice]) -> TokenCounts:
    """The tokens so far."""
    return TokenCounts(
        prompt=sum(len(prompt.prompt_token_ids) for prompt in facts),
        cached=sum(prompt.cached_tokens for prompt in facts),
        output=sum(choice.completion_tokens for choice in choices),
        reasoning=sum(choice.reasoning_tokens for choice in choices),
    )


class Answer(ABC):
    """Writes one answer, whole or as events, from its choices; both have the same parts."""

    def __init__(self, shape: Shape, facts: Sequence[Facts], choices: Sequence[Choice]) -> None:
        """`facts` has one entry per prompt; the choices of a prompt stand together, in the order of the prompts."""
        self.shape = shape
        self.facts = facts
        self.choices = choices
        self.error: HeddleError | None = None
        """Why it could not be finished; set before the last `body`."""

    @abstractmethod
    def body(self) -> Json:
        """The answer as a whole, or what there is of it when it failed or was cut; shown in the trace too."""

    @abstractmethod
    def opening(self) -> list[Json]:
        """The events before the first token."""

    @abstractmethod
    def delta(self, index: int, delta: Delta) -> list[Json]:
        """The events of a new token of one choice; none when the client would learn nothing."""

    @abstractmethod
    def closing(self) -> list[Json]:
        """The events after the last token."""

    @abstractmethod
    def failure(self, error: HeddleError) -> list[Json]:
        """The events that end a stream which cannot go on."""


Keep = Callable[[Json], Coroutine[Any, Any, None]]
MakeAnswer = Callable[[Shape, Sequence[Facts], Sequence[Choice]], Answer]


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A request of any interface, as the service runs it."""

    chat: ChatRequest
    """Model, sampling, tools, format, and the messages."""
    make_answer: MakeAnswer
    prompts: tuple[str | tuple[int, ...], ...] = ()
    """Texts or token ids that take the place of the messages; each gets `n` choices."""
    ignored: tuple[str, ...] = ()
    """Keys of the body that have no effect, nested ones as `outer.inner`."""
    answer_id: str | None = None
    """None makes one from the request's id."""
    thread_id: str | None = None
    """The thread of the trace that this is a turn of."""
    shorten: "Callable[[int], ParsedRequest] | None" = None
    """The same request without so many of its oldest messages, where it may be shortened to fit the context."""
    most_dropped: int = 0
    """How many messages it can do without."""
    keep: Keep | None = None
    """Stores the finished answer; the client gets nothing that says it is complete before that."""
    places: tuple[str, ...] = ()
    """Where in the body each message stands, for refusals; empty where that is `messages.N`."""
    clamps_max_tokens: bool = False
    """More tokens than the context has room for are no mistake: clients must name some number."""
    prompt_choices: PromptChoices | None = None


class Wire(ABC):
    """One interface: its name in traces, the reading of its requests, and the bytes of its events."""

    op_name: ClassVar[str]
    """Of the calls in the trace."""
    id_prefix: ClassVar[str]
    """Of the ids of answers."""
    last_event: ClassVar[bytes] = b""
    """What ends each stream."""
    names_events: ClassVar[bool] = True
    field_names: ClassVar[Mapping[str, str]] = {}
    """What fields of `ChatRequest` are called here, for refusals."""
    carries_rollouts: ClassVar[bool] = False
    """Whether answers of trainable models carry token ids and log-probabilities, for training."""

    @abstractmethod
    def read(self, body: Any) -> ParsedRequest:
        """The typed request; takes long for a long body. Raises ValidationFailed or InvalidRequest naming the field."""

    def encode(self, events: Sequence[Json]) -> bytes:
        """Server-sent events, each named by its `type`; chunks have no names."""
        return b"".join(
            (b"event: " + event["type"].encode() + b"\n" if self.names_events else b"")
            + (b"data: " + orjson.dumps(event) + b"\n\n")
            for event in events
        )

    def name_ignored(self, names: Sequence[str], parsed: ParsedRequest) -> list[str]:
        """The names that the client used for fields of the prompt without effect."""
        older = parsed.chat.older_names
        return [self.field_names.get(name, older.get(name, name)) for name in names]

    def rename(self, error: InvalidRequest, parsed: ParsedRequest) -> InvalidRequest:
        """The same refusal with the names that the client used."""
        param = error.param
        older = parsed.chat.older_names.get(param or "")
        if param is not None and older is not None:
            return InvalidRequest(error.reason.replace(param, older), error.headers, older, **error.extra)
        if param is None or not (self.field_names or parsed.places):
            return error
        place, _, rest = param.removeprefix("messages.").partition(".")
        if parsed.places and param.startswith("messages.") and place.isdigit() and int(place) < len(parsed.places):
            shown = ".".join(filter(None, (parsed.places[int(place)], rest)))
        else:
            head, dot, rest = param.partition(".")
            shown = self.field_names.get(head, head) + dot + rest
        reason = error.reason.replace(param, shown)
        for ours, theirs in self.field_names.items():
            reason = re.sub(rf"\b{ours}\b", theirs, reason)
        return InvalidRequest(reason, error.headers, shown, **error.extra)
