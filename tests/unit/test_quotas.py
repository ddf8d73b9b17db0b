"""The text of quotas, and how they are counted: exact bounds, periods, several processes that tell each other."""

import asyncio
from collections.abc import Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from heddle.errors import Busy, StorageFull, TooLarge
from heddle.http.quotas import Meter, Quotas
from heddle.quotas import BYTES, KEY, PROJECT, Quota, parse_quotas, show_quotas
from heddle.settings import Settings
from heddle.store.control.inference import LimitRow, QuotaCount

T = TypeVar("T")


@pytest.mark.parametrize(
    "text",
    [
        "all requests 600/minute",
        "opentelemetry bytes 2GiB/day, files files 5/second",
        "annotation_queues requests 1/hour, disk 50GiB",
        "none",
    ],
)
def test_the_text_of_quotas_is_read_and_shown(text: str) -> None:
    assert show_quotas(parse_quotas(text)) == text


def test_spellings() -> None:
    assert show_quotas(parse_quotas(" Calls  BYTES 1.5KiB / Minute ,disk 2048")) == "calls bytes 1536/minute, disk 2KiB"
    assert Quota.parse("Calls  BYTES 1.5KiB / Minute") == Quota("calls", "bytes", 1536, "minute")
    assert parse_quotas("") == parse_quotas("none") == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("600", "is not a quota"),
        ("calls requests 0/minute", "is not a quota"),
        ("calls requests -1/minute", "is not a quota"),
        ("calls requests 1e3/minute", "is not a quota"),
        ("calls requests 5/fortnight", "is not a quota"),
        ("calls tokens 5/minute", "is not a quota"),
        ("calls bytes 5 apples/minute", "is not a quota"),
        ("disk", "is not a quota"),
        ("disk 0", "is not a quota"),
        ("all requests 5/minute, all requests 6/minute", "same group"),
        (", ".join(f"group{n} requests 5/minute" for n in range(21)), "At most 20"),
    ],
)
def test_what_is_no_quota_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_quotas(text)


class Tables:
    """What servers share: limits, their changes, the counts."""

    def __init__(self) -> None:
        self.rows: list[LimitRow] = []
        self.version = 0
        self.used: dict[tuple[str, str, str, int], QuotaCount] = {}
        self.sizes = {"p": 0}
        self.changes = SimpleNamespace(number=self._number, instance=SimpleNamespace(is_shared=True))
        self.inference = SimpleNamespace(limits=self._limits)
        self.meters = SimpleNamespace(count=self._count, counts=self._counts)
        self.projects = SimpleNamespace(stored_bytes=self._stored)
        self.calls = SimpleNamespace(storage_size=self._size)
        self.tables = SimpleNamespace(total_size=self._none)

    def set(self, name: tuple[str, str], quotas: str) -> None:
        """Give a project or key quotas."""
        self.rows.append(LimitRow(*name, None, None, 0, "root", quotas))
        self.version += 1

    async def _number(self, _name: str) -> int:
        return self.version

    async def _limits(self) -> list[LimitRow]:
        return self.rows

    async def _count(self, told: Sequence[QuotaCount]) -> list[int]:
        totals = []
        for row in told:
            place = (row.kind, row.name, row.quota, row.begins_at)
            before = self.used[place].used if place in self.used else 0
            self.used[place] = QuotaCount(*place, row.ends_at, before + row.used)
            totals.append(before + row.used)
        return totals

    async def _counts(self, now: float) -> list[QuotaCount]:
        return [row for row in self.used.values() if row.begins_at <= now < row.ends_at]

    async def _stored(self, _project: str) -> Any:
        return SimpleNamespace(objects=1, files=2)

    async def _size(self, _project: str) -> int:
        return self.sizes["p"]

    async def _none(self, _project: str) -> int:
        return 0


class Desk:
    """One process on these tables, at a time of its own; `refused` has what was."""

    def __init__(self, tables: Tables, **settings: Any) -> None:
        self.now = 1_000_000_000.0
        self.refused: list[tuple[str, str, str]] = []
        store: Any = tables
        self.quotas = Quotas(Settings(**settings), store, lambda *what: self.refused.append(what), lambda: self.now)

    def ask(self, group: str = "calls", length: int = 0, project: str | None = None, writes: bool = False) -> Meter:
        """A request of the key `k`."""
        meter = self.quotas.begin("k", length)
        meter.begin(group)
        if project is not None:
            meter.open(project, writes)
        return meter


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine."""
    return asyncio.run(work)


def test_a_quota_ends_exactly_and_begins_again() -> None:
    desk = Desk(Tables(), key_quotas="calls requests 3/minute, calls bytes 10/minute")
    assert desk.quotas.is_on
    desk.ask(length=4)
    desk.ask(length=5)
    with pytest.raises(Busy, match="key 'k' may send calls bytes 10/minute; try again in 20 s") as refused:
        desk.ask(length=2)
    assert refused.value.headers == {"Retry-After": "20"}, "1,000,000,000 is 40 s into its minute"
    desk.ask(length=1)
    with pytest.raises(Busy, match=r"calls requests 3/minute"):
        desk.ask()
    desk.ask("objects", length=100)
    desk.now += 60
    with pytest.raises(TooLarge, match="exceeds the bytes that key 'k' may send"):
        desk.ask(length=11)
    for _ in range(3):
        desk.ask()
    assert desk.refused == [("key", "calls", "bytes"), ("key", "calls", "requests"), ("key", "calls", "bytes")]
    desk.now += 19.5
    with pytest.raises(Busy, match="try again in 1 s"):
        desk.ask()
    desk.now += 0.5
    for _ in range(3):
        desk.ask()


def test_who_is_refused_counts_for_nobody() -> None:
    tables = Tables()
    tables.set((PROJECT, "team/full"), "all requests 1/hour")
    desk = Desk(tables, key_quotas="all requests 3/hour, files files 1/hour")
    run(desk.quotas.load())
    desk.ask(project="team/full")
    for _ in range(5):
        with pytest.raises(Busy, match="project 'team/full' may send all requests 1/hour"):
            desk.ask(project="team/full")
    desk.ask("files", project="team/p").add("files", 1)
    with pytest.raises(Busy, match="files files 1/hour"):
        desk.ask("files").add("files", 1)
    desk.ask(project="team/p")
    with pytest.raises(Busy, match="all requests 3/hour"):
        desk.ask()


def test_a_project_counts_what_came_before_it_was_known_and_once() -> None:
    tables = Tables()
    tables.set((PROJECT, "a/p"), "calls bytes 10/day")
    desk = Desk(tables)
    run(desk.quotas.load())
    meter = desk.ask(length=4)
    meter.add(BYTES, 3)
    for _ in range(3):
        meter.open("a/p", False)
    meter.add(BYTES, 3)
    with pytest.raises(Busy, match="calls bytes 10/day"):
        desk.ask(length=1, project="a/p")
    meter.close()
    meter.open("a/p", False)
    meter.add(BYTES, 100)


def test_where_quotas_are_raised_nobody_is_refused() -> None:
    desk = Desk(Tables(), key_quotas="all requests 1/day")
    desk.ask()
    for _ in range(3):
        desk.ask("limits")
        desk.ask("service")
    with pytest.raises(Busy):
        desk.ask()


def test_processes_tell_each_other_and_go_on_after_a_restart() -> None:
    async def scenario() -> None:
        tables = Tables()
        tables.set((KEY, "k"), "all requests 100/day")
        first, second = Desk(tables), Desk(tables)
        for desk in (first, second):
            await desk.quotas.load()
        for _ in range(60):
            first.ask()
        assert first.quotas._due.is_set(), "a twentieth is told at once"
        await first.quotas.tell()
        second.ask()
        await second.quotas.tell()
        for _ in range(39):
            second.ask()
        with pytest.raises(Busy):
            second.ask()
        await second.quotas.tell()
        assert [row.used for row in tables.used.values()] == [100]
        # The first does not know yet: a twentieth more passes, then it has told and learnt.
        passed = 0
        with pytest.raises(Busy):
            while True:
                first.ask()
                passed += 1
                if first.quotas._due.is_set():
                    await first.quotas.tell()
                    first.quotas._due.clear()
        assert passed <= 5
        third = Desk(tables)
        async with third.quotas.running():
            with pytest.raises(Busy):
                third.ask()
            (use,) = await third.quotas.uses()
            assert (use.name, str(use.quota), use.used) == ((KEY, "k"), "all requests 100/day", 100 + passed)
            third.now += 86_400
            third.ask()

    run(scenario())


def test_what_is_told_at_the_end_is_kept() -> None:
    async def scenario() -> None:
        tables = Tables()
        tables.set((KEY, "k"), "all requests 5/day")
        for _ in range(2):
            desk = Desk(tables)
            async with desk.quotas.running():
                desk.ask()
                desk.ask()
        assert [row.used for row in tables.used.values()] == [4]

    run(scenario())


def test_a_full_project_is_read_and_emptied_but_not_written() -> None:
    async def scenario() -> None:
        tables = Tables()
        tables.set((PROJECT, "a/p"), "disk 1KiB")
        desk = Desk(tables)
        await desk.quotas.load()
        tables.sizes["p"] = 1021
        desk.ask(project="a/p", writes=True)
        await desk.quotas._measure("a/p")
        with pytest.raises(StorageFull, match="project 'a/p' may store disk 1KiB"):
            desk.ask(project="a/p", writes=True)
        desk.ask(project="a/p")
        assert desk.refused == [("project", "all", "disk")]
        tables.sizes["p"] = 1020
        desk.quotas._stored.clear()
        assert await desk.quotas._measure("a/p") == 1023
        desk.ask(project="a/p", writes=True)

    run(scenario())


def test_without_quotas_nothing_is_counted() -> None:
    desk = Desk(Tables())
    run(desk.quotas.load())
    assert not desk.quotas.is_on and run(desk.quotas.uses()) == []


def test_what_is_told_while_a_server_stops_is_counted_once() -> None:
    """The task that told it was cancelled behind the commit, and the end of the server told it again."""
    tables = Tables()
    tables.set((PROJECT, "p"), "all requests 100/day")
    desk, count = Desk(tables), tables.meters.count

    async def main() -> None:
        await desk.quotas.load()
        desk.ask(project="p")

        async def count_and_cancel(told: Sequence[QuotaCount]) -> list[int]:
            totals: list[int] = await count(told)
            telling.cancel()
            await asyncio.sleep(0)
            return totals

        tables.meters.count = count_and_cancel
        telling = asyncio.create_task(desk.quotas.tell())
        with pytest.raises(asyncio.CancelledError):
            await telling
        tables.meters.count = count
        await desk.quotas.tell()

    asyncio.run(main())
    assert [row.used for row in tables.used.values()] == [1]
