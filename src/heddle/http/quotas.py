"""Counts what projects and keys send, and refuses what is beyond their quotas.

Each process counts in memory, so that no request waits for that. Those that share tables tell each other every second,
and at once when one of them has counted a twentieth of a quota: together they let pass, beyond it and for each further
process, at most that and what comes while it is told.
"""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import Headers
from starlette.types import Scope

from heddle import aio
from heddle.errors import HeddleError, QuotaReached, StorageFull, TooLarge
from heddle.http.metrics import Metrics, Values
from heddle.quotas import BYTES, DISK, FILES, KEY, LOCAL_KEY, NONE, PROJECT, REQUESTS, Quota, describe, parse_quotas
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.store.control.coordination import LIMITS
from heddle.store.control.inference import LimitRow, MeterName, QuotaCount
from heddle.wire import refs

logger = logging.getLogger("heddle.http.quotas")

METER = "heddle.meter"
UNCOUNTED = frozenset(("limits", "service"))
"""Groups that nobody is kept from: where quotas are raised, and what watches the server."""
_PROJECT_HEADERS = ("project_id", "compat-project", "openai-project")
"""Of OpenTelemetry and Langfuse, and of completions."""
_SECONDS = 1.0
_SHARE = 20
"""What is counted is told at once from this part of a quota on; a project is measured this part of the time."""
Refused = Callable[[str, str, str], None]


@dataclass(slots=True)
class _Count:
    """What a project or key used in a period: of all processes as they told, and `new` here since."""

    begins_at: int
    ends_at: int
    stored: int = 0
    new: int = 0


@dataclass(frozen=True, slots=True)
class Use:
    """How much of a quota is used; `ends_at` in seconds since 1970, None for what is stored."""

    name: MeterName
    quota: Quota
    used: int
    ends_at: int | None


class Meter:
    """What one request brings, and for whom it counts. A request that is refused counts for nobody."""

    def __init__(self, quotas: "Quotas", key: str, length: int) -> None:
        self._quotas = quotas
        self._key = key
        self._group = ""
        self._sums = {REQUESTS: 1, BYTES: length}
        self._names: list[MeterName] = []
        self._taken: list[tuple[_Count, int]] = []

    def begin(self, group: str) -> None:
        """Count a request to a route of this group for its key; raises QuotaReached, TooLarge."""
        if group not in UNCOUNTED:
            self._group = group
            self._enter((KEY, self._key))

    def begin_request(self, scope: Scope, group: str) -> None:
        """Count a request to a route of a group; raises QuotaReached, TooLarge.

        A project that address or header name is looked at before the body is read, and counted once it is opened.
        """
        self.begin(group)
        parts, headers = scope.get("path_params", {}), Headers(scope=scope)
        project = f"{parts['entity']}/{parts['project']}" if {"entity", "project"} <= parts.keys() else ""
        project = project or next((value for name in _PROJECT_HEADERS if (value := refs.project_in(headers, name))), "")
        if project and scope["heddle.caller"].scopes_in(project):
            self.check(project)

    def check(self, project_id: str) -> None:
        """Raise QuotaReached or TooLarge where the request exceeds the quotas of a project; counts nothing."""
        for quota in self._quotas.of((PROJECT, project_id)) if self._group else ():
            if quota.counts(self._group, quota.unit) and (number := self._sums.get(quota.unit)):
                self._attempt(partial(self._quotas.check, (PROJECT, project_id), quota, number, number))

    def open(self, project_id: str, is_storing: bool) -> None:
        """Count it for a project, too; raises QuotaReached, TooLarge, and StorageFull where its disk is used up."""
        if not self._group:
            return
        name = (PROJECT, project_id)
        if name not in self._names:
            self._enter(name)
        if is_storing:
            self._attempt(lambda: self._quotas.check_room(name))

    def add(self, unit: str, number: int) -> None:
        """Count more of a unit; raises QuotaReached, TooLarge."""
        if self._group:
            self._sums[unit] = self._sums.get(unit, 0) + number
            for name in self._names:
                self._take(name, unit, number)

    def close(self) -> None:
        """The request has ended: what goes on in its name is not counted."""
        self._group = ""

    def _enter(self, name: MeterName) -> None:
        self._names.append(name)
        for unit, number in self._sums.items():
            if number:
                self._take(name, unit, number)

    def _take(self, name: MeterName, unit: str, number: int) -> None:
        def take() -> None:
            for quota in self._quotas.of(name):
                if quota.counts(self._group, unit):
                    self._taken.append((self._quotas.take(name, quota, number, self._sums[unit]), number))

        self._attempt(take)

    def _attempt(self, work: Callable[[], object]) -> None:
        with self._quotas.counting:
            try:
                work()
            except HeddleError:
                for count, number in self._taken:
                    count.new -= number
                self._taken.clear()
                raise


class Quotas:
    """The quotas that hold, and what is used of them, in one process."""

    def __init__(
        self, settings: Settings, store: Store, refused: Refused, clock: Callable[[], float] = time.time
    ) -> None:
        """`refused` counts refusals by kind (project or key), group and unit; `clock` is seconds since 1970."""
        self._store = store
        self._defaults = {PROJECT: parse_quotas(settings.project_quotas), KEY: parse_quotas(settings.key_quotas)}
        self._refused = refused
        self._clock = clock
        self._own: dict[MeterName, tuple[Quota, ...]] = {}
        self._counts: dict[tuple[MeterName, str], _Count] = {}
        self._stored: dict[str, tuple[float, int]] = {}
        self._unmeasured: set[str] = set()
        self.counting = threading.Lock()
        """Held while counts change: large bodies are read, and their projects opened, in threads."""
        self._tells_at_once = settings.workers > 1 or store.changes.instance.is_shared
        self._due = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._telling = asyncio.Lock()
        self._loaded = -1
        self.is_on = any(self._defaults.values())

    def of(self, name: MeterName) -> tuple[Quota, ...]:
        """The quotas of a project or key: its own, or those of the setting."""
        return self._own.get(name, self._defaults[name[0]])

    def default(self, kind: str) -> tuple[Quota, ...]:
        """The quotas of the setting."""
        return self._defaults[kind]

    def begin(self, key: str | None, length: int) -> Meter:
        """The meter of a request with a key, whose body has so many bytes (0: it does not say)."""
        return Meter(self, key or LOCAL_KEY, length)

    def count_of_job(self, key: str | None, project_id: str, group: str) -> None:
        """Count a request that a job of a key and a project makes of this server; raises QuotaReached."""
        if self.is_on:
            meter = self.begin(key, 0)
            meter.begin(group)
            meter.open(project_id, is_storing=False)

    def check_room_of(self, project_id: str) -> None:
        """Raise StorageFull where a job of the project would store beyond its quota of disk."""
        if self.is_on:
            self.check_room((PROJECT, project_id))

    def take(self, name: MeterName, quota: Quota, number: int, whole: int) -> _Count:
        """Count so much of a request that brings `whole`; raises as `check`."""
        count = self._counts[name, quota.kind] = self.check(name, quota, number, whole)
        count.new += number
        if self._tells_at_once and count.new * _SHARE >= quota.most:
            self._tell_soon()
        return count

    def _tell_soon(self) -> None:
        if self._loop is None:
            self._due.set()
        else:
            self._loop.call_soon_threadsafe(self._due.set)

    def check(self, name: MeterName, quota: Quota, number: int, whole: int) -> _Count:
        """The count of this period; raises QuotaReached where it is used up, TooLarge for more than the whole quota."""
        now = self._clock()
        count = self._counts.get((name, quota.kind))
        if count is None or not count.begins_at <= now < count.ends_at:
            begins = int(now // quota.seconds) * quota.seconds
            count = _Count(begins, begins + quota.seconds)
        if count.stored + count.new + number > quota.most:
            self._refused(name[0], quota.group, quota.unit)
            if whole > quota.most:
                raise TooLarge(
                    f"Request too large: it exceeds the {quota.unit} that {describe(name)} may send ({quota})"
                )
            wait = max(1, math.ceil(count.ends_at - now))
            reason = f"Quota reached: {describe(name)} may send {quota}; try again in {wait} s"
            raise QuotaReached(reason, wait)
        return count

    def check_room(self, name: MeterName) -> None:
        """Raise StorageFull for a project that stores as much as its quota, as was measured last."""
        for quota in self.of(name):
            if quota.unit == DISK:
                project = name[1]
                self._unmeasured.add(project)
                if self._stored.get(project, (0.0, 0))[1] >= quota.most:
                    self._refused(PROJECT, quota.group, DISK)
                    raise StorageFull(f"Quota reached: {describe(name)} may store {quota}; delete something first")

    async def load(self) -> None:
        """Take over the quotas that are stored."""
        number = await self._store.changes.number(LIMITS)
        rows = await self._store.inference.limits()
        self._own = {(row.kind, row.name): _read(row) for row in rows if row.quotas is not None}
        self.is_on = any(self._defaults.values()) or any(self._own.values())
        self._loaded = number

    async def tell(self) -> None:
        """Store what was counted here, and learn what others counted of the same; a cancelled caller waits for that.

        What is stored would otherwise be counted once more.
        """
        await aio.finish(self._tell())

    async def _tell(self) -> None:
        async with self._telling:
            now = self._clock()
            with self.counting:
                self._counts = {key: count for key, count in self._counts.items() if count.ends_at > now}
                told = [(key, count, count.new) for key, count in self._counts.items() if count.new]
            if not told:
                return
            totals = await self._store.meters.count(
                [QuotaCount(*name, kind, count.begins_at, count.ends_at, new) for (name, kind), count, new in told]
            )
            with self.counting:
                for (_, count, new), total in zip(told, totals, strict=True):
                    count.stored, count.new = total, count.new - new

    async def uses(self) -> list[Use]:
        """How much is used of each quota of its own that a project or key has, and of those of the settings in use."""
        if not self.is_on:
            return []
        await self.tell()
        rows = {((row.kind, row.name), row.quota): row for row in await self._store.meters.counts(self._clock())}
        names = {*self._own, *(name for name, _ in rows), *((PROJECT, project) for project in self._stored)}
        found = []
        for name in sorted(names):
            for quota in self.of(name):
                row = rows.get((name, quota.kind))
                used = await self._measure(name[1]) if quota.unit == DISK else row.used if row else 0
                found.append(Use(name, quota, used, row.ends_at if row else None))
        return found

    def show(self, metrics: Metrics) -> None:
        """Show of each kind of quota the one that is used most."""
        fullest: dict[tuple[str, ...], Use] = {}

        async def look() -> Values:
            fullest.clear()
            for use in sorted(await self.uses(), key=lambda use: use.used / use.quota.most):
                fullest[use.name[0], use.quota.group, use.quota.unit, use.quota.period] = use
            return {labels: use.used for labels, use in fullest.items()}

        metrics.ask("heddle_quota_used", look)
        metrics.show("heddle_quota_limit", lambda: {labels: use.quota.most for labels, use in fullest.items()})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Go on from what was counted before, and tell what is counted, to the end."""
        self._loop = asyncio.get_running_loop()
        await self.load()
        for row in await self._store.meters.counts(self._clock()):
            self._counts[(row.kind, row.name), row.quota] = _Count(row.begins_at, row.ends_at, row.used)
        tasks = [asyncio.create_task(_repeat(work)) for work in (self._exchange, self._measure_all)]
        try:
            yield
        finally:
            await aio.cancel(*tasks)
            with contextlib.suppress(HeddleError):
                await self.tell()

    async def _exchange(self) -> None:
        await aio.wait_at_most(_SECONDS, self._due.wait())
        self._due.clear()
        if await self._store.changes.number(LIMITS) != self._loaded:
            await self.load()
        await self.tell()

    async def _measure_all(self) -> None:
        """Measure the projects that were written to since."""
        for project in list(self._unmeasured):
            if self._stored.get(project, (0.0, 0))[0] <= time.monotonic():
                self._unmeasured.discard(project)
                await self._measure(project)
        await asyncio.sleep(_SECONDS)

    async def _measure(self, project_id: str) -> int:
        """The bytes that a project stores; so old that measuring takes a twentieth of the time at most."""
        believed_until, size = self._stored.get(project_id, (0.0, 0))
        began = time.monotonic()
        if began >= believed_until:
            size = await stored_bytes(self._store, refs.internal_project(project_id))
            ended = time.monotonic()
            self._stored[project_id] = ended + max(_SECONDS, _SHARE * (ended - began)), size
        return size


def _read(row: LimitRow) -> tuple[Quota, ...]:
    """The quotas of a row; none for what another version wrote and this one cannot read."""
    try:
        return parse_quotas(row.quotas or NONE)
    except ValueError as problem:
        logger.warning("the quotas of %s are not enforced: %s", describe((row.kind, row.name)), problem)
        return ()


async def _repeat(work: Callable[[], Awaitable[None]]) -> None:
    problem = ""
    while True:
        try:
            await work()
            problem = ""
        except Exception as error:  # whatever it is, the next time may go well
            if str(error) != problem:
                logger.warning("quotas are counted only within this process: %s", error)
                problem = str(error)
            await asyncio.sleep(_SECONDS)


async def stored_bytes(store: Store, project: str) -> int:
    """The bytes of calls, objects, tables and files of a project (internal id)."""
    found = await store.projects.stored_bytes(project)
    calls, rows = await store.calls.storage_size(project), await store.tables.total_size(project)
    return calls + rows + found.objects + found.files


def count_file(scope: Scope) -> None:
    """Count a file that a request brings; raises QuotaReached."""
    if (meter := scope.get(METER)) is not None:
        meter.add(FILES, 1)
