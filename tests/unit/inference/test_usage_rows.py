"""Usage rows: sums per project, day, model, key and user, and their bound."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from heddle.store.control import inference as module
from heddle.store.control.inference import BOUNDS, BUCKETS, FIRST, OTHERS, TOOK, InferenceRows, LimitRow, Used, bucket
from tests.support.memory import MemoryExecutor


@pytest.fixture
def rows() -> InferenceRows:
    return InferenceRows(MemoryExecutor())


def add(rows: InferenceRows, *used: Used) -> None:
    for one in used:
        asyncio.run(rows.add(one))


def sums(rows: InferenceRows, *by: str, days: tuple[int, int] = (0, 99), **more: Any) -> list[dict[str, Any]]:
    return asyncio.run(rows.usage(days, by, **more))


def shown(found: Sequence[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in found]


def test_a_completion_is_added_to_its_row(rows: InferenceRows) -> None:
    add(rows, Used("p", 1, "m", prompt_tokens=5, completion_tokens=7, cached_tokens=2, reasoning_tokens=1, seconds=0.2))
    add(rows, Used("p", 1, "m", errors=1, prompt_tokens=1, seconds=400.0, first_token_seconds=0.01))
    (row,) = sums(rows, "project", "day", "model", "key", "user")
    assert (row["project"], row["day"], row["model"], row["key"], row["user"]) == ("p", 1, "m", "", "")
    counted = ("requests", "errors", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")
    assert shown([row], *counted) == [(2, 1, 6, 7, 2, 1)]
    assert row["seconds"] == pytest.approx(400.2)
    assert (row["first_tokens"], row["first_token_seconds"]) == (1, 0.01)
    took = [row[name] for name in TOOK]
    assert took == [int(number in (4, 13)) for number in range(BUCKETS)]
    assert [row[name] for name in FIRST] == [1] + [0] * 13


def test_buckets_hold_what_is_not_above_their_bound() -> None:
    assert [bucket(bound) for bound in BOUNDS] == list(range(len(BOUNDS)))
    assert (bucket(0.0), bucket(0.0100001), bucket(10**6)) == (0, 1, len(BOUNDS))


def test_dimensions_are_kept_apart_and_summed_as_asked(rows: InferenceRows) -> None:
    add(rows, *(Used(p, d, m, k, u) for p in "pq" for d in (1, 2) for m in "mn" for k in "kl" for u in "uv"))
    assert shown(sums(rows, "project"), "project", "requests") == [("p", 16), ("q", 16)]
    assert shown(sums(rows, "user", "day", days=(2, 2)), "user", "day", "requests") == [("u", 2, 8), ("v", 2, 8)]
    assert shown(sums(rows, projects=["q"], equal={"model": "m", "key": "k"}), "requests") == [(4,)]
    assert sums(rows, projects=[]) == []
    assert sums(rows, projects=["nobody"]) == []
    assert asyncio.run(rows.projects(1, 1)) == ["p", "q"]
    assert asyncio.run(rows.projects(3, 9)) == []


def test_users_beyond_the_bound_share_a_row_and_no_count_is_lost(
    rows: InferenceRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 3)
    add(rows, *(Used("p", 1, "m", "k", f"user-{number}") for number in range(10)))
    add(rows, Used("p", 1, "m", "k", "user-0"), Used("p", 1, "other", "k", "u"), Used("p", 2, "m", "k", "new"))
    assert shown(sums(rows, "user", days=(1, 1)), "user", "requests") == [
        (OTHERS, 8), ("user-0", 2), ("user-1", 1), ("user-2", 1),
    ]  # fmt: skip
    assert shown(sums(rows, "model"), "model", "requests") == [("m", 12), ("other", 1)]
    assert shown(sums(rows, "user", days=(2, 2)), "user", "requests") == [("new", 1)]


def test_limits_are_set_replaced_and_removed(rows: InferenceRows) -> None:
    def limits() -> list[tuple[str, str, int | None, int | None, str]]:
        found: list[LimitRow] = asyncio.run(rows.limits())
        return [(row.kind, row.name, row.concurrency, row.tokens_per_minute, row.updated_by) for row in found]

    asyncio.run(rows.set_limit("project", "team/p", 3, None, "root"))
    asyncio.run(rows.set_limit("key", "k", None, 5, "root"))
    asyncio.run(rows.set_limit("project", "team/p", 0, 7, "ann"))
    assert limits() == [("key", "k", None, 5, "root"), ("project", "team/p", 0, 7, "ann")]
    asyncio.run(rows.set_limit("key", "k", None, None, "ann"))
    assert limits() == [("project", "team/p", 0, 7, "ann")]
