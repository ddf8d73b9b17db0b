"""Limits on concurrency and tokens per minute, on a clock that the test moves."""

import pytest

from heddle.errors import Busy
from heddle.inference.limits import KEY, PROJECT, Limits
from heddle.settings import Settings
from heddle.store.control.inference import LimitRow


class Clock:
    """Seconds that pass only when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def made(clock: Clock, **settings: int) -> Limits:
    return Limits(Settings(**{f"inference_{name}": value for name, value in settings.items()}), clock)


def test_without_limits_everything_runs_and_no_header_is_given(clock: Clock) -> None:
    limits = made(clock)
    leases = [limits.take("team/p", "k", 10**12) for _ in range(100)]
    assert [lease.headers for lease in leases] == [{}] * 100
    assert limits.running((PROJECT, "team/p")) == limits.running((KEY, "k")) == 100


def test_a_place_is_taken_and_given_back_once(clock: Clock) -> None:
    limits = made(clock, project_concurrency=2)
    first, _ = limits.take("team/p", "a", 1), limits.take("team/p", "b", 1)
    with pytest.raises(Busy, match=r"project 'team/p' may run 2 completions at the same time") as refused:
        limits.take("team/p", "c", 1)
    assert refused.value.headers["Retry-After"] == "1"
    assert refused.value.headers["x-ratelimit-limit-requests"] == "2"
    assert refused.value.headers["x-ratelimit-remaining-requests"] == "0"
    assert limits.running((KEY, "c")) == 0, "a refused request holds nothing"
    first.end(1)
    first.end(1)
    limits.take("team/p", "c", 1)
    with pytest.raises(Busy):
        limits.take("team/p", "d", 1)
    limits.take("team/q", "d", 1)


def test_keys_and_requests_without_a_project_have_limits_of_their_own(clock: Clock) -> None:
    limits = made(clock, key_concurrency=1, project_concurrency=1)
    limits.take("", "a", 1)
    with pytest.raises(Busy, match="requests without a project"):
        limits.take("", "b", 1)
    with pytest.raises(Busy, match="key 'a'"):
        limits.take("team/p", "a", 1)
    limits.take("team/p", "b", 1)


def test_tokens_flow_back_with_time(clock: Clock) -> None:
    limits = made(clock, key_tokens_per_minute=600)
    lease = limits.take("", "a", 600)
    assert lease.headers["x-ratelimit-limit-tokens"] == "600"
    assert lease.headers["x-ratelimit-remaining-tokens"] == "0"
    assert lease.headers["x-ratelimit-reset-tokens"] == "60.000s"
    with pytest.raises(Busy, match="600 tokens per minute") as refused:
        limits.take("", "a", 100)
    assert refused.value.headers["Retry-After"] == "10"
    clock.now += 9.9
    with pytest.raises(Busy):
        limits.take("", "a", 100)
    clock.now += 0.1
    limits.take("", "a", 100)


def test_what_was_estimated_too_high_comes_back_and_what_was_too_low_is_owed(clock: Clock) -> None:
    limits = made(clock, key_tokens_per_minute=600)
    limits.take("", "a", 600).end(100)
    assert limits.take("", "a", 500).headers["x-ratelimit-remaining-tokens"] == "0"
    limits.take("", "b", 10).end(1800)
    with pytest.raises(Busy) as refused:
        limits.take("", "b", 1)
    assert refused.value.headers["Retry-After"] == "121", "1800 owed + 1 wanted - 600 free, at ten a second"
    assert refused.value.headers["x-ratelimit-remaining-tokens"] == "0"


def test_a_request_beyond_a_minutes_tokens_runs_when_nothing_is_owed(clock: Clock) -> None:
    limits = made(clock, key_tokens_per_minute=60)
    limits.take("", "a", 6000).end(6000)
    clock.now += 5999
    with pytest.raises(Busy):
        limits.take("", "a", 6000)
    clock.now += 1
    limits.take("", "a", 6000)


def test_the_tightest_limit_is_the_one_that_is_told(clock: Clock) -> None:
    limits = made(
        clock, key_concurrency=5, project_concurrency=2, key_tokens_per_minute=100, project_tokens_per_minute=50
    )
    headers = limits.take("team/p", "a", 10).headers
    assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("2", "1")
    assert (headers["x-ratelimit-limit-tokens"], headers["x-ratelimit-remaining-tokens"]) == ("50", "40")


def test_stored_limits_win_over_the_settings_part_by_part(clock: Clock) -> None:
    limits = made(clock, project_concurrency=1, project_tokens_per_minute=100)
    limits.set_rows([LimitRow(PROJECT, "team/p", 0, None, 0, "root"), LimitRow(KEY, "a", 1, None, 0, "root")])
    assert limits.of((PROJECT, "team/p")).concurrency == 0
    assert limits.of((PROJECT, "team/p")).tokens_per_minute == 100
    limits.take("team/p", "b", 1)
    limits.take("team/p", "a", 1)
    with pytest.raises(Busy, match="key 'a' may run 1 completion at the same time"):
        limits.take("team/p", "a", 1)
    limits.set_rows([])
    with pytest.raises(Busy, match="project 'team/p'"):
        limits.take("team/p", "b", 1)


def test_meters_of_those_who_owe_nothing_are_forgotten(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heddle.inference.limits.MOST_METERS", 10)
    limits = made(clock, key_tokens_per_minute=600)
    owing = limits.take("", "owing", 500)
    for number in range(50):
        limits.take(f"team/{number}", f"key-{number}", 5).end(0)
    assert len(limits._meters) <= 12
    owing.end(500)
    with pytest.raises(Busy):
        limits.take("", "owing", 200)
