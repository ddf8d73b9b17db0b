"""What is remembered of projects is never older than what was committed."""

import asyncio
from types import SimpleNamespace

import pytest

from heddle.store import base
from heddle.store.control import repository
from heddle.store.control.repository import Instance, ProjectCache


async def answers(cache: ProjectCache[int], start: int = 0, change_at: int | None = None) -> list[int]:
    """What three questions give when each look at the table finds a greater number; one look sees a change come."""
    looks = start

    async def look() -> int:
        nonlocal looks
        looks += 1
        if looks == change_at:
            cache.forget("project")
        return looks

    return [await cache.get("project", look) for _ in range(3)]


def test_what_was_read_is_remembered_until_it_changes() -> None:
    cache: ProjectCache[int] = ProjectCache(Instance())
    assert asyncio.run(answers(cache)) == [1, 1, 1]
    cache.forget("another")
    assert asyncio.run(answers(cache, start=5)) == [1, 1, 1]
    cache.forget("project")
    assert asyncio.run(answers(cache, start=5)) == [6, 6, 6]


def test_what_was_read_while_it_changed_is_read_again() -> None:
    assert asyncio.run(answers(ProjectCache(Instance()), change_at=1)) == [1, 2, 2]


def test_nothing_is_remembered_where_other_servers_write() -> None:
    assert asyncio.run(answers(ProjectCache(Instance(is_shared=True)))) == [1, 2, 3]


def test_so_many_projects_are_remembered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "_MAX_REMEMBERED", 3)
    looks: list[str] = []

    async def ask(cache: ProjectCache[str], *projects: str) -> None:
        for project in projects:

            async def look(project: str = project) -> str:
                looks.append(project)
                return project

            assert await cache.get(project, look) == project

    asyncio.run(ask(ProjectCache(Instance()), "a", "b", "c", "a", "d", "d", "a"))
    assert looks == ["a", "b", "c", "d", "a"]


def test_an_answer_is_kept_for_a_multiple_of_the_time_that_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: now))
    looks: list[float] = []

    async def look() -> int:
        nonlocal now
        now += 2.0
        looks.append(now)
        return len(looks)

    async def ask(*passed: float) -> list[int]:
        nonlocal now
        cache: base.CachedAnswer[int] = base.CachedAnswer()
        found = await asyncio.gather(cache.get(look), cache.get(look))
        for seconds in passed:
            now += seconds
            found.append(await cache.get(look))
        cache.forget()
        return [*found, await cache.get(look)]

    assert asyncio.run(ask(39.0, 1.0, 39.0)) == [1, 1, 1, 2, 2, 3]


def test_an_answer_is_not_kept_that_was_looked_for_before_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge came while the list of projects was read, and the old list stayed for twenty times as long as that."""
    now = 100.0
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: now))
    cache: base.CachedAnswer[int] = base.CachedAnswer()
    looks = 0

    async def look() -> int:
        nonlocal now, looks
        now, looks = now + 2.0, looks + 1
        if looks == 1:
            cache.forget()
        return looks

    async def ask() -> list[int]:
        return [await cache.get(look) for _ in range(3)]

    assert asyncio.run(ask()) == [1, 2, 2]
