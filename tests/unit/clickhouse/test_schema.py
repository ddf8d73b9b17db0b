"""The tables on ClickHouse: made once, by whoever comes first, on one node or on a cluster."""

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest

from heddle.errors import HeddleError, Unavailable
from heddle.store.clickhouse.calls import Calls
from heddle.store.clickhouse.client import Clickhouse
from heddle.store.clickhouse.schema import (
    CALLS,
    STEPS,
    TABLE_ROWS,
    TYPES,
    Place,
    listed,
    steps_table,
)
from heddle.store.clickhouse.store import CURRENT, MIGRATIONS, migrate
from heddle.store.clickhouse.trials import Trials
from heddle.wire.calls import CallsQuery, End, Filter, Start
from heddle.wire.query import Search
from heddle.wire.trials import PREDICT_AND_SCORE
from tests.support import two_stores
from tests.support.server import free_port
from tests.support.two_stores import TwoStores

HOSTILE = ["", "it's", "\\", "\\'", "a\0b", "\n\t", "☃ 𝒳", "{p:String}", "%(x)s", "--", "x" * 70_000]


def test_many_servers_make_the_tables_once(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        address = f"{stores.address}_more"
        servers = [Clickhouse(address, 2, 30) for _ in range(5)]
        taken = await asyncio.gather(*(migrate(server, server.place, stores.control) for server in servers))
        assert sorted(map(len, taken)) == [0, 0, 0, 0, len(MIGRATIONS)]
        assert await servers[0].rows(f"SELECT count(), max(number) FROM {STEPS}") == [(CURRENT, CURRENT)]
        for table, columns in TYPES.items():
            found = await servers[0].rows(f"DESCRIBE TABLE {table}")
            assert {row[0]: row[1] for row in found if row[2] != "MATERIALIZED"} == columns
        for server in servers:
            await asyncio.to_thread(server.close)

    two_stores.in_both(tmp_path, work)


def test_failed_calls_of_an_earlier_schema_get_their_groups(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        problems = [None, "ValueError: order 1", "ValueError: order 2", "KeyError: 'x'"]
        starts = [Start("p", f"c{n}", "t", "op", 10**15 + n, "{}", "{}", "ada") for n in range(len(problems))]
        ends = [
            End("p", f"c{n}", 2 * 10**15, "1", "{}", 1 if problem else 0, problem) for n, problem in enumerate(problems)
        ]
        await stores.write(starts, ends)
        expected = [end.error_group for end in ends]
        assert expected[0] is None and expected[1] == expected[2] != expected[3]
        for statement in ("DROP COLUMN error_group", "DROP COLUMN kind"):
            await stores.clickhouse.rows(f"ALTER TABLE {CALLS} {statement}")
        await stores.clickhouse.rows(f"ALTER TABLE {STEPS} DELETE WHERE number > 2 SETTINGS mutations_sync = 2")
        taken = await migrate(stores.clickhouse, stores.clickhouse.place, stores.control)
        assert len(taken) == CURRENT - 2
        rows = await stores.clickhouse.rows(f"SELECT id, error_group, output FROM {CALLS} FINAL ORDER BY id")
        assert rows == [(f"c{n}", group, "1") for n, group in enumerate(expected)]

    two_stores.in_both(tmp_path, work)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        await stores.clickhouse.insert(STEPS, ("number", "title"), [(CURRENT + 1, "something new")])
        with pytest.raises(HeddleError, match=f"schema {CURRENT + 1}; this version supports {CURRENT}"):
            await migrate(stores.clickhouse, stores.clickhouse.place, stores.control)

    two_stores.in_both(tmp_path, work)


def test_a_server_that_does_not_answer_is_said_so(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        nowhere = Clickhouse(f"clickhouse://127.0.0.1:{free_port()}/heddle", 2, 5)
        with pytest.raises(Unavailable, match=r"cannot be reached: Connection refused$") as caught:
            await migrate(nowhere, nowhere.place, stores.control)
        assert caught.value.headers == {"Retry-After": "2"}
        await asyncio.to_thread(nowhere.close)

    two_stores.in_both(tmp_path, work)


def test_a_cluster_that_is_not_known_is_said_so(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        elsewhere = Clickhouse(stores.address, 2, 30, "nowhere")
        with pytest.raises(HeddleError, match="does not know the cluster of the setting store_cluster"):
            await migrate(elsewhere, elsewhere.place, stores.control)
        await asyncio.to_thread(elsewhere.close)

    two_stores.in_both(tmp_path, work)


def test_statements_for_a_cluster(tmp_path: Path) -> None:
    place = Place("heddle", "it's big")
    statements = [*steps_table(place), *(text for step in MIGRATIONS for text in step[2](place))]
    assert all("ON CLUSTER 'it\\'s big'" in statement for statement in statements)
    local = [statement for statement in statements if f"EXISTS {CALLS}_local" in statement]
    assert len(local) == 1
    keeper = "ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/heddle/calls_local', '{replica}', version)"
    assert keeper in local[0]
    spread = [statement for statement in statements if "Distributed(" in statement]
    assert "Distributed('it\\'s big', 'heddle', calls_local, cityHash64(trace_id))" in spread[1]
    assert len(spread) == len(TYPES)

    async def work(stores: TwoStores) -> None:
        for statement in statements:
            assert await stores.clickhouse.rows(f"EXPLAIN AST {statement}")

    two_stores.in_both(tmp_path, work)


def test_a_cluster_of_two_shards_answers_what_looks_at_calls_twice(tmp_path: Path) -> None:
    evaluation = Start("p", "run", "t", "op", 10**15, "{}", "{}", "ada", display_name="refund")
    inputs = '{"self":"scorer"}'
    trial = Start("p", "trial", "t", PREDICT_AND_SCORE, 10**15 + 1, inputs, "{}", "ada", parent_id="run")
    step = Start("p", "step", "t", "op", 10**15 + 2, inputs, "{}", "ada", parent_id="trial", otel_dump="{}")
    ids = ["run", "trial", "step"]

    async def work(stores: TwoStores) -> None:
        await stores.write([evaluation, trial, step], [])
        source = stores.clickhouse.database
        # Both shards are the same node, of which the second shows nothing.
        first_only = quote(str({f"{source}.{table}": "shardNum() = 1" for table in TYPES}))
        cluster = Clickhouse(f"{stores.address}_spread?additional_table_filters={first_only}", 2, 30, "two")
        await stores.clickhouse.command(f"CREATE DATABASE {cluster.database}")
        for table in TYPES:
            spread = f"{cluster.database}.{table} AS {source}.{table}"
            engine = f"Distributed('two', '{source}', {table}, rand())"
            await stores.clickhouse.command(f"CREATE TABLE {spread} ENGINE = {engine}")
        calls = Calls(cluster, stores.control, two_stores.QUEUE_BYTES, str)
        for query in (CallsQuery("p", Filter(call_ids=tuple(ids))), CallsQuery("p", query=Search("refund", True))):
            assert [row.id async for rows in calls.stream(query) for row in rows] == ids
        assert await calls.otel_dumps("p", ids) == ([("step", "t", "{}")], len(ids))
        found = await Trials(cluster, str).refs_in_scores("p", ["run"])
        assert found == set()
        await asyncio.to_thread(cluster.close)

    two_stores.in_both(tmp_path, work)


def test_texts_in_lists_are_taken_as_they_are(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        rows = [("p", str(number), text) for number, text in enumerate(HOSTILE)]
        await stores.clickhouse.insert(TABLE_ROWS, ("project", "digest", "val"), rows)
        for project, digest, text in rows:
            query = f"SELECT digest, val FROM {TABLE_ROWS} WHERE (project, val) IN {listed([(project, text)])}"
            assert await stores.clickhouse.rows(query) == [(digest, text)]

    two_stores.in_both(tmp_path, work)
