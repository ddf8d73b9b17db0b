"""How SQLite answers queries over the small tables: by an index that fits, whatever the order asked for."""

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from heddle.store.control.costs import Costs
from heddle.store.control.feedback import SPANS, STRUCTURES, FeedbackRows
from heddle.store.control.row_queries import RowRequest, Sort
from heddle.wire.query import parse_query
from tests.support.memory import MemoryExecutor

Json = Any
PROJECT = "ZS9w"
ONE = {"$eq": [{"$literal": 1}, {"$literal": 1}]}
BY_REF = {"$eq": [{"$getField": "weave_ref"}, {"$literal": "r5"}]}
BY_ID = {"$eq": [{"$literal": "5"}, {"$getField": "id"}]}
BY_IDS = {"$in": [{"$getField": "id"}, [{"$literal": "5"}, {"$literal": "7"}]]}
BY_TYPE = {"$eq": [{"$getField": "feedback_type"}, {"$literal": "custom"}]}
BY_TIME = [Sort("created_at", True)]


class Watched(MemoryExecutor):
    """An executor that notes how SQLite would answer each SELECT."""

    def __init__(self) -> None:
        super().__init__()
        self.plans: list[str] = []
        sa.event.listen(self.engine, "before_cursor_execute", self._note)

    def _note(self, _connection: Any, cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        if statement.startswith("SELECT"):
            plan = cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
            self.plans.append(" / ".join(row[3] for row in plan))


def row(number: int) -> dict[str, Json]:
    """A complete row."""
    blank = dict.fromkeys(["creator", "annotation_ref", "runnable_ref", "call_ref", "trigger_ref", "queue_id"])
    given = {"id": str(number), "project": PROJECT, "weave_ref": f"r{number}", "feedback_type": "custom"}
    columns = dict.fromkeys(STRUCTURES, "{}")
    return {**blank, **given, **columns, **SPANS, "payload": "{}", "created_at": number, "wb_user_id": "ada"}


@pytest.fixture
def watched() -> Watched:
    """A database with 100 rows of feedback."""
    executor = Watched()
    asyncio.run(FeedbackRows(executor).create([row(number) for number in range(100)]))
    executor.plans.clear()
    return executor


@pytest.mark.parametrize(
    ("condition", "sort_by", "index"),
    [
        (None, None, "feedback_by_time (project=?)"),
        (ONE, BY_TIME, "feedback_by_time (project=?)"),
        (BY_TYPE, None, "feedback_by_time (project=?)"),
        (BY_REF, None, "feedback_by_target (project=? AND weave_ref=?)"),
        (BY_REF, BY_TIME, "feedback_by_target (project=? AND weave_ref=?)"),
        ({"$and": [ONE, BY_TYPE, BY_REF]}, BY_TIME, "feedback_by_target (project=? AND weave_ref=?)"),
        (BY_ID, None, "sqlite_autoindex_feedback_1 (project=? AND id=?)"),
        (BY_IDS, BY_TIME, "sqlite_autoindex_feedback_1 (project=? AND id=?)"),
        ({"$or": [BY_ID, BY_ID]}, None, "sqlite_autoindex_feedback_1 (project=? AND id=?)"),
    ],
)
def test_feedback_queries_use_the_index_that_fits(
    watched: Watched, condition: Json, sort_by: list[Sort] | None, index: str
) -> None:
    """One row is found by its key, many in the order of time without sorting them."""
    query = None if condition is None else parse_query({"$expr": condition})
    selected = asyncio.run(FeedbackRows(watched).query(PROJECT, RowRequest(query=query, sort_by=sort_by)))
    assert selected.total in (1, 2, 100)
    assert index in watched.plans[0]


def test_rows_of_many_targets_are_found_by_their_refs(watched: Watched) -> None:
    """What calls with `include_feedback` ask for."""
    found = asyncio.run(FeedbackRows(watched).for_refs(PROJECT, [f"r{number}" for number in range(0, 700, 7)]))
    assert sorted(found) == sorted(f"r{number}" for number in range(0, 100, 7))
    assert [list(rows[0])[:3] for rows in found.values()] == [["id", "feedback_type", "weave_ref"]] * 15
    assert all("feedback_by_target (project=? AND weave_ref=?)" in plan for plan in watched.plans)


def test_prices_are_found_by_their_project(watched: Watched) -> None:
    """Both lists."""
    costs = Costs(watched)
    assert asyncio.run(costs.query(PROJECT, RowRequest())).rows == []
    assert asyncio.run(costs.project_rows(PROJECT)) == {}
    assert all("(project=?)" in plan for plan in watched.plans) and len(watched.plans) == 2


def test_prices_of_a_project_are_read_once_until_they_change() -> None:
    """From memory afterwards; a write in between is seen."""
    executor = Watched()
    costs = Costs(executor)

    async def scenario() -> list[int]:
        counts = []
        for _ in range(3):
            await costs.project_rows(PROJECT)
        counts.append(len(executor.plans))
        await costs.purge(PROJECT, ["unknown"], "ada")
        await costs.project_rows(PROJECT)
        counts.append(len(executor.plans))
        return counts

    assert asyncio.run(scenario()) == [1, 2]
