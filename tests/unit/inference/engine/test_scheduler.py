"""Admission, budgets, shared prefixes and preemption, on a cache without tensors."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.inference.engine.local.options import LocalOptions
from heddle.inference.engine.local.scheduler import Plan, Scheduler
from heddle.inference.engine.local.sequence import BLOCK_TOKENS, Sequence
from tests.unit.inference.engine.helpers import request

POSITIONS = 512


@dataclass(eq=False)
class PaperLane:
    """What a lane would hold: the tokens themselves."""

    capacity: int
    content: list[int | None] = field(default_factory=list)
    open: bool = True


class PaperCache:
    """Lanes of 32, 64, 128, ... places."""

    block_tokens = BLOCK_TOKENS
    block_bytes = 1
    saves_blocks = True

    def __init__(self) -> None:
        self.lanes: list[PaperLane] = []

    def blocks_for(self, tokens: int) -> int:
        size = 32
        while size < tokens:
            size *= 2
        return size // BLOCK_TOKENS

    def open_lane(self, tokens: int) -> PaperLane:
        capacity = self.blocks_for(tokens) * BLOCK_TOKENS
        self.lanes.append(PaperLane(capacity, [None] * capacity))
        return self.lanes[-1]

    def grow_lane(self, lane: PaperLane, tokens: int) -> None:
        capacity = self.blocks_for(tokens) * BLOCK_TOKENS
        lane.content += [None] * (capacity - lane.capacity)
        lane.capacity = capacity

    def close_lane(self, lane: PaperLane) -> None:
        assert lane.open
        lane.open = False
        self.lanes.remove(lane)

    def save_block(self, lane: PaperLane, index: int) -> list[int | None]:
        return lane.content[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]

    def restore_blocks(self, lane: PaperLane, blocks: Rows[Any]) -> None:
        for index, block in enumerate(blocks):
            lane.content[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS] = block


class Paper:
    """A scheduler and a model whose next token is the number of tokens so far."""

    def __init__(self, blocks: int = 64, **options: Any) -> None:
        self.cache: Any = PaperCache()
        self.scheduler = Scheduler(LocalOptions(folder=Path("."), **options), self.cache, blocks, 1000)
        self.computed: dict[int, int] = {}
        self.done: list[int] = []

    def add(self, number: int, prompt: list[int], **fields: Any) -> Sequence:
        sequence = Sequence.of(number, request(prompt, **fields), number)
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> Plan:
        plan = self.scheduler.schedule()
        self.check(plan)
        for sequence, count in [*plan.prefills, *((sequence, 1) for sequence in plan.decodes)]:
            lane: Any = sequence.lane
            first, last = sequence.computed, sequence.computed + count
            assert last <= min(lane.capacity, len(sequence.tokens))
            assert lane.content[:first] == sequence.tokens[:first], "the lane holds other tokens"
            lane.content[first:last] = sequence.tokens[first:last]
            sequence.computed = last
            self.computed[sequence.number] = self.computed.get(sequence.number, 0) + count
            self.scheduler.save_blocks(sequence)
            if last == len(sequence.tokens):
                sequence.tokens.append(last)
                if sequence.output_count == sequence.request.sampling.max_tokens:
                    self.scheduler.finish(sequence)
                    self.done.append(sequence.number)
        return plan

    def check(self, plan: Plan) -> None:
        scheduler, pool = self.scheduler, self.scheduler.pool
        assert pool.used == sum(lane.capacity for lane in self.cache.lanes) // BLOCK_TOKENS
        assert pool.used == sum(sequence.lane_blocks for sequence in scheduler.running)
        assert pool.used + pool.cached <= pool.total
        assert len(scheduler.running) <= scheduler.options.max_running
        everybody = [sequence.number for sequence in plan.sequences]
        assert len(set(everybody)) == len(everybody)
        budget = scheduler.options.max_prefill_beside if plan.decodes else scheduler.options.max_prefill
        assert sum(count for _, count in plan.prefills) <= budget
        if scheduler.running or scheduler.waiting:
            assert everybody, "work, and nobody runs"

    def finish(self) -> None:
        for _ in range(5000):
            if not self.scheduler.running and not self.scheduler.waiting:
                break
            self.step()
        assert not self.scheduler.running and not self.scheduler.waiting
        assert self.scheduler.pool.used == 0
        assert self.cache.lanes == []
        assert self.scheduler._computing == {}


jobs = st.lists(
    st.tuples(
        st.integers(1, 200),
        st.integers(1, 60),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(0, 12),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(jobs, st.integers(32, 48), st.sampled_from(["fcfs", "priority"]), st.integers(1, 6), st.data())
def test_whatever_comes_everybody_ends_and_nothing_leaks(
    work: list[tuple[int, int, int, int, int, bool]],
    blocks: int,
    scheduling: str,
    running: int,
    data: st.DataObject,
) -> None:
    paper = Paper(blocks, scheduling=scheduling, max_running=running, max_prefill=64, max_prefill_beside=16)
    sequences = []
    aborted = set()
    for number, (prompt, output, priority, family, pause, scored) in enumerate(work):
        tokens = [family * 1000 + place for place in range(prompt)]
        fields = {"max_tokens": output, "prompt_logprobs": 0 if scored else None}
        priority = priority if scheduling == "priority" else 0
        sequences.append(paper.add(number, tokens, priority=priority, **fields))
        for _ in range(pause):
            if paper.scheduler.running or paper.scheduler.waiting:
                paper.step()
        alive = [each for each in sequences if each.number not in aborted and each.number not in paper.done]
        if alive and data.draw(st.integers(0, 3)) == 0:
            victim = data.draw(st.sampled_from(alive))
            paper.scheduler.drop(victim)
            aborted.add(victim.number)
    paper.finish()
    assert sorted(paper.done) == sorted(set(range(len(work))) - aborted)
    for sequence in sequences:
        if sequence.number in paper.done:
            start = sequence.prompt_tokens
            assert sequence.tokens[start:] == list(range(start, start + sequence.request.sampling.max_tokens))


def test_short_prompts_do_not_wait_for_a_long_one_and_do_not_stop_it() -> None:
    paper = Paper(200, max_prefill=128, max_prefill_beside=128)
    paper.add(1, list(range(1000, 2900)), max_tokens=1)
    paper.step()
    for number in range(2, 6):
        paper.add(number, [number] * 30, max_tokens=1)
    counts: dict[int, int] = {}
    while len(paper.done) < 4:
        for sequence, count in paper.step().prefills:
            counts[sequence.number] = counts.get(sequence.number, 0) + count
    assert sorted(paper.done) == [2, 3, 4, 5]
    assert counts[1] >= 2 * 64, "half of each step is for the first"
    assert len(range(0, sum(counts.values()), 128)) <= 3


def test_the_budget_is_smaller_beside_sequences_that_generate() -> None:
    paper = Paper(200, max_prefill=100, max_prefill_beside=20)
    paper.add(1, [1] * 10, max_tokens=50)
    paper.step()
    paper.add(2, list(range(500)), max_tokens=1)
    plan = paper.step()
    assert [(sequence.number, count) for sequence, count in plan.prefills] == [(2, 20)]
    assert [sequence.number for sequence in plan.decodes] == [1]


def test_choices_of_one_prompt_compute_it_once() -> None:
    paper = Paper(200)
    prompt = list(range(100))
    for number in range(1, 5):
        paper.add(number, prompt, max_tokens=3)
    plan = paper.step()
    assert [(sequence.number, count) for sequence, count in plan.prefills] == [(1, 100)]
    plan = paper.step()
    assert [(sequence.number, count) for sequence, count in plan.prefills] == [(2, 4), (3, 4), (4, 4)]
    paper.finish()
    assert paper.computed == {1: 102, 2: 6, 3: 6, 4: 6}
    assert (paper.scheduler.prefix_query_tokens, paper.scheduler.prefix_hit_tokens) == (400, 288)


def test_who_waits_for_a_prefix_lets_others_pass_and_goes_on_when_it_is_aborted() -> None:
    paper = Paper(200, max_prefill=32)
    prompt = list(range(100))
    first = paper.add(1, prompt, max_tokens=1)
    paper.add(2, prompt, max_tokens=1)
    paper.add(3, [7] * 20, max_tokens=1)
    paper.step()
    assert [sequence.number for sequence in paper.scheduler.waiting] == [2]
    paper.scheduler.drop(first)
    paper.finish()
    assert sorted(paper.done) == [2, 3]
    assert paper.computed[2] < 100, "the blocks that the first had computed were saved"


def test_prompt_logprobs_and_salts_keep_prefixes_apart() -> None:
    paper = Paper(200)
    prompt = list(range(64))
    for number, fields in enumerate([{}, {"salt": "a"}, {"prompt_logprobs": 0}, {"salt": "a"}], 1):
        paper.add(number, prompt, max_tokens=1, **fields)
        paper.finish()
    assert paper.computed == {1: 64, 2: 64, 3: 64, 4: 16}
    assert paper.scheduler.prefix_query_tokens == 192


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    paper = Paper(200, prefix_cache=False)
    for number in (1, 2):
        paper.add(number, list(range(64)), max_tokens=1)
    paper.finish()
    assert paper.computed == {1: 64, 2: 64}
    assert paper.scheduler.pool.cached == 0


def test_when_memory_runs_out_the_last_one_gives_way() -> None:
    paper = Paper(10, prefix_cache=False)
    for number in (1, 2):
        paper.add(number, [number] * 30, max_tokens=80)
    while not paper.scheduler.preemptions:
        paper.step()
    assert [sequence.number for sequence in paper.scheduler.running] == [1]
    paper.finish()
    assert paper.done == [1, 2]
    assert paper.computed[1] == 109 and paper.computed[2] > 109


def test_under_priorities_the_better_one_takes_a_place_and_the_memory() -> None:
    paper = Paper(8, scheduling="priority", prefix_cache=False)
    paper.add(1, [1] * 60, max_tokens=40, priority=5)
    paper.add(2, [2] * 20, max_tokens=5, priority=1)
    paper.step()
    assert [sequence.number for sequence in paper.scheduler.running] == [2, 1]
    paper.add(3, [3] * 60, max_tokens=5, priority=0)
    paper.step()
    assert 3 in [sequence.number for sequence in paper.scheduler.running]
    assert 1 in [sequence.number for sequence in paper.scheduler.waiting]
    paper.finish()
    assert paper.done[-1] == 1


def test_nobody_is_preempted_when_that_would_not_make_enough_room() -> None:
    paper = Paper(10, scheduling="priority", prefix_cache=False)
    paper.add(1, [1] * 60, max_tokens=4, priority=0)
    paper.add(2, [2] * 20, max_tokens=4, priority=5)
    paper.step()
    paper.add(3, [3] * 100, max_tokens=4, priority=1)
    paper.step()
    assert sorted(sequence.number for sequence in paper.scheduler.running) == [1, 2]
    assert paper.scheduler.preemptions == 0


def test_prompts_whose_every_position_is_scored_come_in_pieces() -> None:
    paper = Paper(2000, max_prefill=5000)
    paper.scheduler._most_logit_rows = 100
    paper.add(1, list(range(500)), max_tokens=1, prompt_logprobs=0)
    paper.add(2, list(range(500, 900)), max_tokens=1)
    plan = paper.step()
    assert {sequence.number: count for sequence, count in plan.prefills} == {1: 100, 2: 400}
