"""One choice while it grows: token events become text, reasoning, tool calls and a reason to end."""

from dataclasses import dataclass, field

from heddle.inference.engine.base import TokenEvent, TokenLogprobs
from heddle.inference.prompt.reasoning import ReasoningSplitter
from heddle.inference.tokenization.detokenizer import Detokenizer
from heddle.inference.tokenization.stop import StopStrings
from heddle.inference.tools.parser import CallArguments, CallStart, ContentDelta, Piece
from heddle.inference.tools.plan import ToolPlan


@dataclass(slots=True)
class Delta:
    """What a token added to a choice."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallStart | CallArguments] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    completion_tokens: int = 0
    """Of the choice so far, and those of them that are reasoning."""
    reasoning_tokens: int = 0

    @property
    def is_silent(self) -> bool:
        """True when there is nothing to say about it."""
        return not (self.content or self.reasoning or self.calls or self.finish_reason)


@dataclass(slots=True)
class Call:
    """A tool call as a whole."""

    id: str
    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """How the tokens of a choice are to be read."""

    stops: tuple[str, ...] = ()
    include_stop: bool = False
    min_tokens: int = 0
    ending: frozenset[int] = frozenset()
    """Tokens that end the text and are no part of it."""
    shows_reasoning: bool = True
    shows_tokens: bool = True
    """Ids and logprobs; they would tell a reasoning that is hidden."""


class Choice:
    """The state of one choice; feed it every event until it has a finish reason."""

    def __init__(
        self,
        index: int,
        reading: Reading,
        detokenizer: Detokenizer,
        splitter: ReasoningSplitter | None,
        tools: ToolPlan | None,
        early: bool = False,
    ) -> None:
        """`early`: give calls out while they are written, as streams do."""
        self.index = index
        self._reading = reading
        self._detokenizer = detokenizer
        self._stops = StopStrings(list(reading.stops), reading.include_stop) if reading.stops else None
        self._splitter = splitter
        self._tools = tools
        self._parser = tools.parser(early) if tools is not None else None
        self.content = ""
        self.reasoning = ""
        self.calls: list[Call] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    def feed(self, event: TokenEvent) -> list[Delta]:
        """Take new tokens in; what each of them adds, the last one with the finish reason when the choice has ended."""
        deltas = []
        ends = event.finish_reason == "stop" and not self._reading.include_stop
        last = len(event.token_ids) - 1
        for position, token in enumerate(event.token_ids):
            deltas.append(delta := Delta())
            self._take(delta, token, event.logprobs[position] if event.logprobs else None)
            is_end = ends and position == last and token in self._reading.ending
            matched = None if is_end else self._show(delta, self._detokenizer.push((token,)))
            if matched is not None:
                self._finish(delta, "stop", matched)
                return deltas
        if event.finish_reason is not None:
            deltas = deltas or [Delta()]
            self._finish(deltas[-1], event.finish_reason, event.stop_reason)
        return deltas

    def _take(self, delta: Delta, token: int, logprobs: TokenLogprobs | None) -> None:
        self.completion_tokens += 1
        self.reasoning_tokens += self._splitter is not None and self._splitter.inside
        delta.completion_tokens, delta.reasoning_tokens = self.completion_tokens, self.reasoning_tokens
        if not self._reading.shows_tokens:
            return
        delta.token_ids.append(token)
        self.token_ids.append(token)
        if logprobs is not None:
            delta.logprobs.append(logprobs)
            self.logprobs.append(logprobs)

    def _show(self, delta: Delta, text: str) -> str | None:
        """Pass new text on; returns the stop string that it completed."""
        if self._stops is None:
            self._split(delta, text)
            return None
        if self.completion_tokens <= self._reading.min_tokens:
            # Nothing may end here, but a match may begin here.
            self._split(delta, self._stops.skip(text))
            return None
        shown, matched = self._stops.push(text)
        self._split(delta, shown)
        return matched

    def _split(self, delta: Delta, text: str) -> None:
        if not text:
            return
        if self._splitter is None:
            self._parse(delta, text)
            return
        reasoning, content = self._splitter.push(text)
        self._reason(delta, reasoning)
        self._parse(delta, content)

    def _reason(self, delta: Delta, text: str) -> None:
        if self._reading.shows_reasoning:
            delta.reasoning += text
            self.reasoning += text

    def _parse(self, delta: Delta, text: str) -> None:
        if text and self._parser is not None:
            self._add(delta, self._parser.push(text))
        elif text:
            self._add(delta, [ContentDelta(text)])

    def _add(self, delta: Delta, parts: list[Piece]) -> None:
        for part in parts:
            if isinstance(part, ContentDelta):
                delta.content += part.text
                self.content += part.text
                continue
            delta.calls.append(part)
            if isinstance(part, CallStart):
                self.calls.append(Call(part.id, part.name))
            else:
                self.calls[part.index].arguments += part.text

    def _finish(self, delta: Delta, reason: str, stop_reason: int | str | None) -> None:
        """Let go what was held back, and settle why the choice ended."""
        by_stop_string = self._stops is not None and reason == "stop" and isinstance(stop_reason, str)
        if not by_stop_string:
            rest = self._detokenizer.flush()
            if self._stops is not None:
                shown, matched = self._stops.push(rest)
                rest = shown if matched else shown + self._stops.flush()
            self._split(delta, rest)
        if self._splitter is not None:
            reasoning, content = self._splitter.flush()
            self._reason(delta, reasoning)
            self._parse(delta, content)
        if self._parser is not None:
            self._add(delta, self._parser.finish())
        written = self._parser is not None and self._parser.num_complete
        if written and reason == "stop" and self._tools is not None and not self._tools.is_named:
            reason = "tool_calls"
        self.finish_reason = delta.finish_reason = reason
        self.stop_reason = delta.stop_reason = stop_reason
