"""Searches of calls on ClickHouse find what holds their words, in calls, in their traces and in feedback on them."""

from pathlib import Path

import pytest

from heddle.store.control.feedback import SPANS, STRUCTURES, feedback
from heddle.wire import jsontext, refs
from heddle.wire.calls import CallsQuery, Start
from heddle.wire.query import And, Compare, Field, Literal, Operation, Search
from heddle.wire.search import parse_search, searched
from tests.support.clickhouse import MISSING
from tests.support.queried_calls import PROJECT, listed, reads_of
from tests.support.two_stores import TwoStores, in_both

pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"{MISSING} is not installed")

TEXTS = [
    "A refund was asked for",
    "refunds: none",
    "asked was it",
    "getUserName(1)",
    "get user name",
    "Das Café in Zürich",
    "黒い猫が好き",
    "犬も猫も",
    "gpt-4o said 42",
    "nothing of it",
]
SEARCHES = [
    *("refund", "refund*", '"was asked"', '"was ask"*', "asked was", "getUserName", '"user name"', "café", "zurich"),
    *("猫", "猫が", "好*", '"gpt 4o"', "42", "missing", "refund missing", "4*"),
]


async def found(stores: TwoStores, query: Operation) -> list[str]:
    rows = await listed(reads_of(stores), CallsQuery(PROJECT, query=query))
    assert await reads_of(stores).count(CallsQuery(PROJECT, query=query)) == len(rows)
    return sorted(row.id for row in rows)


def test_calls_are_found_by_their_words_ids_traces_and_feedback(tmp_path: Path) -> None:
    async def work(stores: TwoStores) -> None:
        starts = [
            Start(
                PROJECT, f"c{number}", f"t{number // 2}", "op", 1000 + number, jsontext.dumps({"q": text}), "{}", "ada"
            )
            for number, text in enumerate(TEXTS)
        ]
        starts += [Start("b3RoZXI", "other", "other", "op", 1, '{"q":"refund"}', "{}", "ada")]
        await stores.write(starts, [])
        payload = '{"note":"Please pay a refund"}'
        note = {
            **dict.fromkeys(STRUCTURES, "{}"),
            **SPANS,
            "id": "f",
            "project": PROJECT,
            "weave_ref": f"{refs.INTERNAL}{PROJECT}/call/c9",
            "feedback_type": "note",
            "payload": payload,
            "created_at": 1,
            "creator": "ada",
            "wb_user_id": "ada",
        }
        await stores.control.write(lambda connection: connection.execute(feedback.insert(), [note]).rowcount)
        for text in SEARCHES:
            asked = parse_search(text)
            held = {
                f"c{n}" for n, each in enumerate(TEXTS) if asked.is_held_by(searched([], [jsontext.dumps({"q": each})]))
            }
            held |= {"c9"} if asked.is_held_by(searched([], [payload])) else set()
            assert await found(stores, Search(text)) == sorted(held), text
            of_traces = {f"c{n}" for n in range(len(TEXTS)) if {f"c{n // 2 * 2}", f"c{n // 2 * 2 + 1}"} & held}
            assert await found(stores, Search(text, any_of_trace=True)) == sorted(of_traces), text
        assert await found(stores, Search("c3")) == ["c3"]
        assert await found(stores, Search('"t1"')) == ["c2", "c3"]
        narrowed = And((Search("refund*"), Compare("eq", Field("id"), Literal("c1"))))
        assert await found(stores, narrowed) == ["c1"]

    in_both(tmp_path, work)
