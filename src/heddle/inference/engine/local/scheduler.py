"""Who runs in the next step: admission, chunked prefill under a budget, preemption when memory runs out."""

from bisect import insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heddle.inference.engine.local.blocks import BLOCK_TOKENS, BlockPool
from heddle.inference.engine.local.budget import PrefillBudget
from heddle.inference.engine.local.options import LocalOptions
from heddle.inference.engine.local.sequence import Sequence

if TYPE_CHECKING:
    from heddle.models.interfaces import KeyValueCache, SavedBlock

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
        insort(self.waiting, sequence, key=_order)

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
            decodes = self._due()
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
        due = self._due()
        short = [sequence for sequence in due if sequence.lane and sequence.lane.capacity < len(sequence.tokens)]
        if not short:
            return due
        for sequence in sorted(short, key=_order):
            while sequence.lane is not None and not self._grow(sequence):
                self._preempt(max(self.running, key=_order))
        return [sequence for sequence in due if sequence.lane is not None]

    def _due(self) -> list[Sequence]:
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
            elif not self._make_way(sequence):
                return

    def _prefix_is_being_computed(self, sequence: Sequence) -> bool:
        """Whether the next block that the cache lacks is about to be saved by a running sequence."""
        if not self._computing or not self._reuses(sequence):
            return False
        key = next((key for key in self._reusable_keys(sequence) if not self.pool.has(key)), None)
        return key in self._computing

    def _reuses(self, sequence: Sequence) -> bool:
        """Prompt logprobs need every position computed."""
        return self._saves and sequence.prompt_logprobs is None

    def _reusable_keys(self, sequence: Sequence) -> list[bytes]:
        """Keys of all full blocks but for the last token, which is computed for its logits."""
        return sequence.block_keys(len(sequence.tokens) - 1)

    def _open(self, sequence: Sequence) -> bool:
        """Give a sequence a lane for all its tokens, filled from the cache; False when there is no room.

        Beside running sequences a block each is left free, or they would soon take this one's memory away again.
        """
        room = len(sequence.tokens) + 1
        blocks = self.cache.blocks_for(room)
        if len(self.running) >= self.options.max_running or blocks + len(self.running) > self.pool.available:
            return False
        keys = self._reusable_keys(sequence) if self._reuses(sequence) else []
        saved = self.pool.find(keys)
        self.pool.take(blocks)
        sequence.lane_blocks = blocks
        self.running.append(sequence)
        sequence.lane = self.cache.open_lane(room)
        if saved:
            self.cache.restore_blocks(sequence.lane, saved)
        sequence.computed = len(saved) * BLOCK_TOKENS
        sequence.saved_blocks = len(saved)
        for key in keys[len(saved) :]:
            self._computing.setdefault(key, sequence)
        self._count_reuse(sequence)
        return True

    def _count_reuse(self, sequence: Sequence) -> None:
        """Figures of the first start; a sequence that comes back finds its own blocks."""
        if sequence.cached_tokens is None:
            sequence.cached_tokens = min(sequence.computed, sequence.prompt_tokens)
            if self._reuses(sequence):
                self.prefix_query_tokens += sequence.prompt_tokens
                self.prefix_hit_tokens += sequence.cached_tokens

    def _make_way(self, sequence: Sequence) -> bool:
        """Under priorities, preempt one that is worse when all worse ones together hold enough."""
        if self.options.scheduling != "priority":
            return False
        worse = [other for other in self.running if other.request.priority > sequence.request.priority]
        left = len(self.running) - len(worse)
        room = self.pool.available + sum(other.lane_blocks for other in worse)
        if not worse or room < self.cache.blocks_for(len(sequence.tokens) + 1) + left:
            return False
        self._preempt(max(worse, key=_order))
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
        pending.sort(key=_order)
        counts = self.budget.share([(sequence.computed, sequence.remaining) for sequence in pending], beside)
        return self._within_logit_rows(list(zip(pending, counts, strict=True)))

    def _within_logit_rows(self, shares: list[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
        """Cut shares whose every position needs logits, so that those never need much memory."""
        rows = self._most_logit_rows
        result = []
        for sequence, count in shares:
            if sequence.prompt_logprobs is not None and len(sequence.prompt_logprobs) < sequence.prompt_tokens:
                count = min(count, rows)
                rows -= count
            if count:
                result.append((sequence, count))
        return result


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
