"""What a replay is about: the calls it was made of, and what became of each."""

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from heddle.store.control.eval_jobs import eval_jobs
from heddle.store.control.schema import Executor, metadata

REPLAYED, FAILED, SKIPPED = "replayed", "failed", "skipped"
OUTCOMES = (REPLAYED, FAILED, SKIPPED)
_CHUNK = 1_000

replay_items = sa.Table(
    "replay_items",
    metadata,
    sa.Column("replay_id", sa.Text, primary_key=True),
    sa.Column("place", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("call_id", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=True),
    sa.Column("reason", sa.Text, nullable=True),
)


class ReplayItem(NamedTuple):
    """One call of a replay; an outcome of None is still to come, `reason` says why there is no answer."""

    replay_id: str
    place: int
    call_id: str
    outcome: str | None = None
    reason: str | None = None


class Replays:
    """The table of replayed calls."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def choose(self, replay_id: str, call_ids: Sequence[str]) -> None:
        """Fix the calls of a replay, in one commit; those of replays that are forgotten go."""
        rows = [
            {"replay_id": replay_id, "place": place, "call_id": call_id, "outcome": None, "reason": None}
            for place, call_id in enumerate(call_ids)
        ]

        def work(connection: sa.Connection) -> None:
            known = sa.select(eval_jobs.c.id)
            connection.execute(replay_items.delete().where(replay_items.c.replay_id.not_in(known)))
            for start in range(0, len(rows), _CHUNK):
                connection.execute(replay_items.insert(), rows[start : start + _CHUNK])

        await self._executor.write(work)

    async def decide(self, items: Sequence[ReplayItem]) -> None:
        """Store what became of calls."""
        c = replay_items.c
        change = (
            replay_items.update()
            .where(c.replay_id == sa.bindparam("which"), c.place == sa.bindparam("at"))
            .values(outcome=sa.bindparam("ended"), reason=sa.bindparam("why"))
        )
        rows = [
            {"which": item.replay_id, "at": item.place, "ended": item.outcome, "why": item.reason} for item in items
        ]
        await self._executor.write(lambda connection: connection.execute(change, rows))

    async def left(self, replay_id: str, limit: int) -> list[ReplayItem]:
        """The first calls of which nothing has become yet."""
        c = replay_items.c
        return await self._select(sa.and_(c.replay_id == replay_id, c.outcome.is_(None)), limit, 0)

    async def page(
        self, replay_id: str, outcomes: Sequence[str] | None, limit: int | None, offset: int
    ) -> list[ReplayItem]:
        """The calls of a replay in order, with some outcomes only where these are named."""
        c = replay_items.c
        which = c.replay_id == replay_id
        return await self._select(which if outcomes is None else which & c.outcome.in_(outcomes), limit, offset)

    async def counts(self, replay_id: str) -> dict[str | None, int]:
        """How many calls have each outcome; None: not yet."""
        c = replay_items.c
        chosen = sa.select(c.outcome, sa.func.count()).where(c.replay_id == replay_id).group_by(c.outcome)
        return await self._executor.read(lambda connection: {row[0]: row[1] for row in connection.execute(chosen)})

    async def _select(self, which: sa.ColumnElement[bool], limit: int | None, offset: int) -> list[ReplayItem]:
        chosen = sa.select(replay_items).where(which).order_by(replay_items.c.place).limit(limit).offset(offset)
        return await self._executor.read(lambda connection: [ReplayItem(*row) for row in connection.execute(chosen)])
