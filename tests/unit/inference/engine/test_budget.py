"""How many prompt tokens a step computes."""

from pathlib import Path

from heddle.inference.engine.local.options import LocalOptions
from heddle.inference.engine.local.scheduler import LEAST, SECONDS_ALONE, SECONDS_BESIDE, PrefillBudget


def budget() -> PrefillBudget:
    return PrefillBudget(LocalOptions(folder=Path("."), max_prefill=1000, max_prefill_beside=200))


def test_on_a_fast_machine_the_tokens_are_the_limit() -> None:
    fast = budget()
    assert fast.share([(0, 5000)], False) == [1000]
    assert fast.share([(0, 5000)], True) == [200]
    fast.observe([(0, 1000)], 0.01)
    assert fast.share([(1000, 5000)], False) == [1000]


def test_the_first_gets_half_at_least_and_short_ones_share_the_rest() -> None:
    assert budget().share([(0, 5000), (0, 300), (0, 40), (0, 300)], False) == [500, 300, 40, 160]
    assert budget().share([(0, 100), (0, 5000), (0, 700)], False) == [100, 200, 700]
    assert budget().share([(0, 100), (0, 40)], False) == [100, 40]


def test_where_prompts_are_slow_a_step_takes_fewer_of_their_tokens() -> None:
    slow = budget()
    slow.observe([(0, 500)], 5.0)
    assert slow.share([(0, 5000)], False) == [int(SECONDS_ALONE / 0.01)]
    for _ in range(60):
        slow.observe([(0, 100)], 100.0)
    assert slow.share([(0, 5000), (0, 10)], True) == [LEAST, 0], "the first always goes on"
    for _ in range(80):
        slow.observe([(0, 32)], 0.0001)
    assert slow.share([(0, 5000)], False) == [1000], "and it learns that it was wrong"


def test_late_positions_cost_more_and_are_learned_apart() -> None:
    slow = budget()
    position = 0
    while position < 30_000:
        (count,) = slow.share([(position, 30_000 - position)], True)
        assert count >= min(LEAST, 30_000 - position)
        last = position + count
        seconds = sum(1e-4 + 2e-7 * place for place in (position, last)) / 2 * count
        assert seconds < 2.5 * SECONDS_BESIDE, "the first step beyond a doubling takes twice as long at most"
        slow.observe([(position, count)], seconds)
        position = last
    assert slow.share([(0, 5000)], True) == [200], "the beginning of another prompt is as cheap as before"


def test_a_step_with_few_prompt_tokens_teaches_nothing() -> None:
    fast = budget()
    fast.observe([(3, 3)], 100.0)
    assert fast.share([(0, 5000)], False) == [1000]
