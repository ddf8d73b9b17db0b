"""The store of several servers as a whole: what it does beside the requests goes on whatever happens."""

import asyncio
from pathlib import Path

import pytest

from heddle import settings
from heddle.store import base
from heddle.store.clickhouse import store as scale
from tests.support.clickhouse import clickhouse_process
from tests.support.patience import strain


def test_a_fault_of_ours_does_not_end_upkeep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        address = clickhouse_process().new_database()
        monkeypatch.setattr(base, "UPKEEP_SECONDS", 0.01)
        store = await scale.open_store(settings.load({"data": str(tmp_path), "store": address}, {}))
        times, again = 0, asyncio.Event()

        async def keep_up() -> None:
            nonlocal times
            times += 1
            if times == 1:
                raise RuntimeError("a fault of ours")
            again.set()

        monkeypatch.setattr(store.calls, "keep_up", keep_up)
        try:
            await asyncio.wait_for(again.wait(), 30 * strain())
        finally:
            await store.close()

    asyncio.run(main())
