"""The embedded engine without processes: requests in, one step at a time, events out."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch

from heddle.inference.engine.base import AdapterRef, EngineBusy, EngineFailed, EngineStats, RequestRefused, TokenRequest
from heddle.inference.engine.local.grammar import Grammars
from heddle.inference.engine.local.options import LocalOptions
from heddle.inference.engine.local.sampler import Choices, Sampler, add_choices, describe_logprobs
from heddle.inference.engine.local.scheduler import Plan, Scheduler
from heddle.inference.engine.local.sequence import Event, Sequence, TokenCounts, find_end
from heddle.models.interfaces import Batch, CausalModel, Span


@dataclass(slots=True)
class _Loaded:
    users: int = 0
    forgotten: bool = False
    """Goes when its last user has gone."""


class Adapters:
    """Loads versions when they are needed; the least recently used idle ones make room."""

    def __init__(self, model: "CausalModel", most: int) -> None:
        self._model = model
        self._most = most
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()

    @property
    def ids(self) -> tuple[str, ...]:
        """Loaded versions, the least recently used one first."""
        return tuple(self._loaded)

    def load(self, adapter: AdapterRef) -> None:
        """Make a version ready. Raises RequestRefused when it does not fit the model."""
        self._ensure_loaded(adapter).forgotten = False

    def acquire(self, adapter: AdapterRef) -> None:
        """Count a request that uses a version, loaded if need be."""
        self._ensure_loaded(adapter).users += 1

    def _ensure_loaded(self, adapter: AdapterRef) -> _Loaded:
        from heddle.models.interfaces import ModelError

        state = self._loaded.get(adapter.id)
        if state is None:
            try:
                self._model.load_adapter(adapter.id, adapter.path)
            except (ModelError, OSError) as error:
                name = adapter.id.partition("#")[0]
                if isinstance(error, OSError) or not adapter.path.is_dir():
                    raise RequestRefused(f"adapter {name} is no longer available", param="model") from error
                # Where it lies on this machine is not the client's to know.
                told = str(error).replace(f"{adapter.path}/", "").replace(f"{adapter.path}: ", "")
                raise RequestRefused(f"adapter {name}: {told}", param="model") from error
            state = self._loaded[adapter.id] = _Loaded()
        self._loaded.move_to_end(adapter.id)
        self._trim(adapter.id)
        return state

    def release(self, adapter: AdapterRef) -> None:
        """A request that used a version has ended."""
        state = self._loaded[adapter.id]
        state.users -= 1
        if not state.users and state.forgotten:
            self._drop(adapter.id)
        self._trim(adapter.id)

    def unload(self, adapter_id: str) -> None:
        """Forget a version: now, or with the end of the last request that uses it."""
        state = self._loaded.get(adapter_id)
        if state is None:
            return
        state.forgotten = True
        if not state.users:
            self._drop(adapter_id)

    def _trim(self, kept: str) -> None:
        """Drop idle versions, the least recently used first, while there are too many."""
        idle = [name for name, state in self._loaded.items() if not state.users and name != kept]
        for name in idle[: max(0, len(self._loaded) - self._most)]:
            self._drop(name)

    def _drop(self, adapter_id: str) -> None:
        del self._loaded[adapter_id]
        self._model.unload_adapter(adapter_id)


@dataclass(slots=True)
class Rows:
    """A plan as the model sees it, and what is done with each row of logits."""

    batch: Batch
    due: list[Sequence] = field(default_factory=list)
    """Sequences that get a new token, in the order of their rows."""
    due_rows: list[int] = field(default_factory=list)
    """Of the logits."""
    pooled: list[tuple[Sequence, int]] = field(default_factory=list)
    """Sequences whose last state is wanted, each with its row."""
    prompts: list[tuple[Sequence, int, int]] = field(default_factory=list)
    """Sequences whose prompt is scored: first row of the logits, and their number."""

    def add_due(self, sequence: Sequence, row: int) -> None:
        """A sequence whose tokens are all computed with this batch."""
        if sequence.request.pools:
            self.pooled.append((sequence, row))
        else:
            self.due.append(sequence)
            self.due_rows.append(row)


class EngineCore:
    """One model, its memory and its requests."""

    def __init__(self, model: CausalModel, options: LocalOptions, eos: tuple[int, ...], kv_bytes: int) -> None:
        self.model = model
        self.options = options
        self.eos = eos
        self.cache = model.new_cache()
        blocks = max(1, kv_bytes // self.cache.block_bytes)
        most = min(options.max_model_len or model.max_positions, model.max_positions)
        if self.cache.blocks_for(1) > blocks:
            raise EngineFailed(
                f"{blocks * self.cache.block_bytes} bytes for keys and values are too few: "
                f"one sequence takes at least {self.cache.blocks_for(1) * self.cache.block_bytes}"
            )
        self.max_model_len = bisect_right(range(1, most + 1), blocks, key=self.cache.blocks_for)
        self.scheduler = Scheduler(options, self.cache, blocks, model.vocab_size)
        self.adapters = Adapters(model, options.max_adapters)
        self.grammars = Grammars(options.tokenizer_file, model.vocab_size, eos)
        self.sampler = Sampler(model.vocab_size, eos, self.grammars.words)
        self.totals = EngineStats(
            state="ready", device=str(model.device), dtype=str(model.dtype).removeprefix("torch.")
        )
        """Of what does not change, and counts since the start."""
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
        check_tokens(request, self.model.vocab_size)
        prompt, output = len(request.prompt), 0 if request.pools else request.sampling.max_tokens
        if output < 1 and not request.pools:
            raise RequestRefused(f"max_tokens must be at least 1, got {output}", param="max_tokens")
        if prompt + output > self.max_model_len:
            raise RequestRefused(
                f"the prompt has {prompt} tokens and max_tokens is {output}: together {prompt + output}, "
                f"and this engine takes {self.max_model_len}",
                param="max_tokens" if prompt < self.max_model_len else "prompt",
            )
        if request.priority and self.options.scheduling != "priority":
            raise RequestRefused("priority requires an engine that schedules by priority", param="priority")
        if len(self.scheduler.waiting) >= self.options.max_waiting:
            raise EngineBusy(f"{len(self.scheduler.waiting)} requests are already waiting")
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
        if rows.pooled:
            logits, states = self.model.forward_with_states(rows.batch, self.cache)
        else:
            logits = self.model.forward(rows.batch, self.cache)
        for sequence, count in plan.prefills:
            sequence.computed += count
            self.scheduler.save_blocks(sequence)
        for sequence in plan.decodes:
            sequence.computed += 1
        for sequence, first, count in rows.prompts:
            known, sampling = sequence.prompt_logprobs, sequence.request.sampling
            assert known is not None and sampling.prompt_logprobs is not None
            own, following = logits[first : first + count], sequence.tokens[len(known) : len(known) + count]
            found = describe_logprobs(own, following, [sampling.prompt_logprobs] * count)
            known += found if sampling.prompt_choices is None else add_choices(found, own, sampling, len(known) - 1)
        if rows.pooled:
            self._deliver_states(rows.pooled, states)
        if rows.due:
            own = logits if len(rows.due) == len(logits) else logits[rows.due_rows]
            self._deliver(rows.due, self.sampler.sample(own, rows.due))
        return self._take_events()

    def fail_all(self, error: Exception) -> list[Event]:
        """End every request after a step that broke, and start from clean memory; what it delivered still counts."""
        events = [*self._take_events(), *(Event(number, None, failure=error) for number in self._sequences)]
        for sequence in list(self._sequences.values()):
            self._forget(sequence)
        self.scheduler.clear()
        return events

    def stats(self) -> EngineStats:
        """What the core knows now; threads and times of steps are added by the process."""
        scheduler = self.scheduler
        return replace(
            self.totals,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_blocks_used=scheduler.pool.used,
            kv_blocks_cached=scheduler.pool.cached,
            kv_blocks_total=scheduler.pool.total,
            prefix_query_tokens=scheduler.prefix_query_tokens,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            preemptions=scheduler.preemptions,
            adapters=self.adapters.ids,
        )

    def _rows(self, plan: Plan) -> Rows:
        """The batch of a plan; logits are asked for where a token or a prompt logprob comes from."""
        tokens: list[int] = []
        wanted: list[int] = []
        rows = Rows(Batch(torch.empty(0), [], [], wanted))
        for sequence, count in plan.prefills:
            first, last = sequence.computed, sequence.computed + count
            assert sequence.lane is not None
            rows.batch.prefills.append(Span(sequence.lane, first, count, sequence.adapter_id))
            # Positions of the chunk whose next prompt token has no logprob yet.
            known = last if sequence.prompt_logprobs is None else len(sequence.prompt_logprobs) - 1
            scored = range(max(first, known), min(last, sequence.prompt_tokens - 1))
            if scored:
                rows.prompts.append((sequence, len(wanted), len(scored)))
                wanted += range(len(tokens) + scored.start - first, len(tokens) + scored.stop - first)
            if last == len(sequence.tokens):
                rows.add_due(sequence, len(wanted))
                wanted.append(len(tokens) + count - 1)
            tokens += sequence.tokens[first:last]
        for sequence in plan.decodes:
            rows.add_due(sequence, len(wanted))
            wanted.append(len(tokens))
            tokens.append(sequence.tokens[-1])
            span = sequence.span
            if span is None:
                assert sequence.lane is not None
                span = sequence.span = Span(sequence.lane, sequence.computed, 1, sequence.adapter_id)
            span.first_position = sequence.computed
            rows.batch.decodes.append(span)
        rows.batch.token_ids = torch.tensor(tokens, dtype=torch.int64)
        return rows

    def _take_events(self) -> list[Event]:
        """The events so far; the next step begins a new list."""
        events, self._events = self._events, []
        return events

    def _deliver_states(self, pooled: list[tuple[Sequence, int]], states: torch.Tensor) -> None:
        """End sequences with the state of their last token."""
        for sequence, row in pooled:
            state = states[row].cpu().numpy().astype("<f4").tobytes()
            first = (sequence.cached_tokens or 0, None)
            self._events.append(Event(sequence.number, None, first=first, end=("stop", None), state=state))
            self._forget(sequence)
            self.scheduler.finish(sequence)

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
                self._forget(sequence)
                self.scheduler.finish(sequence)

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
        event.end = find_end(sequence, self.eos)

    def _drop(self, sequence: Sequence) -> None:
        """A request ends without more tokens."""
        self._forget(sequence)
        self.scheduler.drop(sequence)

    def _forget(self, sequence: Sequence) -> None:
        del self._sequences[sequence.number]
        if sequence.request.adapter:
            self.adapters.release(sequence.request.adapter)


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
