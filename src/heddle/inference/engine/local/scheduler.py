"""Who runs in the next step: memory in blocks, admission, chunked prefill under a budget, preemption."""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeVar

from heddle.inference.engine.local.options import LocalOptions
from heddle.inference.engine.local.sequence import BLOCK_TOKENS, Sequence

if TYPE_CHECKING:
    from heddle.models.interfaces import KeyValueCache, SavedBlock


Saved = TypeVar("Saved")


class BlockPool(Generic[Saved]):
    """Who holds how many of `total` blocks; `used + cached <= total` always."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._saved: OrderedDict[bytes, Saved] = OrderedDict()

    @property
    def cached(self) -> int:
        """Saved blocks."""
        return len(self._saved)

    @property
    def available(self) -> int:
        """Blocks that requests could still take."""
        return self.total - self.used

    def take(self, count: int) -> bool:
        """Give blocks to a request, saved ones making room; False, and nothing happens, when there are too few."""
        if count > self.available:
            return False
        self.used += count
        self._evict()
        return True

    def give_back(self, count: int) -> None:
        """Take blocks back from a request."""
        if count > self.used:
            raise ValueError(f"{count} blocks given back, {self.used} in use")
        self.used -= count

    def save(self, key: bytes, copy: Callable[[], Saved]) -> None:
        """Keep a copy of a block, when it is new and there is room beside the requests."""
        if key in self._saved:
            self._saved.move_to_end(key)
        elif self.available > 0:
            self._saved[key] = copy()
            self._evict()

    def has(self, key: bytes) -> bool:
        """Whether a block is saved."""
        return key in self._saved

    def find(self, keys: list[bytes]) -> list[Saved]:
        """The saved blocks of the longest known start of a chain, now the most recently used ones.

        The first block ends up youngest: a chain without its start is worth nothing.
        """
        known = 0
        while known < len(keys) and keys[known] in self._saved:
            known += 1
        for key in reversed(keys[:known]):
            self._saved.move_to_end(key)
        return [self._saved[key] for key in keys[:known]]

    def clear(self) -> None:
        """Forget every saved block."""
        self._saved.clear()

    def _evict(self) -> None:
        while self.used + len(self._saved) > self.total:
            self._saved.popitem(last=False)


SECONDS_ALONE = 0.5
SECONDS_BESIDE = 0.1
"""Longest step that is wanted when nothing, or something, is being generated."""
LEAST = 16
"""Tokens that the first in order always gets, however long they take."""
TELLING = 8
"""Steps with fewer prompt tokens say nothing about the cost of one."""
MEMORY = 0.7


class PrefillBudget:
    """The settings' limits in tokens, and limits in seconds on what they may take."""

    def __init__(self, options: LocalOptions) -> None:
        self._alone = options.max_prefill
        self._beside = options.max_prefill_beside
        self._costs: list[float] = []
        """Seconds of a token, by the length of its position in bits; the last one holds for all beyond."""

    def share(self, wanted: list[tuple[int, int]], beside: bool) -> list[int]:
        """Tokens for each (position, tokens left), best first; `beside` = sequences that generate take part.

        The first gets at least half, the shortest ones share the rest, and what is left goes to anybody.
        """
        tokens, seconds = (self._beside, SECONDS_BESIDE) if beside else (self._alone, SECONDS_ALONE)
        purse = _Purse([self._cost(position) for position, _ in wanted], [left for _, left in wanted])
        others = sorted(range(1, len(wanted)), key=lambda place: wanted[place][1])
        purse.spend(others, tokens // 2, seconds / 2)
        purse.spend([0], tokens, seconds)
        purse.spend([0], min(tokens, sum(purse.given[1:]) + LEAST), float("inf"))
        purse.spend(others, tokens, seconds)
        return purse.given

    def observe(self, prompts: Iterable[tuple[int, int]], seconds: float) -> None:
        """Take the time of a step that computed (first position, tokens) of some prompts."""
        steps = list(prompts)
        tokens = sum(count for _, count in steps)
        if tokens < TELLING:
            return
        expected = sum(self._cost(position) * count for position, count in steps)
        for length in {position.bit_length() for position, _ in steps}:
            if length >= len(self._costs):
                first = self._costs[-1] if self._costs else seconds / tokens
                self._costs += [first] * (length + 1 - len(self._costs))
            known = self._costs[length]
            seen = known * seconds / expected if expected else known
            self._costs[length] = known * MEMORY + seen * (1.0 - MEMORY)

    def _cost(self, position: int) -> float:
        if not self._costs:
            return 0.0
        return self._costs[min(position.bit_length(), len(self._costs) - 1)]


class _Purse:
    """Tokens and seconds that are given out."""

    def __init__(self, costs: list[float], wanted: list[int]) -> None:
        self._costs = costs
        self._wanted = wanted
        self.given = [0] * len(wanted)
        self._tokens = 0
        self._seconds = 0.0

    def spend(self, places: Iterable[int], tokens: int, seconds: float) -> None:
        """Give in order, until so many tokens and seconds are given altogether."""
        for place in places:
            more = min(self._wanted[place] - self.given[place], tokens - self._tokens)
            cost = self._costs[place]
            if cost * more > seconds - self._seconds:
                more = int((seconds - self._seconds) / cost)
            if more > 0:
                self.given[place] += more
                self._tokens += more
                self._seconds += more * cost


LOGIT_BYTES = 64 * 1024**2
"""Most memory for the logits of prompt positions in one step."""


@dataclass(slots=True)
class Plan:
    """One step: prompts with the number of tokens to compute, and sequences with one token to compute."""

    prefills: list[tuple[Sequence, int]] = field(default_factory=list)
    decodes: list[Sequence] = field(default_factory=list)

    @property
    def sequences(self) -> list[Sequence]:
        """Everybody in the step, in the order of the batch."""
        return [*(sequence for sequence, _ in self.prefills), *self.decodes]


class Scheduler:
    """Queues and memory of all requests; holds the only references to lanes."""

    def __init__(self, options: LocalOptions, cache: "KeyValueCache", blocks: int, vocab_size: int) -> None:
        self.options = options
        self.cache = cache
        self.pool: BlockPool[SavedBlock] = BlockPool(blocks)
        self.waiting: list[Sequence] = []
        """Best order first."""
        self.running: list[Sequence] = []
        self.budget = PrefillBudget(options)
        self.preemptions = 0
        self.prefix_query_tokens = 0
        self.prefix_hit_tokens = 0
        self._computing: dict[bytes, Sequence] = {}
        self._saves = options.prefix_cache and cache.saves_blocks
        self._most_logit_rows = max(BLOCK_TOKENS, LOGIT_BYTES // (4 * vocab_size))

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in the queue."""
        insort(self.waiting, sequence, key=attrgetter("order"))

    def drop(self, sequence: Sequence) -> None:
        """Forget an unfinished sequence in whatever state it is."""
        for queue in (self.waiting, self.running):
            if sequence in queue:
                queue.remove(sequence)
        self._release(sequence)

    def finish(self, sequence: Sequence) -> None:
        """End a running sequence and keep its full blocks for others."""
        self.pool.give_back(sequence.lane_blocks)
        sequence.lane_blocks = 0
        try:
            self.save_blocks(sequence)
        finally:
            self.running.remove(sequence)
            self._release(sequence)

    def clear(self) -> None:
        """Forget every sequence and every saved block."""
        for sequence in {*self.running, *self.waiting}:
            self.drop(sequence)
        self.pool.clear()

    def schedule(self) -> Plan:
        """The next step; lanes have room for it. Empty when nothing can run."""
        preempted = self.preemptions
        decodes = self._decodes()
        if self.waiting and self.preemptions == preempted:
            self._admit()
            decodes = self._find_due()
        prefills = self._prefills(bool(decodes)) if len(decodes) < len(self.running) else []
        return Plan(prefills, decodes)

    def save_blocks(self, sequence: Sequence) -> None:
        """Offer the full computed blocks of a sequence to the prefix cache, each once."""
        lane, known = sequence.lane, sequence.saved_blocks
        if lane is None or not self._saves:
            return
        for index, key in enumerate(sequence.block_keys(sequence.computed)[known:], known):
            self.pool.save(key, lambda index=index: self.cache.save_block(lane, index))  # type: ignore[misc]
            self._computing.pop(key, None)
            sequence.saved_blocks = index + 1

    def _decodes(self) -> list[Sequence]:
        """Sequences with one token to compute, each with room for it; the worst are preempted for the better ones."""
        due = self._find_due()
        short = [sequence for sequence in due if sequence.lane and sequence.lane.capacity < len(sequence.tokens)]
        if not short:
            return due
        for sequence in sorted(short, key=attrgetter("order")):
            while sequence.lane is not None and not self._grow(sequence):
                self._preempt(max(self.running, key=attrgetter("order")))
        return [sequence for sequence in due if sequence.lane is not None]

    def _find_due(self) -> list[Sequence]:
        return [sequence for sequence in self.running if sequence.remaining == 1 and sequence.computed]

    def _grow(self, sequence: Sequence) -> bool:
        """Room in the lane for all tokens; False when memory does not allow it."""
        tokens = len(sequence.tokens)
        blocks = self.cache.blocks_for(tokens)
        if sequence.lane is None or not self.pool.take(blocks - sequence.lane_blocks):
            return False
        sequence.lane_blocks = blocks
        self.cache.grow_lane(sequence.lane, tokens)
        return True

    def _admit(self) -> None:
        """Start waiting sequences in order; one that waits for a neighbour's prefix lets others pass."""
        index = 0
        while index < min(len(self.waiting), 2 * self.options.max_running):
            sequence = self.waiting[index]
            if self._prefix_is_being_computed(sequence):
                index += 1
            elif self._open(sequence):
                del self.waiting[index]
            elif not self._preempt_worse(sequence):
                return

    def _prefix_is_being_computed(self, sequence: Sequence) -> bool:
        """Whether the next block that the cache lacks is about to be saved by a running sequence."""
        if not self._computing or not self._can_reuse(sequence):
            return False
        key = next((key for key in self._reusable_keys(sequence) if not self.pool.has(key)), None)
        return key in self._computing

    def _can_reuse(self, sequence: Sequence) -> bool:
        """Prompt logprobs need every position computed."""
        return self._saves and sequence.prompt_logprobs is None

    def _reusable_keys(self, sequence: Sequence) -> list[bytes]:
        """Keys of all full blocks but for the last token, which is computed for its logits."""
        return sequence.block_keys(len(sequence.tokens) - 1)

    def _open(self, sequence: Sequence) -> bool:
        """Give a sequence a lane for all its tokens, filled from the cache; False when there is no room.

        Beside running sequences a block each is left free, or they would soon take this one's memory away again.
        """
        needed = sequence.room
        blocks = self.cache.blocks_for(needed)
        if len(self.running) >= self.options.max_running or blocks + len(self.running) > self.pool.available:
            return False
        keys = self._reusable_keys(sequence) if self._can_reuse(sequence) else []
        saved = self.pool.find(keys)
        self.pool.take(blocks)
        sequence.lane_blocks = blocks
        self.running.append(sequence)
        sequence.lane = self.cache.open_lane(needed)
        if saved:
            self.cache.restore_blocks(sequence.lane, saved)
        sequence.computed = len(saved) * BLOCK_TOKENS
        sequence.saved_blocks = len(saved)
        for key in keys[len(saved) :]:
            self._computing.setdefault(key, sequence)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_tokens)
            if self._can_reuse(sequence):
                self.prefix_query_tokens += sequence.prompt_tokens
                self.prefix_hit_tokens += sequence.cached_tokens
        return True

    def _preempt_worse(self, sequence: Sequence) -> bool:
        """Under priorities, preempt one that is worse when all worse ones together hold enough."""
        if self.options.scheduling != "priority":
            return False
        worse = [other for other in self.running if other.request.priority > sequence.request.priority]
        left = len(self.running) - len(worse)
        freed = self.pool.available + sum(other.lane_blocks for other in worse)
        if not worse or freed < self.cache.blocks_for(sequence.room) + left:
            return False
        self._preempt(max(worse, key=attrgetter("order")))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's memory; it computes its tokens again later and goes on from there."""
        self.running.remove(sequence)
        self._release(sequence)
        self.preemptions += 1
        self.add(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Give back a lane and all that hangs on it."""
        if sequence.lane is not None:
            self.cache.close_lane(sequence.lane)
        self.pool.give_back(sequence.lane_blocks)
        for key in sequence.keys[sequence.saved_blocks :]:
            if self._computing.get(key) is sequence:
                del self._computing[key]
        sequence.lane = sequence.span = None
        sequence.lane_blocks = sequence.computed = sequence.saved_blocks = 0

    def _prefills(self, beside: bool) -> list[tuple[Sequence, int]]:
        """What each prompt gets of the step."""
        pending = [sequence for sequence in self.running if sequence.remaining > 1 or not sequence.computed]
        if not pending:
            return []
        pending.sort(key=attrgetter("order"))
        counts = self.budget.share([(sequence.computed, sequence.remaining) for sequence in pending], beside)
        rows = self._most_logit_rows
        result = []
        for sequence, count in list(zip(pending, counts, strict=True)):
            if sequence.prompt_logprobs is not None and len(sequence.prompt_logprobs) < sequence.prompt_tokens:
                count = min(count, rows)
                rows -= count
            if count:
                result.append((sequence, count))
        return result
