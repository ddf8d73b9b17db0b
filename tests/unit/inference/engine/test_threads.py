"""How many threads compute."""

from heddle.inference.engine.local.threads import FIRST_PAUSE, WINDOW, ThreadPolicy, first_threads


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def steps(policy: ThreadPolicy, seconds: list[float]) -> list[int]:
    """The numbers of threads after each step."""
    return [policy.threads for value in seconds if policy.observe((0, 1), value) or True]


def test_the_start() -> None:
    assert [first_threads(0, False, cores) for cores in (1, 2, 8)] == [1, 1, 7]
    assert first_threads(0, True, 8) == 8
    assert first_threads(5, True, 8) == 5


def test_threads_drop_when_steps_take_long_and_come_back_later() -> None:
    clock = Clock()
    policy = ThreadPolicy(8, clock)
    assert set(steps(policy, [0.01] * WINDOW)) == {8}
    assert set(steps(policy, [0.02] * WINDOW)) == {8}, "twice the best is no reason"
    assert steps(policy, [0.05] * WINDOW)[-1] == 4
    assert set(steps(policy, [0.02] * 3 * WINDOW)) == {4}
    clock.now += FIRST_PAUSE
    assert steps(policy, [0.02])[-1] == 8
    assert set(steps(policy, [0.01] * WINDOW)) == {8}


def test_a_try_that_fails_doubles_the_pause() -> None:
    clock = Clock()
    policy = ThreadPolicy(2, clock)
    bad = [0.01, *[0.2] * WINDOW]
    assert steps(policy, bad)[-1] == 1
    for pause in (FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE):
        clock.now += pause - 1
        assert steps(policy, [0.02])[-1] == 1
        clock.now += 1
        assert steps(policy, [0.02])[-1] == 2
        assert steps(policy, bad)[-1] == 1


def test_different_steps_are_not_compared() -> None:
    policy = ThreadPolicy(4, Clock())
    for _ in range(WINDOW):
        policy.observe("decode", 0.01)
        policy.observe("prefill", 1.0)
    assert policy.threads == 4


def test_one_thread_stays_one() -> None:
    policy = ThreadPolicy(1, Clock())
    assert set(steps(policy, [0.01, *[1.0] * 2 * WINDOW])) == {1}
