"""The list of ops while calls go: it is read in several statements, between which others write."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from heddle import settings
from heddle.store.sqlite import aggregates
from heddle.store.sqlite.database import DATABASE
from heddle.store.sqlite.store import open_store
from tests.support.written_calls import PROJECT, first_half, second_half


class Deleting:
    """A connection on which calls are deleted when the newest ones of an op are asked for."""

    def __init__(self, raw: sqlite3.Connection, call_id: str) -> None:
        self._raw = raw
        self._call_id = call_id

    def execute(self, sql: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        if sql == aggregates._LATEST:
            self._raw.execute("UPDATE calls SET deleted_at = 1 WHERE id = ?", (self._call_id,))
        return self._raw.execute(sql, parameters)


def test_an_op_whose_calls_are_deleted_while_it_is_looked_at_is_left_out(tmp_path: Path) -> None:
    async def write() -> None:
        store = await open_store(settings.load({"data": str(tmp_path)}, {}))
        starts = [first_half("stays"), first_half("goes")]
        starts[1].op_name = "op-that-goes"
        await store.calls.write(starts, [second_half("stays"), second_half("goes")])
        await store.close()

    asyncio.run(write())
    for deleted, ops in (("neither", ["op", "op-that-goes"]), ("goes", ["op"])):
        with closing(sqlite3.connect(tmp_path / DATABASE)) as raw:
            reads: Any = aggregates.CallAggregates.ops
            session = SimpleNamespace(raw=Deleting(raw, deleted))
            found = reads.__wrapped__(aggregates.CallAggregates(None), session, PROJECT)  # type: ignore[arg-type]
            assert sorted(activity.op for activity in found) == ops
