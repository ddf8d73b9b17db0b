"""An object with many versions and aliases costs as much as one with few."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from heddle.store.control.objects import NewVersion, Objects, object_versions
from tests.support.memory import MemoryExecutor

PROJECT = "ZS9w"
FEW, MANY = 20, 200


def version(number: int) -> NewVersion:
    return NewVersion(PROJECT, "object", "words", f"d{number:042}", str(number), 3, None, None, "ada")


class Counted:
    """The objects of a database in memory; counts the steps of SQLite."""

    def __init__(self) -> None:
        self.executor = MemoryExecutor()
        self.objects = Objects(self.executor)
        self.steps = self.made = 0

    def grow(self, count: int) -> None:
        """Publish versions, each with an alias and a tag, until there are so many."""

        async def publish() -> None:
            for number in range(self.made, count):
                await self.objects.create(version(number))
                digest = version(number).digest
                await self.objects.set_aliases(PROJECT, "words", digest, [f"a{number}"], "ada")
                await self.objects.add_tags(PROJECT, "words", digest, [f"t{number}"], "ada")

        asyncio.run(publish())
        self.made = count

    def steps_of(self, work: Coroutine[Any, Any, Any]) -> int:
        """How many steps SQLite takes."""

        def count() -> int:
            self.steps += 1
            return 0

        raw: Any = self.executor.engine.raw_connection().driver_connection
        self.steps = 0
        raw.set_progress_handler(count, 1)
        asyncio.run(work)
        raw.set_progress_handler(None, 0)
        return self.steps


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.mark.parametrize("name", ["publish", "latest digest", "latest", "v5", version(0).digest])
def test_steps_do_not_grow_with_the_number_of_versions(counted: Counted, name: str) -> None:
    def work(number: int) -> Coroutine[Any, Any, Any]:
        if name == "publish":
            return counted.objects.create(version(10_000 + number))
        if name == "latest digest":
            return counted.objects.latest.digests(PROJECT, "object", ["words"])
        return counted.objects.read(PROJECT, "words", name, with_labels=True)

    counted.grow(FEW)
    few = counted.steps_of(work(FEW))
    counted.grow(MANY)
    assert counted.steps_of(work(MANY)) <= few + 100


def test_a_version_never_gets_the_index_of_another(counted: Counted) -> None:
    counted.grow(4)
    # As after the import of an archive without the first versions.
    asyncio.run(
        counted.executor.write(lambda c: c.execute(object_versions.delete().where(object_versions.c.number < 3)))
    )
    counted.grow(5)
    last = asyncio.run(counted.objects.read(PROJECT, "words", "latest"))
    assert last is not None
    assert (last.digest, last.version_index) == (version(4).digest, 4)
