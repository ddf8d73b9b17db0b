"""Feedback rows: reactions, notes, annotations, scores and custom kinds on calls and other refs."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from heddle.errors import InvalidRequest
from heddle.store.control.annotation_queues import hold_live
from heddle.store.control.audit import purge
from heddle.store.control.redaction import RedactedRepository
from heddle.store.control.repository import Prepared, begins_with, metadata, reads, upsert
from heddle.store.control.row_queries import Column, Expression, Listed, Row, RowRequest, RowTable, Selection
from heddle.store.query.compiler import Kind
from heddle.wire import refs, times
from heddle.wire.batched import batched, group_pairs
from heddle.wire.redaction import Redactor

STRUCTURES = {
    "scorer_tags": Kind.TEXTS,
    "scorer_tag_reasons": Kind.TEXT_MAP,
    "scorer_tag_confidences": Kind.NUMBER_MAP,
    "scorer_ratings": Kind.NUMBER_MAP,
    "scorer_rating_reasons": Kind.TEXT_MAP,
    "scorer_rating_confidences": Kind.NUMBER_MAP,
}
SPANS = {
    "span_agent_name": "",
    "span_agent_version": "",
    "span_status_code": "UNSET",
    "span_trace_id": "",
    "span_conversation_id": "",
    "scorer_trace_id": "",
}
_REFS = ("annotation_ref", "runnable_ref", "call_ref", "trigger_ref", "queue_id")
_SHOWN_ON_CALLS = (
    *("id", "feedback_type", "weave_ref", "payload", "creator", "created_at", "wb_user_id"),
    *("runnable_ref", "call_ref", "trigger_ref", "annotation_ref"),
    *STRUCTURES,
)
_STREAMED = 1000
_PURGED = 1000

Taker = Callable[[Sequence[Any]], None]
"""Takes one row, as the values of the asked columns."""

feedback = sa.Table(
    "feedback",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("weave_ref", sa.Text, nullable=False),
    sa.Column("feedback_type", sa.Text, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("wb_user_id", sa.Text, nullable=False),
    sa.Column("creator", sa.Text),
    *(sa.Column(name, sa.Text) for name in _REFS),
    *(sa.Column(name, sa.Text, nullable=False) for name in (*STRUCTURES, *SPANS)),
    sa.UniqueConstraint("project", "id", name="feedback_by_id"),
    sa.Index("feedback_by_target", "project", "weave_ref"),
    sa.Index("feedback_by_time", "project", "created_at"),
)


def _columns(project: str) -> dict[str, Column]:
    """The fields of feedback rows in the order of an answer."""
    c = feedback.c
    external = sa.literal(refs.external_project(project) or project, sa.Text())
    columns = {"id": Column(Kind.TEXT, c.id), "project_id": Column(Kind.TEXT, external)}
    columns |= {name: Column(Kind.TEXT, c[name]) for name in ("weave_ref", "wb_user_id", "creator")}
    columns["created_at"] = Column(Kind.INSTANT, c.created_at)
    columns["feedback_type"] = Column(Kind.TEXT, c.feedback_type)
    columns["payload"] = Column(Kind.JSON, c.payload)
    columns |= {name: Column(Kind.TEXT, c[name]) for name in _REFS}
    columns |= {name: Column(kind, c[name]) for name, kind in STRUCTURES.items()}
    return columns | {name: Column(Kind.TEXT, c[name]) for name in SPANS}


@dataclass(frozen=True, slots=True)
class Window:
    """Rows created in `[start, end)` microseconds, of one type and trigger where given (`...:*` is a prefix)."""

    start: int
    end: int
    feedback_type: str | None = None
    trigger_ref: str | None = None

    def condition(self, project: str) -> Expression:
        """The window as a condition over the project's rows."""
        c = feedback.c
        tests = [c.project == project, c.created_at >= self.start, c.created_at < self.end]
        if self.feedback_type is not None:
            tests.append(c.feedback_type == self.feedback_type)
        if self.trigger_ref is not None and self.trigger_ref.endswith(":*"):
            tests.append(begins_with(c.trigger_ref, self.trigger_ref[:-1]))
        elif self.trigger_ref is not None:
            tests.append(c.trigger_ref == self.trigger_ref)
        return sa.and_(*tests)


_targets = Prepared(
    sa.select(feedback.c.weave_ref)
    .where(feedback.c.project == sa.bindparam("of_project"), feedback.c.creator == sa.bindparam("by_creator"))
    .where(Listed(feedback.c.weave_ref, "about"))
    .distinct()
)


class FeedbackRows(RedactedRepository):
    """What can be done with feedback; projects are internal ids, refs are internal, JSON columns are JSON text."""

    async def create(self, rows: Sequence[Row], replaced: tuple[str, str, str] | None = None) -> None:
        """Store complete rows, all or none; a row with the id of an existing one takes its place.

        `replaced` (project, id, user) names a row that goes away in the same step. Raises InvalidRequest for a row of a
        queue that is not live.
        """
        if not rows:
            return
        rows = await self._redaction.each(rows, lambda row: str(row["project"]), _redacted)

        def work(connection: sa.Connection) -> None:
            _require_queues(connection, rows)
            if replaced is not None:
                purge(connection, feedback, replaced[0], [replaced[1]], replaced[2], "feedback.replace")
            upsert(connection, feedback, ("project", "id"), list(rows))

        await self._executor.write(work, sum(len(row["payload"]) for row in rows) + 500 * len(rows))

    async def purge(self, project: str, ids: Sequence[str], user: str) -> int:
        """Delete rows by id for good; unknown ids are ignored. Returns how many there were."""
        return await self._executor.write(lambda c: purge(c, feedback, project, ids, user, "feedback.purge"))

    async def purge_older(self, project: str, before: int) -> int:
        """Remove what was said of calls before an instant (microseconds), in slices; returns how many rows."""
        c, total = feedback.c, 0
        of_calls = begins_with(c.weave_ref, f"{refs.INTERNAL}{project}/call/")
        old = sa.select(c.seq).where(c.project == project, c.created_at < before, of_calls).limit(_PURGED)
        while removed := await self._execute(sa.delete(feedback).where(c.seq.in_(old))):
            total += removed
        return total

    @reads
    def targets_of(
        self, connection: sa.Connection, project: str, weave_refs: Collection[str], creator: str
    ) -> list[str]:
        """Those of some refs that a creator's rows are about."""
        found = _targets(connection, of_project=project, by_creator=creator, about=list(weave_refs))
        return [ref for (ref,) in found]

    async def move(self, project: str, targets: Mapping[str, str], creator: str) -> None:
        """Give a creator's rows about some refs other refs."""

        def work(connection: sa.Connection) -> None:
            mine = sa.and_(feedback.c.project == project, feedback.c.creator == creator)
            for ref, target in targets.items():
                about = feedback.c.weave_ref == ref
                connection.execute(sa.update(feedback).where(mine, about).values(weave_ref=target))

        await self._executor.write(work, 500 * len(targets))

    async def query(self, project: str, request: RowRequest) -> Selection:
        """The project's rows that a request selects; oldest first unless it says otherwise."""
        order = (feedback.c.created_at, feedback.c.seq)
        table = RowTable(feedback, _columns(project), order, selective=("id", "weave_ref"))
        within = feedback.c.project == project
        return await table.read(self._executor, within, request)

    async def for_refs(self, project: str, weave_refs: Sequence[str]) -> dict[str, list[Row]]:
        """The rows of every ref as a call shows them, oldest first; refs without feedback are left out."""
        if not weave_refs:
            return {}
        return await self._executor.read(lambda connection: rows_for_refs(connection, project, weave_refs))

    async def scan(self, project: str, window: Window, columns: Sequence[str], take: Taker) -> None:
        """Hand the named columns of every row of a window to `take`, oldest first, in a reader thread."""
        await self._scan(columns, window.condition(project), take, feedback.c.created_at, feedback.c.seq)

    async def scan_agents(self, project: str, columns: Sequence[str], take: Taker) -> None:
        """Hand the named columns of the rows about spans, turns and conversations of agents to `take`."""
        c = feedback.c
        prefix = f"{refs.INTERNAL}{project}/agent_"
        about = sa.and_(c.project == project, c.weave_ref >= prefix, c.weave_ref < prefix[:-1] + "`")
        await self._scan(columns, about, take)

    @reads
    def _scan(
        self, connection: sa.Connection, columns: Sequence[str], within: Expression, take: Taker, *order: Expression
    ) -> None:
        statement = sa.select(*[feedback.c[name] for name in columns]).where(within).order_by(*order)
        for row in connection.execute(statement, execution_options={"yield_per": _STREAMED}):
            take(row)

    async def newest_payloads(self, project: str, window: Window, limit: int) -> list[str]:
        """The newest payload of each trigger of a window (rows without one count as one trigger), newest first."""
        c = feedback.c
        rank = sa.func.row_number().over(partition_by=c.trigger_ref, order_by=(c.created_at.desc(), c.seq.desc()))
        ranked = (
            sa.select(c.payload, c.created_at, c.seq, rank.label("rank")).where(window.condition(project)).subquery()
        )
        statement = sa.select(ranked.c.payload).where(ranked.c.rank == 1)
        statement = statement.order_by(ranked.c.created_at.desc(), ranked.c.seq.desc()).limit(limit)
        return [row.payload for row in await self._tuples(statement)]


_read_shown = Prepared(
    sa.select(*[feedback.c[name] for name in _SHOWN_ON_CALLS])
    .where(feedback.c.project == sa.bindparam("of_project"), Listed(feedback.c.weave_ref, "weave_refs"))
    .order_by(feedback.c.created_at + 0, feedback.c.seq)
)


def rows_for_refs(connection: sa.Connection, project: str, weave_refs: Sequence[str]) -> dict[str, list[Row]]:
    """`FeedbackRows.for_refs` for work that runs on a connection already."""
    found: dict[str, list[Row]] = {}
    for chunk in batched(dict.fromkeys(weave_refs)):
        for row in _read_shown(connection, of_project=project, weave_refs=chunk):
            found.setdefault(row.weave_ref, []).append(_as_shown_on_calls(row))
    return found


def _require_queues(connection: sa.Connection, rows: Sequence[Row]) -> None:
    named = dict.fromkeys((row["project"], row["queue_id"]) for row in rows if row.get("queue_id"))
    for project, queue_ids in group_pairs(named).items():
        live = hold_live(connection, project, queue_ids)
        for queue_id in queue_ids:
            if queue_id not in live:
                raise InvalidRequest(f"Queue {queue_id[:200]} not found or has been deleted")


def _as_shown_on_calls(row: sa.Row[Any]) -> Row:
    shown: Row = dict(zip(_SHOWN_ON_CALLS, row, strict=True))
    shown["created_at"] = times.to_iso(shown["created_at"])
    for name in ("payload", *STRUCTURES):
        shown[name] = orjson.Fragment(shown[name])
    return shown


def _redacted(row: Row, redactor: Redactor) -> Row:
    """A row without what the rules say; who has the key is no secret."""
    texts = ("feedback_type",) if row["creator"] == row["wb_user_id"] else ("feedback_type", "creator")
    return redactor.row(row, ("payload", *STRUCTURES), texts)
