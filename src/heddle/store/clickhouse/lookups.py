"""What a query of calls needs of the control tables, read first and sent along with the statement."""

from collections.abc import Collection, Iterable, Iterator, Sequence

import sqlalchemy as sa

from heddle.errors import InvalidRequest
from heddle.store.clickhouse import bound as sending
from heddle.store.clickhouse.bound import Bound
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.expressions import FeedbackKey, JsonValue, Place, column_text, expanded, ref_at, referenced
from heddle.store.control.annotation_queues import annotation_queue_items
from heddle.store.control.feedback import feedback
from heddle.store.control.object_rows import object_versions
from heddle.store.control.schema import Executor
from heddle.wire import callfields, refs
from heddle.wire.batched import batched
from heddle.wire.callfields import CallField, Kind
from heddle.wire.calls import CallsQuery
from heddle.wire.query import fields

_CHUNK = 500
_FEEDBACK_COLUMNS = (("call_id", "String"), ("n", "UInt32"), ("value", "String"))
_ITEM_COLUMNS = (("call_id", "String"), ("queue_id", "String"))
_REF_COLUMNS = (("ref", "String"), ("v", "String"))
_MAX_BYTES = 24 * 1024 * 1024
_ROW_DIGEST_LENGTH = 43


def asked_fields(query: CallsQuery) -> list[CallField]:
    """The fields of conditions and order; raises InvalidField for one that calls lack."""
    paths = [*fields(query.query)] if query.query is not None else []
    return [callfields.resolve(path) for path in (*paths, *(term.field for term in query.sort or ()))]


class LookUp:
    """Fills the lookups of a place for one query; `where` are the conditions of its filter."""

    def __init__(self, clickhouse: Clickhouse, control: Executor, query: CallsQuery, place: Place) -> None:
        self._clickhouse = clickhouse
        self._control = control
        self._query = query
        self._place = place

    async def run(self, where: Sequence[str]) -> None:
        """Look up feedback, queues and what refs lead to; raises InvalidRequest where that is too much."""
        items = asked_fields(self._query)
        for key in sorted({(item.feedback_type, item.column) for item in items if item.kind is Kind.FEEDBACK}):
            await self._feedback(key)
        if any(item.kind is Kind.QUEUE for item in items):
            await self._queue_items()
        columns = {
            pair: None for item in items if item.kind is Kind.JSON for pair in expanded(item, self._query.expand)
        }
        for above, column in sorted(columns, key=lambda pair: len(pair[1])):
            await self._referenced(above, column, where)

    async def _feedback(self, key: FeedbackKey) -> None:
        """The rows of a type in the order in which they came."""
        feedback_type, column = key
        prefix = f"{refs.INTERNAL}{self._query.project}/call/"
        value = sa.func.coalesce(feedback.c[column], "")
        found = sa.select(feedback.c.weave_ref, value).where(feedback.c.project == self._query.project)
        found = found.where(sa.func.substr(feedback.c.weave_ref, 1, len(prefix)) == prefix).order_by(feedback.c.seq)
        if feedback_type != "*":
            found = found.where(feedback.c.feedback_type == feedback_type)
        only = self._query.filter.call_ids or ()

        def work(connection: sa.Connection) -> list[tuple[str, int, str]]:
            chosen = [f"{prefix}{call_id}" for call_id in only]
            parts = (
                [found.where(feedback.c.weave_ref.in_(part)) for part in batched(chosen, _CHUNK)] if chosen else [found]
            )
            pairs = (row for part in parts for row in connection.execute(part))
            return [(ref[len(prefix) :], n, text) for n, (ref, text) in enumerate(_measured(pairs))]

        rows = await self._control.read(work)
        self._place.lookups.feedback[key] = self._place.bound.table(_FEEDBACK_COLUMNS, rows)

    async def _queue_items(self) -> None:
        items = annotation_queue_items.c
        found = sa.select(items.call_id, items.queue_id).where(items.project == self._query.project)
        rows = await self._control.read(lambda connection: [(row[0], row[1]) for row in connection.execute(found)])
        self._place.lookups.queue_items = self._place.bound.table(_ITEM_COLUMNS, rows)

    async def _referenced(self, above: tuple[str, ...], column: tuple[str, ...], where: Sequence[str]) -> None:
        """The values behind the refs that the selected calls have at a path."""
        place = self._place
        if len(above) == 1:
            value = JsonValue(column_text(above[0]), column[1:], place.bound)
        else:
            value = JsonValue(place.lookups.sources[above], column[len(above) :], place.bound, True)
        ref = ref_at(value)
        prefix = place.bound.value(f"{refs.INTERNAL}{self._query.project}/")
        sql = (
            f"{place.bound.with_clause()}SELECT DISTINCT {ref} AS ref FROM calls AS c FINAL WHERE {' AND '.join(where)}"
        )
        rows = await sending.rows(self._clickhouse, f"{sql} AND startsWith(ref, {prefix})", place.bound)
        texts = await self._values([str(row[0]) for row in rows])
        sent = place.bound.table(_REF_COLUMNS, list(texts.items()))
        place.lookups.sources[column] = referenced(value, place, sent)

    async def _values(self, found: Collection[str]) -> dict[str, str]:
        """The JSON texts of object versions and rows of datasets that are there, by ref."""
        objects = {ref.partition(refs.ROWS)[0] for ref in found} | set(found)
        values = await self._control.read(lambda connection: self._versions(connection, objects))
        digests = {
            ref: ref[-_ROW_DIGEST_LENGTH:]
            for ref in found
            if ref not in values and refs.ROWS in ref and ref.partition(refs.ROWS)[0] in values
        }
        rows: dict[str, str] = {}
        for part in batched(sorted(set(digests.values())), _CHUNK):
            sent = Bound()
            sql = f"""SELECT digest, val FROM table_rows FINAL
                WHERE project = {sent.value(self._query.project)} AND digest IN {sent.values(part)}"""
            rows |= {str(digest): str(val) for digest, val in await sending.rows(self._clickhouse, sql, sent)}
        of_rows = {ref: rows[digest] for ref, digest in digests.items() if digest in rows}
        return dict(_measured(({ref: values[ref] for ref in found if ref in values} | of_rows).items()))

    def _versions(self, connection: sa.Connection, found: Iterable[str]) -> dict[str, str]:
        versions = object_versions.c
        live = sa.select(versions.ref, versions.val).where(
            versions.project == self._query.project, versions.deleted_at.is_(None)
        )
        parts = (connection.execute(live.where(versions.ref.in_(part))) for part in batched(sorted(found), _CHUNK))
        return {ref: val for rows in parts for ref, val in rows}


def _measured(pairs: Iterable[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """The pairs; raises InvalidRequest once they hold too much to be sent with a statement."""
    size = 0
    for key, text in pairs:
        size += len(key) + len(text)
        if size > _MAX_BYTES:
            raise InvalidRequest("The query is too complex: what its feedback fields or refs lead to exceeds 24 MiB")
        yield key, text
