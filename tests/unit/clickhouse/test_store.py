"""The store of several servers as a whole: what it does beside the requests goes on whatever happens."""

import asyncio
import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from heddle import settings
from heddle.errors import Unavailable
from heddle.store import base
from heddle.store.clickhouse import call_writes, client
from heddle.store.clickhouse import store as scale
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.schema import CALL_KEYS, CALLS
from heddle.store.control import pending_calls
from heddle.store.control.agents.fields import SpanFilter
from heddle.store.control.agents.reads import SpansRequest
from heddle.store.control.project_tables import FoundCalls
from heddle.wire.calls import CallsQuery, Start
from heddle.wire.spans import AgentSpan
from tests.support.clickhouse import clickhouse_process
from tests.support.patience import strain
from tests.support.planted import files_with
from tests.support.postgres import PostgresServer
from tests.support.server import free_port
from tests.support.written_calls import AT, PROJECT, first_half, second_half

DAY = 86_400_000_000
MARKER = "plantedGecko44"


@asynccontextmanager
async def opened(folder: Path, **given: str) -> AsyncIterator[scale.ScaleStore]:
    """A store, on a new database of ClickHouse where none is given."""
    address = given.get("store") or clickhouse_process().new_database()
    store = await scale.open_store(settings.load({"data": str(folder), **given, "store": address}, {}))
    try:
        yield store
    finally:
        await store.close()


def test_a_fault_of_ours_does_not_end_upkeep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(base, "UPKEEP_SECONDS", 0.01)
        async with opened(tmp_path) as store:
            times, again = 0, asyncio.Event()

            async def keep_up() -> None:
                nonlocal times
                times += 1
                if times == 1:
                    raise RuntimeError("a fault of ours")
                again.set()

            monkeypatch.setattr(store.calls, "keep_up", keep_up)
            await asyncio.wait_for(again.wait(), 30 * strain())

    asyncio.run(main())


def test_one_server_for_all_collects_files_and_each_forgets_halves_of_stored_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: PostgresServer
) -> None:
    async def main() -> None:
        monkeypatch.setattr(base, "UPKEEP_SECONDS", 3600)
        monkeypatch.setattr(call_writes, "_OPEN_SECONDS", -3600)
        given = {"store": clickhouse_process().new_database(), "control": postgres.new_database()}
        async with opened(tmp_path, **given) as first, opened(tmp_path, **given) as second:

            async def is_waiting() -> bool:
                return await first.control.read(lambda connection: pending_calls.has_half(connection, PROJECT, "c"))

            def put_old() -> str:
                key = first.blobs.put_bytes(b"nobody names this")
                os.utime(first.blobs.path(key), (1, 1))
                return key

            await first.calls.write([first_half()], [])
            key = put_old()
            await first._do_upkeep()
            assert first.blobs.exists(key) and await is_waiting()
            for store in (first, second):
                monkeypatch.setattr(store, "_tidied_at", -math.inf)
                monkeypatch.setattr(store.calls, "_swept", -math.inf)
            await first._do_upkeep()
            assert not first.blobs.exists(key)
            assert not await is_waiting()
            put_old()
            await second._do_upkeep()
            assert first.blobs.exists(key)
            await second.calls.write([], [second_half()])
            found = [row async for rows in second.calls.stream(CallsQuery(PROJECT)) for row in rows]
            assert [(row.id, row.status) for row in found] == [("c", 0)]

    asyncio.run(main())


@pytest.mark.thorough
def test_compaction_leaves_no_byte_of_what_was_removed(tmp_path: Path, postgres: PostgresServer) -> None:
    """Rows of old calls are only marked as deleted until then."""
    control, folder = postgres.new_database(), clickhouse_process().folder

    def planted() -> set[str]:
        # What PostgreSQL writes ahead it uses again by itself.
        names = {name for place in (folder, postgres.folder) for name in files_with(place, MARKER)}
        names = {name for name in names if "pg_wal" not in name and not name.endswith("log")}
        return {*names, *(["dump"] if MARKER in postgres.dump(control) else [])}

    async def main() -> None:
        async with opened(tmp_path, control=control) as store:
            clickhouse, rows = store.calls._clickhouse, scale.TableRows(store.calls._clickhouse)
            clickhouse_process().remove_old_parts_soon(clickhouse.database)
            halves = [("old", AT - DAY), ("purged", AT)]
            starts = [Start(PROJECT, name, name, "op", at, f'{{"n":"{MARKER}"}}', "{}", "ada") for name, at in halves]
            spans = [AgentSpan(PROJECT, "purged", "purged", AT, AT + 1, agent_name=MARKER)]
            await store.calls.write([*starts, first_half("stays")], [second_half("stays")], spans)
            await rows.put(PROJECT, {"d1": f'"{MARKER}"', "d2": '"stays"'})
            assert "dump" in planted() and len(planted()) > 1
            assert await store.calls.purge_older(PROJECT, AT) == 1
            assert await store.calls.purge(PROJECT, ["purged"]) == 1
            await store.erasure.calls(FoundCalls(PROJECT, ["purged"], ["purged"]), {})
            assert await rows.purge(PROJECT, ["d1", "none"]) == 1
            await store.compact()
            assert planted() == set()
            found = [row.id async for page in store.calls.stream(CallsQuery(PROJECT)) for row in page]
            assert (found, await rows.stored(PROJECT, ["d1", "d2"])) == (["stays"], {"d2"})
            assert await rows.purge(PROJECT, None) == 1
            assert await rows.total_size(PROJECT) == 0

    asyncio.run(main())


def test_old_spans_and_keys_go_also_where_an_earlier_removal_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(call_writes, "_PURGED_SPANS", 5)
        async with opened(tmp_path) as store:
            clickhouse = store.calls._clickhouse
            spans = [AgentSpan(PROJECT, "t", f"s{number}", AT + number, AT + number + 1) for number in range(14)]
            starts = [first_half(f"s{number}", at=AT + number) for number in range(14)]
            await store.calls.write(starts, [second_half(start.id) for start in starts], spans)
            await clickhouse.command(
                f"ALTER TABLE {CALLS} DELETE WHERE started_at < {AT + 3} SETTINGS mutations_sync = 2"
            )
            assert await store.calls.purge_older(PROJECT, AT + 3) == 0
            assert await clickhouse.rows(f"SELECT count() FROM {CALL_KEYS} FINAL") == [(11,)]
            assert await store.calls.purge_older(PROJECT, AT + 13) == 10
            page, total = await store.agent_spans.page(SpansRequest(SpanFilter(PROJECT)))
            assert ([row["span_id"] for row in page], total) == (["s13"], 1)
            assert await store.calls.purge_older(PROJECT, AT + 13) == 0

    asyncio.run(main())


def test_a_store_of_calls_that_takes_no_writes_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(tmp_path) as store:
            await store.ping()
            monkeypatch.setattr(scale, "_READ_ONLY", "SELECT 1")
            with pytest.raises(Unavailable, match="currently read-only"):
                await store.ping()

    asyncio.run(main())


def test_rows_are_gone_when_clickhouse_says_so_or_it_is_told_that_they_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        server = Clickhouse(f"clickhouse://127.0.0.1:{free_port()}/heddle", 1, 5)
        unfinished = [("mutation_1.txt", "a part is being merged")]
        answers: list[list[Any]] = [[], [(1,)], unfinished, unfinished, [], [(1,)], unfinished]
        commands: list[str] = []

        async def rows(_sql: str, _parameters: Any = None) -> list[Any]:
            return answers.pop(0)

        async def command(statement: str, _parameters: Any = None) -> None:
            commands.append(statement)

        monkeypatch.setattr(server, "rows", rows)
        monkeypatch.setattr(server, "command", command)
        await server.delete(CALLS, "1", {})
        assert commands == []
        await server.delete(CALLS, "1", {})
        assert commands == [f"ALTER TABLE {CALLS} DELETE WHERE 1"]
        assert len(answers) == 2
        monkeypatch.setattr(client, "_PATIENCE_SECONDS", -1.0)
        with pytest.raises(Unavailable, match=r"has not removed rows in time: .*a part is being merged"):
            await server.delete(CALLS, "1", {})
        server.close()

    asyncio.run(main())
