"""The verbs of trials: those of the embedded store, over copies of the trials that are asked for."""

import asyncio
import sqlite3
from array import array
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from heddle.store.clickhouse import call_rows
from heddle.store.clickhouse.call_rows import Spots
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.trial_copy import TrialCopy
from heddle.store.sqlite import trials as embedded
from heddle.store.sqlite.connection import Session
from heddle.store.sqlite.readers import run_in
from heddle.store.sqlite.trial_select import RowSelection
from heddle.wire.calls import CallRow, CallsQuery
from heddle.wire.trials import Trial, TrialsPage, TrialsQuery, TrialStats

if TYPE_CHECKING:
    from clickhouse_connect.driver.client import Client

T = TypeVar("T")
_COPIES = 4


class Trials:
    """Keeps copies of the evaluations that were asked for last."""

    def __init__(self, clickhouse: Clickhouse, read_file: Callable[[str], str]) -> None:
        self._clickhouse = clickhouse
        self._read_file = read_file
        self._copies: OrderedDict[tuple[str, tuple[str, ...]], _Copied] = OrderedDict()

    async def page(self, query: TrialsQuery) -> TrialsPage:
        """The rows that the query selects, and how many there are without its limit."""
        async with self._copy(query.project, query.evaluations) as copied:
            return await copied.page(query)

    async def of_rows(
        self, project: str, evaluations: Sequence[str], row_digests: Sequence[str], with_children: bool
    ) -> list[Trial]:
        """The trials of some rows in the order of the rows, then in that in which they started."""
        async with self._copy(project, evaluations) as copied:
            return await copied.of_rows(project, evaluations, row_digests, with_children)

    async def refs_in_scores(self, project: str, evaluations: Sequence[str]) -> set[str]:
        """The refs that stand in scores in the place of values."""
        async with self._copy(project, evaluations) as copied:
            return await copied.refs_in_scores(project, evaluations)

    async def fold(
        self,
        query: TrialsQuery,
        with_children: bool,
        with_usage: bool,
        fold: Callable[[Iterable[TrialStats]], T],
        with_answers: bool = False,
    ) -> T:
        """What a function makes of all trials of the selected rows, in order; runs in a reader thread."""
        async with self._copy(query.project, query.evaluations) as copied:
            return await copied.fold(query, with_children, with_usage, fold, with_answers)

    @asynccontextmanager
    async def _copy(self, project: str, evaluations: Sequence[str]) -> AsyncIterator[embedded.Trials]:
        """The verbs over the copy of some evaluations, for this task alone."""
        key = (project, tuple(sorted(evaluations)))
        copied = self._copies.get(key)
        if copied is None:
            copied = self._copies[key] = _Copied(self._clickhouse, *key, self._read_file)
        self._copies.move_to_end(key)
        while len(self._copies) > _COPIES:
            _, oldest = self._copies.popitem(last=False)
            if not oldest.lock.locked():
                oldest.close()
        async with copied.lock:
            yield copied.verbs
            if self._copies.get(key) is not copied:
                copied.close()


class _Copied:
    """One copy; made when it is first read, and again after a failure."""

    def __init__(
        self, clickhouse: Clickhouse, project: str, evaluations: Sequence[str], read_file: Callable[[str], str]
    ) -> None:
        self.lock = asyncio.Lock()
        self.verbs = _CopiedTrials(self, clickhouse, project, read_file)
        self._clickhouse = clickhouse
        self._read_file = read_file
        self._what = (project, evaluations)
        self._copy: TrialCopy | None = None

    @property
    def current(self) -> TrialCopy:
        """The copy while it is read."""
        assert self._copy is not None
        return self._copy

    async def read(self, work: Callable[[Session], T]) -> T:
        """Bring the copy in step with what is stored, then run `work` on it."""
        return await self._clickhouse.read(lambda client: self._run(client, work))

    def _run(self, client: "Client", work: Callable[[Session], T]) -> T:
        copy = self._copy or TrialCopy(*self._what, self._read_file)
        try:
            copy.follow(client)
        except BaseException:
            # Nothing is left half way that could be gone on with.
            self._copy = None
            copy.close()
            raise
        self._copy = copy
        return run_in(copy.session, work, self._clickhouse.timeout)

    def close(self) -> None:
        """Drop the copy."""
        if self._copy is not None:
            self._copy.close()
            self._copy = None


class _CopiedTrials(embedded.Trials):
    """The embedded store's verbs over a copy; whole calls come from ClickHouse."""

    def __init__(self, copied: _Copied, clickhouse: Clickhouse, project: str, read_file: Callable[[str], str]) -> None:
        super().__init__(copied, read_file)
        self._copied = copied
        self._clickhouse = clickhouse
        self._project = project

    def _prepare(self, raw: sqlite3.Connection, query: TrialsQuery) -> RowSelection | None:
        selection = super()._prepare(raw, query)
        if selection is not None and selection.data_values:
            self._clickhouse.run(self._copied.current.add_table_rows)
        return selection

    def _calls(self, raw: sqlite3.Connection, rids: Sequence[int], columns: frozenset[str]) -> list[CallRow]:
        numbers = ",".join(map(str, rids))
        found = raw.execute(f"SELECT rid, started_at FROM calls WHERE rid IN ({numbers})")
        starts: dict[int, int] = dict(found.fetchall())
        known = [rid for rid in rids if rid in starts]
        if not known:
            return []
        places = Spots(array("q", known), array("q", [starts[rid] for rid in known]))
        query = CallsQuery(self._project, columns=columns)
        return self._clickhouse.run(lambda client: call_rows.fetch(client, query, places, self._read_file))
