"""Sums over all calls of threads, those below the turns included."""

from collections.abc import Sequence

from heddle.store.sqlite.call_table import PRICED, set_price
from heddle.store.sqlite.connection import Session
from heddle.store.sqlite.names import NameReader
from heddle.store.sqlite.readers import Readers
from heddle.wire.calls import ERROR
from heddle.wire.inference import CostOf
from heddle.wire.threads import ThreadFigures

_LIVE = "c.project = ? AND c.thread_id IN ({marks}) AND c.deleted_at IS NULL AND c.started_at IS NOT NULL"
_USAGE = f"""SELECT c.thread_id, sum(ifnull(u.total, u.prompt + u.completion)),
    sum(call_cost({PRICED}))
    FROM calls c JOIN usage u ON u.project = c.project AND u.started_at = c.started_at AND u.rid = c.rid
    JOIN names n ON n.k = u.model WHERE {_LIVE} AND NOT u.repeated GROUP BY c.thread_id"""
_ERRORS = f"""SELECT c.thread_id, count(*) FROM calls c WHERE {_LIVE} AND c.turn_id = c.id AND c.status = {ERROR}
    GROUP BY c.thread_id"""


class ThreadSums:
    """Reads figures of threads."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._names = NameReader()

    async def figures(self, project: str, thread_ids: Sequence[str], price: CostOf) -> list[ThreadFigures]:
        """The figures of the named threads, in that order."""

        def work(session: Session) -> list[ThreadFigures]:
            raw = session.raw
            set_price(raw, price)
            key = (self._names.number(raw, project), *thread_ids)
            marks = ", ".join("?" * len(thread_ids))
            usage = {row[0]: row[1:] for row in raw.execute(_USAGE.format(marks=marks), key)}
            errors = dict(raw.execute(_ERRORS.format(marks=marks), key).fetchall())
            sums = ((name, *usage.get(name, (0, None))) for name in thread_ids)
            return [ThreadFigures(name, tokens, cost, errors.get(name, 0)) for name, tokens, cost in sums]

        return await self._readers.read(work)
