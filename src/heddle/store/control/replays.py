"""What a replay is about: the calls it was made of, and what became of each."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from heddle.store.control.eval_jobs import eval_jobs
from heddle.store.control.mapping import Integer, Key, Mapped, Repository
from heddle.wire.batched import batched

REPLAYED, FAILED, SKIPPED = "replayed", "failed", "skipped"
OUTCOMES = (REPLAYED, FAILED, SKIPPED)


@dataclass(frozen=True, slots=True)
class ReplayItem:
    """One call of a replay; an outcome of None is still to come, `reason` says why there is no answer."""

    replay_id: Key[str]
    place: Key[Integer]
    call_id: str
    outcome: str | None = None
    reason: str | None = None


_items = Mapped(ReplayItem, "replay_items")
replay_items = _items.table
_c = replay_items.c


class Replays(Repository):
    """The table of replayed calls."""

    async def choose(self, replay_id: str, call_ids: Sequence[str]) -> None:
        """Fix the calls of a replay, in one commit; those of replays that are forgotten go."""

        def work(connection: sa.Connection) -> None:
            connection.execute(replay_items.delete().where(_c.replay_id.not_in(sa.select(eval_jobs.c.id))))
            rows = (_items.values(ReplayItem(replay_id, *item)) for item in enumerate(call_ids))
            for part in batched(rows, 1_000):
                connection.execute(replay_items.insert(), part)

        await self._executor.write(work)

    async def decide(self, items: Sequence[ReplayItem]) -> None:
        """Store what became of calls."""
        change = (
            replay_items.update()
            .where(_c.replay_id == sa.bindparam("which"), _c.place == sa.bindparam("at"))
            .values(outcome=sa.bindparam("ended"), reason=sa.bindparam("why"))
        )
        rows = [
            {"which": item.replay_id, "at": item.place, "ended": item.outcome, "why": item.reason} for item in items
        ]
        await self._executor.write(lambda connection: connection.execute(change, rows))

    async def left(self, replay_id: str, limit: int) -> list[ReplayItem]:
        """The first calls of which nothing has become yet."""
        left = _items.select(_c.replay_id == replay_id, _c.outcome.is_(None))
        return await self._all(_items, left.order_by(_c.place).limit(limit))

    async def page(
        self, replay_id: str, outcomes: Sequence[str] | None, limit: int | None, offset: int
    ) -> list[ReplayItem]:
        """The calls of a replay in order, with some outcomes only where these are named."""
        query = _items.select(_c.replay_id == replay_id).order_by(_c.place).limit(limit).offset(offset)
        return await self._all(_items, query if outcomes is None else query.where(_c.outcome.in_(outcomes)))

    async def counts(self, replay_id: str) -> dict[str | None, int]:
        """How many calls have each outcome; None: not yet."""
        chosen = sa.select(_c.outcome, sa.func.count()).where(_c.replay_id == replay_id).group_by(_c.outcome)
        return {row[0]: row[1] for row in await self._tuples(chosen)}
