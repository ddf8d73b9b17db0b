"""Rows of tables are kept on ClickHouse as in the control tables."""

import random
from pathlib import Path

import orjson

from heddle.store.clickhouse.schema import TABLE_ROWS
from heddle.store.clickhouse.store import TableRows
from heddle.store.control.table_rows import ControlRowTexts, RowTexts
from tests.support import two_stores
from tests.support.two_stores import TwoStores

PROJECT = "rows"


async def put(stores: TwoStores, texts: RowTexts, rows: dict[str, str]) -> None:
    """Store rows for good."""
    await stores.control.write(await texts.put(PROJECT, rows))


def test_both_keep_the_same_rows(tmp_path: Path) -> None:
    chance = random.Random(7)
    rows = {
        f"digest-{number}": orjson.dumps({"n": number, "☃": "\0" * (number % 3)}).decode() for number in range(2500)
    }

    async def work(stores: TwoStores) -> None:
        both: list[RowTexts] = [TableRows(stores.clickhouse), ControlRowTexts(stores.control)]
        for texts in both:
            await put(stores, texts, {})
            await put(stores, texts, dict(list(rows.items())[:1500]))
            await put(stores, texts, dict(list(rows.items())[1000:]))
            await put(stores, texts, {"big": "x" * 9_000_000, "small": "1", "quoted'": "\\'"})
        for count in (0, 1, 2500):
            asked = [*chance.sample(list(rows), count), "unknown", "quoted'"]
            found = [await texts.texts(PROJECT, asked) for texts in both]
            assert found[0] == found[1] == {digest: rows.get(digest, "\\'") for digest in asked if digest != "unknown"}
            assert await both[0].sizes(PROJECT, asked) == await both[1].sizes(PROJECT, asked)
            assert await both[0].stored(PROJECT, asked) == await both[1].stored(PROJECT, asked) == found[0].keys()
        assert await both[0].total_size(PROJECT) == await both[1].total_size(PROJECT) > 9_000_000
        assert await both[0].total_size("other") == 0
        assert await both[0].texts("other", ["big"]) == {}
        assert await stores.clickhouse.rows(f"SELECT count() FROM {TABLE_ROWS}") == [(2503,)]

    two_stores.in_both(tmp_path, work)


def test_a_row_that_two_servers_store_at_once_counts_once(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        texts = TableRows(stores.clickhouse)
        await put(stores, texts, {"d": "12345"})
        await stores.clickhouse.insert(TABLE_ROWS, ("project", "digest", "val"), [(PROJECT, "d", "12345")])
        assert await texts.total_size(PROJECT) == 5
        assert await texts.texts(PROJECT, ["d"]) == {"d": "12345"}

    two_stores.in_both(tmp_path, work)


def test_rows_that_were_purged_are_stored_when_they_come_again(tmp_path: Path) -> None:
    rows = {"a": "1", "b": "2"}

    async def work(stores: TwoStores) -> None:
        # As replicated tables always do: a block that came before is taken for a repetition, and left out.
        change = f"ALTER TABLE {TABLE_ROWS} MODIFY SETTING non_replicated_deduplication_window = 100"
        await stores.clickhouse.command(change)
        texts = TableRows(stores.clickhouse)
        for _ in range(2):
            await put(stores, texts, rows)
            assert await texts.texts(PROJECT, list(rows)) == rows
            assert await texts.purge(PROJECT, None) == 2

    two_stores.in_both(tmp_path, work)
