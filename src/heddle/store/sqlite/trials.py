"""The verbs of trials on the embedded store: rows of evaluations by page, with their calls, and sums over all."""

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import orjson

from heddle.store.sqlite import call_rows
from heddle.store.sqlite.connection import Session
from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.readers import SessionReads
from heddle.store.sqlite.trial_select import PLAIN_SCORES, WHOLE_INPUTS, WHOLE_OUTPUT, RowSelection, select_rows
from heddle.wire import refs, times
from heddle.wire.calls import CallRow, Usage
from heddle.wire.trials import Trial, TrialFigures, TrialsPage, TrialsQuery

_TRIAL_COLUMNS = frozenset({"inputs", "output", "attributes", "summary"})
_CHILD_COLUMNS = frozenset({"inputs", "attributes", "summary"})
# How long the call of the model took, else what the trial itself says; an answer is looked for where nothing is scored.
_ANSWERS = f"""CASE WHEN t.predict IS NOT NULL
    THEN (SELECT (p.ended_at - p.started_at) * 1.0 / {times.SECOND} FROM calls p WHERE p.rid = t.predict)
    ELSE (SELECT CASE json_type(o.output, '$.model_latency') WHEN 'object' THEN o.output ->> '$.model_latency.mean'
        WHEN 'real' THEN o.output ->> '$.model_latency' WHEN 'integer' THEN o.output ->> '$.model_latency' END
        FROM body_out o WHERE o.rid = t.rid) END,
    t.is_spilled OR ifnull(t.scores, '{{}}') <> '{{}}' OR EXISTS (SELECT 1 FROM body_out o WHERE o.rid = t.rid
        AND coalesce(o.output ->> '$.output', o.output ->> '$.model_output') IS NOT NULL)"""
T = TypeVar("T")
Placed = tuple[int, int]


class Trials:
    """Reads what `trial_rows` keeps; the calls themselves are read for the rows of a page only."""

    def __init__(self, readers: SessionReads, read_file: Callable[[str], str]) -> None:
        self._readers = readers
        self._read_file = read_file
        self._names = NameReader()
        self._local = threading.local()

    async def page(self, query: TrialsQuery) -> TrialsPage:
        """The rows that the query selects, and how many there are without its limit."""

        def work(session: Session) -> TrialsPage:
            selection = self._prepare(session.raw, query)
            if selection is None:
                return TrialsPage([], 0)
            limit = -1 if query.limit is None else query.limit
            sql = selection.sql("r.row_digest, count(*) OVER ()") + f" LIMIT {limit} OFFSET {query.offset}"
            found = session.raw.execute(sql, selection.parameters.given).fetchall()
            if found:
                return TrialsPage([row[0] for row in found], found[0][1])
            return TrialsPage([], session.raw.execute(_counted(selection), selection.parameters.given).fetchone()[0])

        return await self._readers.read(work)

    async def of_rows(
        self, project: str, evaluations: Sequence[str], row_digests: Sequence[str], with_children: bool
    ) -> list[Trial]:
        """The trials of some rows in the order of the rows, then in that in which they started."""

        def work(session: Session) -> list[Trial]:
            number = self._names.number(session.raw, project)
            if number is None:
                return []
            digests, listed = ", ".join("?" * len(row_digests)), ", ".join("?" * len(evaluations))
            sql = f"""SELECT row_digest, evaluation, started_at, rid, predict, predict_at, tokens, own_tokens
                FROM eval_trials WHERE project = ? AND evaluation IN ({listed}) AND row_digest IN ({digests})"""
            found = session.raw.execute(sql, (number, *evaluations, *row_digests)).fetchall()
            return list(self._trials(session.raw, number, row_digests, found, with_children))

        return await self._readers.read(work)

    def _trials(
        self, raw: sqlite3.Connection, project: int, digests: Sequence[str], found: list[Any], with_children: bool
    ) -> Iterator[Trial]:
        place = {digest: index for index, digest in enumerate(digests)}
        calls = {row.rid: row for row in self._calls(raw, [row[3] for row in found], _TRIAL_COLUMNS)}
        found = sorted(
            (row for row in found if row[3] in calls), key=lambda row: (place[row[0]], row[2], calls[row[3]].id)
        )
        children = self._children(raw, project, [calls[row[3]].id for row in found]) if with_children else {}
        predicts = [row[5:3:-1] if with_children and row[4] else (row[2], row[3]) for row in found]
        usage = self._usage(raw, project, predicts)
        for (digest, evaluation, _, rid, predict, _, tokens, own), priced in zip(found, predicts, strict=True):
            call = calls[rid]
            steps = children.get(call.id, [])
            step = next((child for child in steps if child.rid == predict), None)
            total = tokens if with_children else own
            yield Trial(digest, evaluation, call, steps, step, total, usage.get(priced, []))

    def _calls(self, raw: sqlite3.Connection, rids: Sequence[int], columns: frozenset[str]) -> list[CallRow]:
        return call_rows.fetch(raw, self._names, rids, columns, self._read_file)

    def _children(self, raw: sqlite3.Connection, project: int, ids: Sequence[str]) -> dict[str, list[CallRow]]:
        if not ids:
            return {}
        marks = ", ".join("?" * len(ids))
        sql = f"""SELECT rid FROM calls INDEXED BY calls_parent WHERE project = ? AND parent_id IN ({marks})
            AND deleted_at IS NULL AND started_at IS NOT NULL ORDER BY started_at, id"""
        children: dict[str, list[CallRow]] = {}
        for child in self._calls(raw, [row[0] for row in raw.execute(sql, (project, *ids))], _CHILD_COLUMNS):
            children.setdefault(child.parent_id or "", []).append(child)
        return children

    def _usage(self, raw: sqlite3.Connection, project: int, places: Sequence[Placed]) -> dict[Placed, list[Usage]]:
        """The usage of calls by (start, row number)."""
        if not places:
            return {}
        listed = ", ".join(f"({started_at}, {rid})" for started_at, rid in places)
        sql = f"""WITH k(at, rid) AS (VALUES {listed})
            SELECT u.started_at, u.rid, u.model, u.requests, u.prompt, u.completion, u.total, u.cache_read,
            u.cache_creation FROM k CROSS JOIN usage u ON u.project = ? AND u.started_at = k.at AND u.rid = k.rid"""
        usage: dict[Placed, list[Usage]] = {}
        for at, rid, model, *numbers in raw.execute(sql, (project,)):
            usage.setdefault((at, rid), []).append(Usage(self._names.text(raw, model) or "", *numbers))
        return usage

    async def refs_in_scores(self, project: str, evaluations: Sequence[str]) -> set[str]:
        """The refs that stand in scores in the place of values."""

        def work(session: Session) -> set[str]:
            marks = ", ".join("?" * len(evaluations))
            sql = f"SELECT scores FROM eval_trials WHERE project = ? AND evaluation IN ({marks}) AND has_refs"
            number = self._names.number(session.raw, project) or 0
            rows = session.raw.execute(sql, (number, *evaluations))
            return {ref for (scores,) in rows for ref in refs.find(orjson.loads(scores))}

        return await self._readers.read(work)

    async def fold(
        self,
        query: TrialsQuery,
        with_children: bool,
        with_usage: bool,
        fold: Callable[[Iterable[TrialFigures]], T],
        with_answers: bool = False,
    ) -> T:
        """What a function makes of all trials of the selected rows, in order; runs in a reader thread."""

        def work(session: Session) -> T:
            selection = self._prepare(session.raw, query)
            if selection is None:
                return fold(())
            return fold(self._figures(session.raw, selection, with_children, with_usage, with_answers))

        return await self._readers.read(work)

    def _figures(
        self,
        raw: sqlite3.Connection,
        selection: RowSelection,
        with_children: bool,
        with_usage: bool,
        with_answers: bool,
    ) -> Iterator[TrialFigures]:
        scores = f"CASE WHEN t.has_refs THEN {PLAIN_SCORES}(t.scores) ELSE t.scores END"
        priced = (
            ("ifnull(t.predict_at, t.started_at)", "ifnull(t.predict, t.rid)")
            if with_children
            else ("t.started_at", "t.rid")
        )
        tokens = "t.tokens" if with_children else "t.own_tokens"
        answers = _ANSWERS if with_answers else "NULL, 1"
        columns = f"t.evaluation, t.row_digest, t.started_at, t.rid, {scores}, {tokens}, {priced[0]}, {answers}"
        source, more = "eval_trials t", ""
        if with_usage:
            more = ", u.model, u.requests, u.prompt, u.completion, u.total, u.cache_read, u.cache_creation"
            source += (
                f" LEFT JOIN usage u ON u.project = t.project AND u.started_at = {priced[0]} AND u.rid = {priced[1]}"
            )
        where = selection.within
        if selection.where or selection.intersection:
            where += f" AND t.row_digest IN ({selection.sql('r.row_digest')})"
        order = "t.evaluation, t.row_digest, t.started_at, t.rid"
        rows = raw.execute(
            f"SELECT {columns}{more} FROM {source} WHERE {where} ORDER BY {order}", selection.parameters.given
        )
        if not with_usage:
            return (_figures_of(row, ()) for row in rows)
        return self._with_usage(raw, rows)

    def _with_usage(self, raw: sqlite3.Connection, rows: Iterable[Any]) -> Iterator[TrialFigures]:
        for _, group in groupby(rows, key=lambda row: row[3]):
            entries = list(group)
            usage = [Usage(self._names.text(raw, row[9]) or "", *row[10:]) for row in entries if row[9] is not None]
            yield _figures_of(entries[0], usage)

    def _prepare(self, raw: sqlite3.Connection, query: TrialsQuery) -> RowSelection | None:
        """The compiled query, with the SQL functions that it calls; None for a project without any call."""
        number = self._names.number(raw, query.project)
        selection = select_rows(query, number or 0)
        self._local.values = query.values
        if getattr(self._local, "connection", None) is not raw:
            self._add_functions(raw)
            self._local.connection = raw
        return None if number is None else selection

    def _add_functions(self, raw: sqlite3.Connection) -> None:
        """Give this thread's connection the SQL functions that the statements of `trial_select` call."""

        def whole(rid: int, field: str) -> str | None:
            found = raw.execute("SELECT blob FROM call_files WHERE rid = ? AND field = ?", (rid, field)).fetchone()
            return None if found is None else self._read_file(found[0])

        raw.create_function(WHOLE_OUTPUT, 1, lambda rid: whole(rid, "output"))
        raw.create_function(WHOLE_INPUTS, 1, lambda rid: whole(rid, "inputs"))
        raw.create_function(PLAIN_SCORES, 1, lambda scores: plain_scores(scores, self._local.values))


def _figures_of(row: Sequence[Any], usage: Sequence[Usage]) -> TrialFigures:
    return TrialFigures(row[0], row[1], row[2], row[4], row[5], row[6], usage, row[7], bool(row[8]))


def _counted(selection: RowSelection) -> str:
    return f"SELECT count(*) FROM ({selection.sql('1')})"


def plain_scores(scores: str, values: Mapping[str, str]) -> str:
    """Scores with the refs that have a value replaced by it."""

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return orjson.Fragment(values[value]) if value in values else value
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, list) else value

    return orjson.dumps(plain(orjson.loads(scores))).decode()
