"""Tables longer than what is held at a time: digests, order, edits and sorting, straight at the store."""

import asyncio
import hashlib
import itertools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from heddle.errors import NotFound
from heddle.settings import Settings
from heddle.store.control import table_rows as stored_rows
from heddle.store.control import tables
from heddle.store.control.tables import Tables
from heddle.store.sqlite.store import SqliteStore, open_store
from heddle.trace.tables import pack_rows
from heddle.wire import table_rows
from heddle.wire.table_rows import Edit

COUNT = 2 * tables.SLICE_ROWS + 1234
NAMES = [f"{number:043d}" for number in range(COUNT)]


def digest_of(names: list[str]) -> str:
    """The digest of a table as clients compute it."""
    return hashlib.sha256("".join(names).encode()).hexdigest()


def run(folder: Path, work: Callable[[SqliteStore], Awaitable[Any]]) -> Any:
    """What the work comes to on a store of its own."""

    async def whole() -> Any:
        store = await open_store(Settings(data=str(folder)))
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(whole())


async def names_of(tables: Tables, digest: str) -> list[str]:
    """All row digests of a table in order."""
    count = await tables.count("p", digest)
    assert count is not None
    return list((await tables.digests_at("p", digest, range(count))).values())


async def unfinished(store: SqliteStore) -> int:
    """How many tables are stored whose digest is none."""
    query = sa.select(sa.func.count()).where(sa.func.length(stored_rows.table_columns.digest) != 64)
    return int(await store.tables._executor.read(lambda connection: connection.execute(query).scalar_one()))


def test_a_long_table_and_its_edits(tmp_path: Path) -> None:
    """Written in several transactions and derived in slices, they are what a list of the digests would be."""

    async def work(store: SqliteStore) -> None:
        tables = store.tables
        for _ in range(2):
            await tables.create("p", digest_of(NAMES), NAMES, {})
        assert await tables.count("p", digest_of(NAMES)) == COUNT
        assert await names_of(tables, digest_of(NAMES)) == NAMES
        chooser = random.Random(7)
        edits = [Edit("append", row="last"), Edit("insert", 0, "first"), Edit("pop", COUNT // 2)]
        edits += [Edit("pop", chooser.randrange(COUNT - 300)) for _ in range(100)]
        edits += [Edit("insert", chooser.randrange(COUNT - 300), f"new{number}") for number in range(100)]
        expected = list(NAMES)
        for edit in edits:
            if edit.kind == "pop":
                expected.pop(edit.index or 0)
            else:
                expected.insert(len(expected) if edit.index is None else edit.index, edit.row)
        pieces, _ = table_rows.apply_edits(COUNT, edits)
        for _ in range(2):
            assert await tables.derive("p", digest_of(NAMES), pieces, {}) == digest_of(expected)
        assert await names_of(tables, digest_of(expected)) == expected
        assert await tables.count("p", digest_of(expected)) == len(expected)
        assert await unfinished(store) == 0
        with pytest.raises(NotFound):
            await tables.derive("q", digest_of(NAMES), pieces, {})

    run(tmp_path, work)


def test_chunks_that_a_purge_once_left_do_not_become_those_of_a_new_table(tmp_path: Path) -> None:
    """Each table/create was a 500 where SQLite gave the number of their table out again."""

    async def work(store: SqliteStore) -> None:
        stray = [{"table_number": 1, "chunk": chunk, "row_digests": '["stray"]'} for chunk in range(2)]
        insert = stored_rows.table_chunks.insert()
        await store.tables._executor.write(lambda connection: connection.execute(insert, stray))
        await store.tables.create("p", digest_of(NAMES[:3]), NAMES[:3], {})
        read = sa.select(stored_rows.table_chunks.c["table_number", "chunk"])
        left = await store.tables._executor.read(lambda connection: connection.execute(read).all())
        assert [tuple(row) for row in left] == [(1, 0)]
        assert await names_of(store.tables, digest_of(NAMES[:3])) == NAMES[:3]

    run(tmp_path, work)


@pytest.mark.parametrize("step", ["_redacted", "put"])
def test_nothing_is_made_of_a_table_that_goes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A purge came in between: the new table lacked rows, or had those of another table that had got the number."""

    async def work(store: SqliteStore) -> None:
        base, other = NAMES[:3], NAMES[5:8]
        await store.tables.create("p", digest_of(base), base, {})
        owner = store.tables if step == "_redacted" else store.tables._row_texts
        original = getattr(owner, step)

        async def go_first(*given: Any) -> Any:
            monkeypatch.undo()

            def remove(connection: sa.Connection) -> None:
                for table in (stored_rows.table_chunks, stored_rows.tables):
                    connection.execute(table.delete())

            await store.tables._executor.write(remove)
            await store.tables.create("q", digest_of(other), other, {})
            return await original(*given)

        monkeypatch.setattr(owner, step, go_first)
        pieces, _ = table_rows.apply_edits(3, [Edit("append", row="last")])
        with pytest.raises(NotFound):
            await store.tables.derive("p", digest_of(base), pieces, {})
        for names in (base, other):
            assert await store.tables.count("p", digest_of([*names, "last"])) is None

    run(tmp_path, work)


def test_what_a_crash_left_unfinished_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of which only a part came is never seen, and the next long table a day later removes it."""
    monkeypatch.setattr(tables, "_OLD", 0)

    async def work(store: SqliteStore) -> None:
        async def broken() -> Any:
            yield NAMES[: tables.SLICE_ROWS]
            yield NAMES[: tables.SLICE_ROWS]
            raise RuntimeError("power cut")

        new = tables.NewTable(store.tables._executor, store.tables._row_texts, "p", False, {})
        with pytest.raises(RuntimeError):
            await new.store(broken())
        assert await unfinished(store) == 1
        await store.tables.create("p", digest_of(NAMES), NAMES, {})
        assert await unfinished(store) == 0
        assert await names_of(store.tables, digest_of(NAMES)) == NAMES

    run(tmp_path, work)


def test_an_order_is_worked_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pages of an order come from one sorting; a table that gets its rows later is sorted anew."""
    made: list[int] = []
    sorter = tables.Sorter
    monkeypatch.setattr(tables, "Sorter", lambda keys: made.append(1) or sorter(keys))
    rows = [{"n": (number * 7919) % 3001} for number in range(3001)]
    names, texts = pack_rows(rows)
    keys = [table_rows.parse_sort("n", False)]

    async def work(store: SqliteStore) -> None:
        tables = store.tables
        await tables.create("p", digest_of(names), names, {})
        assert await tables.query("p", digest_of(names), sort=keys, limit=10) == []
        await tables.create("p", "rows", names, texts)
        ordered = [await tables.query("p", "rows", sort=keys, limit=1000, offset=at) for at in range(0, 3001, 1000)]
        assert [row.val for page in ordered for row in page] == [f'{{"n":{number}}}' for number in range(3001)]
        assert len(made) == 2
        late = await tables.query("p", digest_of(names), sort=keys, limit=1, offset=3000)
        assert [row.val for row in late] == ['{"n":3000}'] and len(made) == 3
        together = await asyncio.gather(
            *(tables.query("p", "rows", sort=[table_rows.parse_sort("n", True)]) for _ in range(4))
        )
        assert len(made) == 4 and all(len(found) == 3001 for found in together)
        few = await tables.query("p", "rows", sort=keys, row_digests=names[:3])
        assert [row.digest for row in few] == [names[0], names[2], names[1]]
        assert len(made) == 4

    run(tmp_path, work)


def test_orders_are_kept_in_so_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    sorter = tables.Sorter
    monkeypatch.setattr(tables, "Sorter", lambda keys: made.append(1) or sorter(keys))
    monkeypatch.setattr(tables, "_KEPT_BYTES", 900)
    names, texts = pack_rows([{"a": number, "b": -number} for number in range(100)])
    orders = [[table_rows.parse_sort(name, descending)] for name in "ab" for descending in (False, True)]

    async def work(store: SqliteStore) -> None:
        await store.tables.create("p", "rows", names, texts)
        for order in (*orders, orders[-1], orders[-2], orders[0]):
            [first] = await store.tables.query("p", "rows", sort=order, limit=1)
            assert orjson.loads(first.val)["a"] in (0, 99)
        assert len(made) == 5

    run(tmp_path, work)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=6),
    st.sampled_from(["", "\0", "\0\0", "a", "a\0", "a\0b", "é", "\U0001f600", "\uffff"]),
)


def compared(row: dict[str, Any], key: table_rows.SortKey) -> Any:
    """What the order of a row is by, said in the plainest way."""
    return table_rows.rank_value(row, key.path)


@given(st.lists(st.fixed_dictionaries({"a": values, "b": values}), max_size=30), st.booleans(), st.booleans())
def test_keys_of_bytes_sort_as_values_do(rows: list[dict[str, Any]], first: bool, second: bool) -> None:
    keys = [table_rows.parse_sort("a", first), table_rows.parse_sort("b", second)]
    expected = list(range(len(rows)))
    for key in reversed(keys):
        expected.sort(key=lambda place, key=key: compared(rows[place], key), reverse=key.is_descending)  # type: ignore[misc]
    spilling = table_rows.Sorter(keys, run_bytes=200)
    for place, row in enumerate(rows):
        spilling.add(place, row)
    assert table_rows.sort_rows(enumerate(rows), keys) == spilling.positions().tolist() == expected


@given(st.data())
def test_slices_of_pieces_are_slices_of_the_table(data: st.DataObject) -> None:
    """Any slice of a derived table, cut out of the pieces without making the whole."""
    base = [f"base{number}" for number in range(data.draw(st.integers(0, 20)))]
    sizes = st.tuples(st.integers(0, 3), st.integers(0, len(base)), st.integers(0, len(base)))
    pieces = [
        table_rows.Piece(tuple(f"new{number}.{at}" for at in range(added)), min(one, two), max(one, two))
        for number, (added, one, two) in enumerate(data.draw(st.lists(sizes, max_size=5)))
    ]
    whole = [name for piece in pieces for name in (*piece.added, *base[piece.start : piece.stop])]
    start, length = data.draw(st.integers(0, 30)), data.draw(st.integers(0, 30))

    def stretched(_: Any, __: int, first: int, stop: int) -> Any:
        yield base[first:stop]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_rows, "stretch_chunks", stretched)
        found = stored_rows.digests_of_pieces(None, 0, pieces, start, start + length)  # type: ignore[arg-type]
        assert list(itertools.chain.from_iterable(found)) == whole[start : start + length]
