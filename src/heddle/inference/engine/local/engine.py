"""The embedded engine without processes: requests in, one step at a time, events out."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from heddle.inference.engine.base import (
    AdapterRef,
    EngineBusy,
    EngineFailed,
    EngineStats,
    RequestRefused,
    TokenRequest,
)
from heddle.inference.engine.local.adapters import Adapters
from heddle.inference.engine.local.constraint import Grammars
from heddle.inference.engine.local.counts import TokenCounts
from heddle.inference.engine.local.logprobs import describe
from heddle.inference.engine.local.options import LocalOptions
from heddle.inference.engine.local.sampler import Choices, Sampler
from heddle.inference.engine.local.scheduler import Plan, Scheduler
from heddle.inference.engine.local.sequence import Event, Sequence, end_of
from heddle.models.interfaces import Batch, CausalModel, KeyValueCache, Span


@dataclass(slots=True)
class Totals:
    """Figures since the start."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    requests: int = 0
    aborted: int = 0


@dataclass(slots=True)
class Rows:
    """A plan as the model sees it, and what is done with each row of logits."""

    batch: Batch
    due: list[Sequence] = field(default_factory=list)
    """Sequences that get a new token, in the order of their rows."""
    due_rows: list[int] = field(default_factory=list)
    """Of the logits."""
    prompts: list[tuple[Sequence, int, int]] = field(default_factory=list)
    """Sequences whose prompt is scored: first row of the logits, and their number."""


class EngineCore:
    """One model, its memory and its requests."""

    def __init__(self, model: CausalModel, options: LocalOptions, eos: tuple[int, ...], kv_bytes: int) -> None:
        self.model = model
        self.options = options
        self.eos = eos
        self.cache = model.new_cache()
        blocks = max(1, kv_bytes // self.cache.block_bytes)
        self.max_model_len = longest(options.max_model_len, model.max_positions, self.cache, blocks)
        self.scheduler = Scheduler(options, self.cache, blocks, model.vocab_size)
        self.adapters = Adapters(model, options.max_adapters)
        self.grammars = Grammars(options.tokenizer_file, model.vocab_size, eos)
        self.sampler = Sampler(model.vocab_size, eos, self.grammars.words)
        self.totals = Totals()
        self._sequences: dict[int, Sequence] = {}
        self._arrivals = 0
        self._events: list[Event] = []
        """Of the step that runs; they survive its failure."""
        self.last_prompts: list[tuple[int, int]] = []
        """Of the last step: first position and number of the tokens of each prompt."""
        self.last_decodes = 0
        """Of the last step: sequences that generated."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._sequences)

    def add(self, number: int, request: TokenRequest) -> None:
        """Queue a request under a number of the caller. Raises RequestRefused or EngineBusy, and then forgets it."""
        self._check(request)
        if len(self.scheduler.waiting) >= self.options.max_waiting:
            raise EngineBusy(f"{len(self.scheduler.waiting)} requests wait already")
        matcher = self.grammars.matcher(request.constraint) if request.constraint else None
        if request.adapter:
            self.adapters.acquire(request.adapter)
        self._arrivals += 1
        sequence = Sequence.of(number, request, self._arrivals)
        sequence.matcher = matcher
        if TokenCounts.needed(request.sampling):
            sequence.counts = TokenCounts(request.prompt, request.sampling)
        self._sequences[number] = sequence
        self.scheduler.add(sequence)
        self.totals.requests += 1
        self.totals.prompt_tokens += len(request.prompt)

    def abort(self, number: int) -> None:
        """Forget a request; nothing happens when it has ended."""
        sequence = self._sequences.get(number)
        if sequence is not None:
            self._drop(sequence)
            self.totals.aborted += 1

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """Schedule, run the model, choose tokens, deliver. Empty when there is nothing to do."""
        plan = self.scheduler.schedule()
        if not plan.prefills and not plan.decodes:
            return []
        rows = self._rows(plan)
        self.last_prompts = [(sequence.computed, count) for sequence, count in plan.prefills]
        self.last_decodes = len(plan.decodes)
        logits = self.model.forward(rows.batch, self.cache)
        self._advance(plan)
        self._score_prompts(rows, logits)
        choices = self._sample(rows, logits)
        self._deliver(rows.due, choices)
        return self._taken()

    def fail_all(self, error: Exception) -> list[Event]:
        """End every request after a step that broke, and start from clean memory; what it delivered still counts."""
        events = [*self._taken(), *(Event(number, None, failure=error) for number in self._sequences)]
        for sequence in list(self._sequences.values()):
            self._forget(sequence)
        self.scheduler.clear()
        return events

    def fill_stats(self, stats: EngineStats) -> None:
        """Write the core's figures."""
        scheduler = self.scheduler
        stats.running, stats.waiting = len(scheduler.running), len(scheduler.waiting)
        stats.kv_blocks_used, stats.kv_blocks_cached = scheduler.pool.used, scheduler.pool.cached
        stats.kv_blocks_total = scheduler.pool.total
        stats.prefix_query_tokens = scheduler.prefix_query_tokens
        stats.prefix_hit_tokens = scheduler.prefix_hit_tokens
        stats.preemptions = scheduler.preemptions
        stats.prompt_tokens, stats.generated_tokens = self.totals.prompt_tokens, self.totals.generated_tokens
        stats.requests, stats.aborted = self.totals.requests, self.totals.aborted
        stats.adapters = self.adapters.ids
        stats.device, stats.dtype = str(self.model.device), str(self.model.dtype).removeprefix("torch.")

    def load_adapter(self, adapter: AdapterRef) -> None:
        """Make a version ready. Raises RequestRefused when it does not fit."""
        self.adapters.load(adapter)

    def unload_adapter(self, adapter_id: str) -> None:
        """Forget a version, with the end of its last request."""
        self.adapters.unload(adapter_id)

    def _check(self, request: TokenRequest) -> None:
        check_tokens(request, self.model.vocab_size)
        check_length(request, self.max_model_len)
        if request.priority and self.options.scheduling != "priority":
            raise RequestRefused("priority needs an engine that schedules by priority", param="priority")

    def _rows(self, plan: Plan) -> Rows:
        """The batch of a plan; logits are asked for where a token or a prompt logprob comes from."""
        tokens: list[int] = []
        wanted: list[int] = []
        rows = Rows(Batch(torch.empty(0), [], [], wanted))
        for sequence, count in plan.prefills:
            first, last = sequence.computed, sequence.computed + count
            assert sequence.lane is not None
            rows.batch.prefills.append(Span(sequence.lane, first, count, sequence.adapter_id))
            scored = self._scored(sequence, first, last)
            if scored:
                rows.prompts.append((sequence, len(wanted), len(scored)))
                wanted += range(len(tokens) + scored.start - first, len(tokens) + scored.stop - first)
            if last == len(sequence.tokens):
                rows.due.append(sequence)
                rows.due_rows.append(len(wanted))
                wanted.append(len(tokens) + count - 1)
            tokens += sequence.tokens[first:last]
        for sequence in plan.decodes:
            rows.due.append(sequence)
            rows.due_rows.append(len(wanted))
            wanted.append(len(tokens))
            tokens.append(sequence.tokens[-1])
            rows.batch.decodes.append(_decode_span(sequence))
        rows.batch.token_ids = torch.tensor(tokens, dtype=torch.int64)
        return rows

    @staticmethod
    def _scored(sequence: Sequence, first: int, last: int) -> range:
        """Positions of a chunk whose next prompt token has no logprob yet."""
        if sequence.prompt_logprobs is None:
            return range(0)
        return range(max(first, len(sequence.prompt_logprobs) - 1), min(last, sequence.prompt_tokens - 1))

    def _advance(self, plan: Plan) -> None:
        """Keys and values of the plan are computed; prompts are offered to the prefix cache."""
        for sequence, count in plan.prefills:
            sequence.computed += count
            self.scheduler.save_blocks(sequence)
        for sequence in plan.decodes:
            sequence.computed += 1

    @staticmethod
    def _score_prompts(rows: Rows, logits: Tensor) -> None:
        """Logprobs of the prompt tokens that follow the scored positions."""
        for sequence, first, count in rows.prompts:
            known, wanted = sequence.prompt_logprobs, sequence.request.sampling.prompt_logprobs
            assert known is not None and wanted is not None
            following = sequence.tokens[len(known) : len(known) + count]
            known += describe(logits[first : first + count], following, [wanted] * count)

    def _sample(self, rows: Rows, logits: Tensor) -> Choices:
        """Tokens of the sequences that are due."""
        if not rows.due:
            return Choices([])
        own = logits if len(rows.due) == len(logits) else logits[rows.due_rows]
        return self.sampler.sample(own, rows.due)

    def _taken(self) -> list[Event]:
        """The events so far; the next step begins a new list."""
        events, self._events = self._events, []
        return events

    def _deliver(self, due: list[Sequence], choices: Choices) -> None:
        """Append the new tokens, end what has ended, and say what happened."""
        for row, (sequence, token) in enumerate(zip(due, choices.tokens, strict=True)):
            event = Event(sequence.number, token)
            try:
                self._take(sequence, event, row, choices)
            except Exception as error:
                event.failure = error
            if not sequence.started:
                sequence.started = True
                event.first = (sequence.cached_tokens or 0, sequence.prompt_logprobs)
            self._events.append(event)
            if event.failure is not None:
                self._drop(sequence)
            elif event.end is not None:
                self._finish(sequence)

    def _take(self, sequence: Sequence, event: Event, row: int, choices: Choices) -> None:
        """One new token of one sequence; whatever is raised here is this request's own failure."""
        if row in choices.failures:
            raise choices.failures[row]
        if row in choices.ended:
            event.token, event.end = None, ("stop", None)
            return
        token = choices.tokens[row]
        sequence.tokens.append(token)
        self.totals.generated_tokens += 1
        event.logprobs = choices.logprobs.get(row)
        if sequence.counts is not None:
            sequence.counts.add(token)
        if sequence.matcher is not None and (token not in self.eos or sequence.request.sampling.ignore_eos):
            sequence.matcher.accept(sequence.tokens, sequence.output_count)
        event.end = end_of(sequence, self.eos)

    def _finish(self, sequence: Sequence) -> None:
        """A request has come to its end."""
        self._forget(sequence)
        self.scheduler.finish(sequence)

    def _drop(self, sequence: Sequence) -> None:
        """A request ends without more tokens."""
        self._forget(sequence)
        self.scheduler.drop(sequence)

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.number]
        if sequence.request.adapter:
            self.adapters.release(sequence.request.adapter)


def _decode_span(sequence: Sequence) -> Span:
    """The span of the newest token; one object serves a sequence for as long as it keeps its lane."""
    span = sequence.span
    if span is None:
        assert sequence.lane is not None
        span = sequence.span = Span(sequence.lane, sequence.computed, 1, sequence.adapter_id)
    span.first_position = sequence.computed
    return span


def longest(wanted: int, positions: int, cache: KeyValueCache, blocks: int) -> int:
    """The most tokens of one sequence that model, setting (0 = none) and memory allow.

    Raises EngineFailed when memory is too small for the shortest lane.
    """
    most = min(wanted or positions, positions)
    if cache.blocks_for(1) > blocks:
        raise EngineFailed(
            f"{blocks * cache.block_bytes} bytes for keys and values are too few: "
            f"one sequence takes at least {cache.blocks_for(1) * cache.block_bytes}"
        )
    return bisect_right(range(1, most + 1), blocks, key=cache.blocks_for)


def check_tokens(request: TokenRequest, vocab_size: int) -> None:
    """Raises RequestRefused for ids that the model does not have: one of them would fail a whole step."""
    sampling = request.sampling
    if not request.prompt:
        raise RequestRefused("the prompt has no tokens", param="prompt")
    named: list[tuple[str, Iterable[int]]] = [
        ("prompt", request.prompt),
        ("logit_bias", sampling.logit_bias),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
        ("bad_words", (token for word in sampling.bad_words for token in word)),
        ("stop_token_ids", sampling.stop_token_ids),
    ]
    for name, tokens in named:
        wrong = next((token for token in tokens if not 0 <= token < vocab_size), None)
        if wrong is not None:
            raise RequestRefused(f"{name}: token id {wrong} is not in the vocabulary of {vocab_size}", param=name)
    if sampling.allowed_token_ids is not None and not sampling.allowed_token_ids:
        raise RequestRefused("allowed_token_ids is empty", param="allowed_token_ids")
    if not all(sampling.bad_words):
        raise RequestRefused("bad_words: a word has no tokens", param="bad_words")


def check_length(request: TokenRequest, max_model_len: int) -> None:
    """Raises RequestRefused when prompt and output are more than the engine holds."""
    prompt, output = len(request.prompt), request.sampling.max_tokens
    if output < 1:
        raise RequestRefused(f"max_tokens is {output}, at least 1 is needed", param="max_tokens")
    if prompt + output > max_model_len:
        raise RequestRefused(
            f"the prompt has {prompt} tokens and max_tokens is {output}: together {prompt + output}, "
            f"and this engine takes {max_model_len}",
            param="max_tokens" if prompt < max_model_len else "prompt",
        )
