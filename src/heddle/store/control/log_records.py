"""Log records of spans and sessions, kept until whatever else belongs to the same one can no longer come.

A span and its log records come in separate requests, in any order, at any of several servers. Each writer stores what
it brings, makes the call from all that is here, and looks once more whether that was all.
"""

from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from heddle.store.control.redaction import RedactedRepository
from heddle.store.control.repository import Prepared, Upsert, metadata, reads
from heddle.store.control.row_queries import Listed
from heddle.wire import times
from heddle.wire.batched import group_pairs
from heddle.wire.spans import StoredRecord

log_records = sa.Table(
    "log_records",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("span_id", sa.Text, primary_key=True),
    sa.Column("record", sa.Text, primary_key=True),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False, index=True),
)
_COLUMNS = tuple(column.name for column in log_records.c)
_PURGED = 2000
_ROW_BYTES = 200
_c = log_records.c
_write = Upsert(log_records, _COLUMNS, ("project", "owner", "span_id", "record"))
_read = Prepared(
    sa.select(_c.owner, _c.span_id, _c.record, _c.at, _c.user, _c.content)
    .where(_c.project == sa.bindparam("of_project"), Listed(_c.owner, "owners"))
    .order_by(_c.at, _c.record)
)
_read_spans = Prepared(
    sa.select(_c.owner, _c.span_id)
    .where(_c.project == sa.bindparam("of_project"), Listed(_c.owner, "owners"))
    .distinct()
)
Owner = tuple[str, str]
"""Project (internal id) and what a record belongs to: a trace or a session."""


class LogRecords(RedactedRepository):
    """What can be done with these records; projects are internal ids."""

    _is_empty: bool | None = None
    """True while no record was ever stored; None where that is not known yet, or others store records, too."""

    async def add(self, records: Sequence[StoredRecord], life: int) -> None:
        """Store records for so many microseconds; the same one again changes nothing. Returns after the commit."""
        records = await self._redaction.each(
            records,
            lambda one: one.project,
            lambda one, redactor: one._replace(content=redactor.json(one.content, "otel_dump")),
        )
        expires_at = times.now() + life
        rows = [
            (one.project, one.owner, one.span_id, one.id, one.at, one.user, one.content, expires_at) for one in records
        ]

        def work(connection: sa.Connection) -> None:
            _write(connection, rows)
            old = sa.select(_c.project, _c.owner, _c.span_id, _c.record).where(_c.expires_at < times.now())
            keys = sa.tuple_(_c.project, _c.owner, _c.span_id, _c.record)
            connection.execute(sa.delete(log_records).where(keys.in_(old.limit(_PURGED))))

        if rows:
            if not self.instance.is_shared:
                self._is_empty = False
            await self._executor.write(work, sum(_ROW_BYTES + len(one.content) for one in records))

    async def spans(self, owners: Iterable[Owner]) -> set[tuple[str, str, str]]:
        """Project, owner and span id of all that have records; most servers have none, and read nothing for it."""
        if self._is_empty is None and not self.instance.is_shared:
            is_empty = await self._scalar(sa.select(_c.project).limit(1)) is None
            # None of those that came while it was read must be missed.
            self._is_empty = is_empty and self._is_empty is None
        return set() if self._is_empty else await self._spans(owners)

    @reads
    def _spans(self, connection: sa.Connection, owners: Iterable[Owner]) -> set[tuple[str, str, str]]:
        return {
            (project, row[0], row[1])
            for project, names in group_pairs(owners).items()
            for row in _read_spans(connection, of_project=project, owners=names)
        }

    @reads
    def read(self, connection: sa.Connection, owners: Iterable[Owner]) -> list[StoredRecord]:
        """All records of some owners, in the order of their instants."""
        return [
            StoredRecord(project, *row)
            for project, names in group_pairs(owners).items()
            for row in _read(connection, of_project=project, owners=names)
        ]

    async def purge_older(self, project: str, before: int) -> int:
        """Remove the records from before an instant (microseconds); returns how many."""
        old = sa.and_(_c.project == project, _c.at < before * 1000)
        return await self._execute(sa.delete(log_records).where(old))


def remove_of_spans(connection: sa.Connection, project: str, traces: Iterable[str], span_ids: Sequence[str]) -> None:
    """Remove the records of deleted calls in the caller's transaction."""
    # As an expression: an index would be searched for every pair of a trace and a span.
    span_id = sa.func.coalesce(_c.span_id, "")
    mine = sa.and_(_c.project == project, Listed(_c.owner, list(traces)), Listed(span_id, list(span_ids)))
    connection.execute(sa.delete(log_records).where(mine))
