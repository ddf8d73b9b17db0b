"""The choices of one request: token events become text, reasoning, tool calls and a reason to end."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from heddle import aio
from heddle.inference.detokenizer import Detokenizer, StopStrings
from heddle.inference.engine.base import Engine, TokenEvent, TokenLogprobs, TokenRequest
from heddle.inference.prompt.reasoning import ReasoningSplitter
from heddle.inference.tools.parser import CallArguments, CallStart, ContentDelta, OutputParser, Piece, ReasoningDelta
from heddle.wire.jsontypes import Json


@dataclass(slots=True)
class Delta:
    """What a token added to a choice."""

    content: str = ""
    reasoning: str = ""
    pieces: list[Piece] = field(default_factory=list)
    """Content, reasoning and calls in the order in which the model wrote them."""
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
        return not (self.pieces or self.finish_reason)

    def add(self, piece: Piece) -> None:
        """Append a piece; two of one kind after another are one."""
        match (self.pieces[-1] if self.pieces else None, piece):
            case (ContentDelta(before), ContentDelta(text)):
                self.pieces[-1] = ContentDelta(before + text)
            case (ReasoningDelta(before), ReasoningDelta(text)):
                self.pieces[-1] = ReasoningDelta(before + text)
            case (CallArguments(number, before), CallArguments(index, text)) if number == index:
                self.pieces[-1] = CallArguments(index, before + text)
            case _:
                self.pieces.append(piece)


@dataclass(slots=True)
class Call:
    """A tool call as a whole."""

    id: str
    name: str
    arguments: str = ""


class Section(NamedTuple):
    """A stretch of an output of one kind; they stand in the order in which the model wrote them."""

    kind: Literal["reasoning", "content", "call"]
    start: int
    """Where it begins in the reasoning or the content; the number of the call."""
    token: int
    """Where its tokens begin among the log-probabilities."""


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


@dataclass(slots=True)
class Facts:
    """What the engine said with the first token, and how the prompt went."""

    prompt_token_ids: tuple[int, ...]
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    kv_transfer_params: Json | None = None


class Choice:
    """The state of one choice; feed it every event until it has a finish reason."""

    def __init__(
        self,
        index: int,
        reading: Reading,
        detokenizer: Detokenizer,
        splitter: ReasoningSplitter | None,
        parser: OutputParser | None,
        is_named: bool = False,
    ) -> None:
        """`is_named`: the request names the tool that is called, which is no reason of its own to end."""
        self.index = index
        self._reading = reading
        self._detokenizer = detokenizer
        self._stops = StopStrings(list(reading.stops), reading.include_stop) if reading.stops else None
        self._splitter = splitter
        self._parser = parser
        self._is_named = is_named
        self.content = ""
        self.reasoning = ""
        self.calls: list[Call] = []
        self.sections: list[Section] = []
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
            self._count_token(delta, token, event.logprobs[position] if event.logprobs else None)
            is_end = ends and position == last and token in self._reading.ending
            matched = None if is_end else self._push_text(delta, self._detokenizer.push((token,)))
            if matched is not None:
                self._finish(delta, "stop", matched)
                return deltas
        if event.finish_reason is not None:
            deltas = deltas or [Delta()]
            self._finish(deltas[-1], event.finish_reason, event.stop_reason)
        return deltas

    def _count_token(self, delta: Delta, token: int, logprobs: TokenLogprobs | None) -> None:
        self.completion_tokens += 1
        self.reasoning_tokens += self._is_reasoning
        delta.completion_tokens, delta.reasoning_tokens = self.completion_tokens, self.reasoning_tokens
        if not self._reading.shows_tokens:
            return
        delta.token_ids.append(token)
        self.token_ids.append(token)
        if logprobs is not None:
            delta.logprobs.append(logprobs)
            self.logprobs.append(logprobs)

    @property
    def _is_reasoning(self) -> bool:
        by_parser = self._parser is not None and self._parser.inside_reasoning
        return by_parser or (self._splitter is not None and self._splitter.inside)

    def _push_text(self, delta: Delta, text: str) -> str | None:
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

    def text_of(self, number: int) -> str:
        """The text of a section of reasoning or content so far."""
        section = self.sections[number]
        later = (other.start for other in self.sections[number + 1 :] if other.kind == section.kind)
        whole = self.reasoning if section.kind == "reasoning" else self.content
        return whole[section.start : next(later, None)]

    def _reason(self, delta: Delta, text: str) -> None:
        if text and self._reading.shows_reasoning:
            self._enter("reasoning", len(self.reasoning))
            delta.add(ReasoningDelta(text))
            delta.reasoning += text
            self.reasoning += text

    def _enter(self, kind: Literal["reasoning", "content", "call"], start: int) -> None:
        """Note where a stretch of another kind begins; each call is one."""
        if kind == "call" or not self.sections or self.sections[-1].kind != kind:
            self.sections.append(Section(kind, start, max(0, len(self.logprobs) - 1)))

    def _parse(self, delta: Delta, text: str) -> None:
        if text and self._parser is not None:
            self._add(delta, self._parser.push(text))
        elif text:
            self._add(delta, [ContentDelta(text)])

    def _add(self, delta: Delta, parts: list[Piece]) -> None:
        for part in parts:
            if isinstance(part, ReasoningDelta):
                self._reason(delta, part.text)
                continue
            if isinstance(part, ContentDelta):
                if part.text:
                    self._enter("content", len(self.content))
                    delta.add(part)
                    delta.content += part.text
                    self.content += part.text
                continue
            delta.add(part)
            if isinstance(part, CallStart):
                self._enter("call", len(self.calls))
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
        if written and reason == "stop" and not self._is_named:
            reason = "tool_calls"
        if not self.sections:  # an answer without a word is an empty text
            self.sections.append(Section("content", 0, 0))
        self.finish_reason = delta.finish_reason = reason
        self.stop_reason = delta.stop_reason = stop_reason


Step = tuple[int, list[Delta]]
"""The index of a choice, and what each of its new tokens added."""


class Generation:
    """The choices of one request at work; close it in any case."""

    def __init__(
        self, engine: Engine, requests: Sequence[TokenRequest], choices: Sequence[Choice], facts: Sequence[Facts]
    ) -> None:
        """`facts` has one entry per prompt; all prompts have the same number of choices."""
        self._engine = engine
        self._requests = requests
        self.choices = choices
        self.facts = facts
        self.started = time.perf_counter()
        self.first_token_seconds: float | None = None
        self._steps = self._run_all() if len(requests) > 1 else self._run_one(0)
        self._ahead: list[Step] = []

    async def begin(self) -> None:
        """Wait for the first tokens, so that what fails before them is an ordinary answer."""
        async for step in self._steps:
            self._ahead.append(step)
            break

    async def steps(self) -> AsyncIterator[Step]:
        """What comes, until every choice has its finish reason; raises HeddleError."""
        while self._ahead:
            yield self._ahead.pop(0)
        async for step in self._steps:
            yield step

    async def finish(self) -> None:
        """Run to the end without looking at the parts."""
        async for _ in self.steps():
            pass

    async def close(self) -> None:
        """Abort what still runs."""
        await self._steps.aclose()

    async def _run_one(self, index: int) -> AsyncGenerator[Step]:
        choice = self.choices[index]
        prompt, number = divmod(index, len(self.choices) // len(self.facts))
        facts = self.facts[prompt]
        async with contextlib.aclosing(self._engine.generate(self._requests[index])) as events:  # type: ignore[type-var]
            async for event in events:
                if self.first_token_seconds is None:
                    self.first_token_seconds = time.perf_counter() - self.started
                facts.prompt_logprobs = event.prompt_logprobs or facts.prompt_logprobs
                if number == 0:
                    facts.cached_tokens = event.cached_tokens or facts.cached_tokens
                    if event.kv_transfer_params is not None:
                        facts.kv_transfer_params = dict(event.kv_transfer_params)
                yield index, choice.feed(event)
                if choice.finish_reason is not None:
                    return

    async def _run_all(self) -> AsyncGenerator[Step]:
        """All choices at once; the first failure ends them all."""
        waiting: asyncio.Queue[Step | Exception | None] = asyncio.Queue()

        async def work(index: int) -> None:
            try:
                async with contextlib.aclosing(self._run_one(index)) as steps:
                    async for step in steps:
                        waiting.put_nowait(step)
            except Exception as error:  # handed to the one who waits, who raises it
                waiting.put_nowait(error)
            finally:
                waiting.put_nowait(None)

        tasks = [asyncio.create_task(work(index)) for index in range(len(self._requests))]
        try:
            running = len(tasks)
            while running:
                step = await waiting.get()
                if step is None:
                    running -= 1
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield step
        finally:
            await aio.cancel(*tasks)
