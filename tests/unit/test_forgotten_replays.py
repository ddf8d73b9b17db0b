"""A replay that is forgotten leaves nothing of its calls behind."""

import asyncio
from pathlib import Path

import sqlalchemy as sa

from heddle.store.control.eval_jobs import replay_items
from tests.support import planted
from tests.support.inprocess import running_services


def test_the_calls_of_a_replay_go_with_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with running_services(tmp_path) as (services, _):
            store = services.store
            await store.control.write(lambda c: planted.fill(c, "team/own", "zebra", store.blobs.put_bytes))
            count = sa.select(sa.func.count()).select_from(replay_items)
            assert await store.control.read(lambda c: c.execute(count).scalar_one()) == 1
            assert await store.eval_jobs.forget_older(2) == 1
            assert await store.control.read(lambda c: c.execute(count).scalar_one()) == 0

    asyncio.run(run())
