"""Queries of calls have the same answers on ClickHouse as on SQLite."""

import os
from pathlib import Path
from typing import Any

import pytest

from heddle.errors import HeddleError, InvalidRequest
from heddle.store.clickhouse import call_table
from heddle.store.control.feedback import SPANS, STRUCTURES, feedback
from heddle.wire import jsontext, refs, times
from heddle.wire.calls import CallsQuery, End, Filter, SortTerm, Start
from heddle.wire.query import parse_query
from tests.support.clickhouse import MISSING
from tests.support.queried_calls import PROJECT, Asked, asked, listed, reads_of, written
from tests.support.selection import examples, with_breadth
from tests.support.two_stores import TwoStores, in_both
from tests.support.written_calls import INSTANTS

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
SEEDS = range(1, 41) if SOAK else range(1, 3)
CALLS, QUERIES = 60, 250 if SOAK else examples(160)

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


REF = f"{refs.INTERNAL}{PROJECT}/object/o:{'d' * 43}"
SAID: list[tuple[str, str, Any, str | None]] = [
    ("c0", "quality", {"score": 2}, None),
    ("c0", "wandb.note.1", {"note": "Good work"}, None),
    ("c0", "wandb.note.1", {"note": "seen"}, None),
    ("c1", "quality", {"score": "10", "ok": True}, "weave-trace-internal:///x/op/judge:v1"),
    ("c1", "wandb.reaction.1", {"emoji": "👍"}, None),
    ("c2", "wandb.note.1", {"note": ""}, None),
    ("c2", "other", {"score": None}, None),
]
"""Call, type, payload and scorer of feedback, as it came."""


def field(path: str) -> Any:
    return {"$getField": path}


def says(op: str, path: str, constant: Any) -> Any:
    return {op: [field(path), {"$literal": constant}]}


def holds(path: str, part: str, folded: bool = False) -> Any:
    return {"$contains": {"input": field(path), "substr": {"$literal": part}, "case_insensitive": folded}}


NOTE = "feedback.[wandb.note.1].payload.note"
LEFT: list[tuple[Any, list[str]]] = [
    (says("$eq", NOTE, "seen"), ["c0"]),
    (says("$eq", NOTE, 5), []),
    (says("$eq", NOTE, None), ["c1", "c2", "c3"]),
    (holds(NOTE, "good"), []),
    (holds(NOTE, "good", folded=True), ["c0"]),
    (holds("feedback.[wandb.note.1].payload", "seen"), ["c0"]),
    ({"$in": [field(NOTE), [{"$literal": "Good work"}, {"$literal": "x"}]]}, ["c0"]),
    (says("$gt", "feedback.[quality].payload.score", 5), ["c1"]),
    (says("$eq", "feedback.[quality].payload.ok", True), ["c1"]),
    (says("$eq", "feedback.[*].payload.score", "2"), ["c0"]),
    (says("$eq", "feedback.[*].payload.emoji", "👍"), ["c1"]),
    (holds("feedback.[*].payload", "score"), ["c0", "c1"]),
    (says("$eq", "feedback.[quality].runnable_ref", "weave-trace-internal:///x/op/judge:v1"), ["c1"]),
    (says("$eq", "feedback.[*].trigger_ref", ""), ["c0", "c1", "c2", "c3"]),
    (says("$eq", "project_id", "team/queried"), ["c0", "c1", "c2", "c3"]),
    (says("$eq", "project_id", "team/else"), []),
    (says("$gte", "summary.weave.latency_ms", 2), ["c2", "c3"]),
    (says("$eq", "input_refs", REF), ["c1"]),
    (says("$eq", "input_refs", 5), []),
    (says("$gt", "input_refs", REF), []),
    (holds("input_refs", REF), ["c1"]),
    ({"$in": [field("input_refs"), [{"$literal": REF}]]}, ["c1"]),
    ({"$in": [field("summary.weave.status"), [{"$literal": "success"}, {"$literal": "running"}]]}, ["c0", "c1", "c2"]),
    ({"$in": [field("op_name"), [{"$literal": "op"}, {"$literal": "none"}]]}, ["c0", "c1", "c2", "c3"]),
    (says("$eq", "annotation_queue_items.queue_id", 5), []),
    ({"$in": [{"$convert": {"input": field("started_at"), "to": "string"}}, [{"$literal": "x"}]]}, []),
    (holds("started_at", "2024-03-01T"), []),
]
"""Queries, and the calls that they leave."""


async def write_said(stores: TwoStores) -> None:
    """Four calls: one names an object, one has failed."""
    texts = ["{}", jsontext.dumps({"r": REF}), "{}", "{}"]
    starts = [Start(PROJECT, f"c{n}", "t", "op", 10**15 + n, text, "{}", "ada") for n, text in enumerate(texts)]
    starts[1].refs = [REF]
    ends = [End(PROJECT, f"c{n}", 10**15 + n + n * 1000, "1", "{}", 1 if n == 3 else 0) for n in range(4)]
    await stores.write(starts, ends)
    rows = [
        {
            **dict.fromkeys(STRUCTURES, "{}"),
            **SPANS,
            "id": f"f{number}",
            "project": PROJECT,
            "feedback_type": kind,
            "payload": jsontext.dumps(payload),
            "weave_ref": f"{refs.INTERNAL}{PROJECT}/call/{call}",
            "created_at": number,
            "wb_user_id": "ada",
            "runnable_ref": scorer,
        }
        for number, (call, kind, payload, scorer) in enumerate(SAID)
    ]
    await stores.control.write(lambda connection: connection.execute(feedback.insert(), rows))


def test_feedback_refs_and_what_is_computed_choose_the_same_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(stores: TwoStores) -> None:
        await write_said(stores)
        reads: list[Any] = [stores.sqlite.calls, reads_of(stores)]
        for expression, left in LEFT:
            query = CallsQuery(PROJECT, query=parse_query({"$expr": expression}))
            for each in reads:
                assert [row.id for row in await listed(each, query)] == left, (expression, each)
                assert await each.count(query) == len(left)
        some = CallsQuery(PROJECT, Filter(call_ids=("c0", "c2")), parse_query({"$expr": says("$eq", NOTE, "")}))
        orders = {
            "feedback.[quality].payload.score": ["c0", "c1", "c3", "c2"],
            "feedback.[*].payload.note": ["c0", "c3", "c2", "c1"],
        }
        for each in reads:
            assert [row.id for row in await listed(each, some)] == ["c2"]
            for path, order in orders.items():
                found = await listed(each, CallsQuery(PROJECT, sort=(SortTerm(path, False),)))
                assert [row.id for row in found] == order, (path, each)
        monkeypatch.setattr(call_table, "_MAX_BYTES", 20)
        with pytest.raises(InvalidRequest, match="too complex"):
            await listed(reads[1], some)

    in_both(tmp_path, work)


def test_instants_of_any_year_are_spelled_as_answers_show_them(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        starts = [Start(PROJECT, f"c{n}", "t", "op", at, "{}", "{}", "ada") for n, at in enumerate(INSTANTS)]
        await stores.write(starts, [])
        spelled = {"$convert": {"input": field("started_at"), "to": "string"}}
        for each in (stores.sqlite.calls, reads_of(stores)):
            for number, at in enumerate(INSTANTS):
                query = parse_query({"$expr": {"$eq": [spelled, {"$literal": times.to_iso(at)}]}})
                found = await listed(each, CallsQuery(PROJECT, query=query))
                assert [row.id for row in found] == [f"c{number}"], (times.to_iso(at), each)

    in_both(tmp_path, work)
