"""Queries of calls have the same answers on ClickHouse as on SQLite."""

import os
from pathlib import Path

import pytest

from heddle.errors import HeddleError
from tests.support.clickhouse import MISSING
from tests.support.queried_calls import Asked, asked, listed, reads_of, written
from tests.support.selection import with_breadth
from tests.support.two_stores import TwoStores, in_both

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
SEEDS = range(1, 41) if SOAK else range(1, 3)
CALLS, QUERIES = 60, 250 if SOAK else 100

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed")


async def _answers(reads: object, item: Asked) -> object:
    """Ids in their order and the count, or the error."""
    try:
        return [row.id for row in await listed(reads, item.query)], await reads.count(item.query)  # type: ignore[attr-defined]
    except HeddleError as error:
        return type(error)


@pytest.mark.parametrize("seed", with_breadth(SEEDS))
def test_random_queries_have_equal_answers(tmp_path: Path, seed: int) -> None:
    async def work(stores: TwoStores) -> None:
        world = await written(stores, seed, CALLS)
        reads, filled, refused = reads_of(stores), 0, 0
        for _ in range(QUERIES):
            item = asked(world)
            expected, found = await _answers(stores.sqlite.calls, item), await _answers(reads, item)
            assert found == expected, item.words
            filled += isinstance(expected, tuple) and bool(expected[0])
            refused += isinstance(expected, type)
        assert filled > QUERIES / 5 and refused < QUERIES / 10

    in_both(tmp_path, work)
