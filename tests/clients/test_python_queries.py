"""`get_calls` in all its forms, deletion, display names, threads and saved views through the Python SDK."""

from typing import Any

import pytest

from tests.conftest import Client, Wire
from tests.support.selection import with_breadth

ALL = list(range(24))
EVEN = ALL[::2]
WORDS = ["apple", "Banana", "cherry", "date"]
FAILED = [4, 9, 14, 19]
MODES: dict[str, dict[str, str]] = {"default": {}, "legacy writes": {"WEAVE_USE_CALLS_COMPLETE": "false"}}


def with_word(*positions: int) -> list[int]:
    """The calls whose word has one of the positions, position by position."""
    return [n for position in positions for n in ALL[position::4]]


@pytest.mark.parametrize("mode", with_breadth(MODES))
def test_get_calls(sdk: Client, wire: Wire, mode: str) -> None:
    """Filters, queries, orders, pages, columns, expansion; then renaming and deleting."""
    seen = sdk.run("queries.py", **MODES[mode])
    ids = seen["ids"]
    assert seen["filters"] == {
        "all": 32,
        "work": 24,
        "typed_filter": 24,
        "exact_op": 24,
        "roots": 24,
        "children_of_3": [3],
        "by_id": [2, 7],
        "by_trace": 2,
        "by_input_ref": EVEN,
        "by_any_setting": 24,
        "nobody": 0,
    }
    assert seen["queries"] == {
        "eq": [5],
        "eq_text": with_word(2),
        "gt": [21, 22, 23],
        "gte_output": [20, 21, 22, 23],
        "lt": [0, 1],
        "lte": [0, 1, 2],
        "in": [1, 8],
        "not": [0, 1],
        "and_or": [0, 1, 4, 8],
        "contains": with_word(1),
        "contains_case": with_word(1),
        "convert": [7],
        "attribute": with_word(3),
        "status": FAILED,
        "exception": [9],
        "bool": [n for n in EVEN if n not in FAILED],
        "missing": FAILED,
        "trace_name": ALL,
        "started": [],
        "expanded": EVEN,
    }
    assert seen["orders"] == {
        "desc": ALL[::-1],
        "word_then_n": with_word(3, 2, 0, 1),
        "started": ALL[::-1],
        "default": ALL,
        "output": [n for n in ALL[::-1] if n not in FAILED] + FAILED[::-1],
        "expanded": [*ALL[::-2], *EVEN[::-1]],
    }
    assert seen["pages"] == {
        "limit": [0, 1, 2, 3],
        "offset": [10, 11, 12],
        "small_pages": ALL,
        "slice": [20, 21, 22],
        "index": 11,
        "length": 9,
        "past_the_end": [],
    }
    assert seen["narrow"]["inputs"]["word"] == "Banana"
    assert (seen["narrow"]["output"], seen["narrow"]["attributes"]) == (None, {})
    assert seen["expanded"] == {"label": "warm", "temperature": 0.9}
    check_changes(wire, seen, ids)


def check_changes(wire: Wire, seen: dict[str, Any], ids: list[str]) -> None:
    """The display name is stored; deleting a call takes its child along and nothing else."""
    assert (seen["display_name"], seen["shown"]) == ("Ten", "Ten")
    assert wire.call(ids[10])["display_name"] == "Ten"
    assert ids[3] in seen["deleted"]
    assert seen["left"] == [n for n in ALL if n not in (3, 20, 21)]
    # Calls 3 and 21 have a child each.
    assert seen["after_delete"] == 32 - 3 - 2
    calls = wire.calls()
    assert len(calls) == wire.post("/calls/query_stats")["count"] == 27
    assert not {ids[3], ids[20], ids[21]} & {call["id"] for call in calls}
    assert wire.post("/call/read", id=ids[3])["call"] is None
    sized = wire.calls(filter={"call_ids": [ids[0]]}, include_storage_size=True, include_total_storage_size=True)[0]
    own, total = seen["sizes"]
    assert [sized["storage_size_bytes"], sized["total_storage_size_bytes"]] == [own, total] and 0 < own < total
    work = [call for call in calls if call["op_name"].rsplit("/", 1)[-1].startswith("work:")]
    assert [call["inputs"]["n"] for call in work] == seen["left"]
    assert {call["inputs"]["setting"].rsplit(":", 1)[0] for call in work} == {f"weave:///{wire.project}/object/setting"}
    assert [call["inputs"]["word"] for call in work] == [WORDS[n % 4] for n in seen["left"]]


def test_threads(sdk: Client, wire: Wire) -> None:
    """Calls of a conversation share its thread id, its outermost calls are the turns."""
    seen = sdk.run("threads.py")
    talk, other = seen["ids"]["talk"], seen["ids"]["other"]
    assert (seen["turn"], seen["child"], seen["outside"]) == (["talk", True], ["talk", True], [None, None])
    assert (seen["by_thread"], seen["by_turn"]) == (6, 2)

    threads = wire.lines("/threads/stream_query", sort_by=[{"field": "turn_count", "direction": "desc"}])
    assert [(thread["thread_id"], thread["turn_count"]) for thread in threads] == [
        ("talk", 3),
        ("other", 2),
        (seen["anonymous"], 1),
    ]
    calls = {call["id"]: call for call in wire.calls()}
    first = threads[0]
    assert (first["first_turn_id"], first["last_turn_id"]) == (talk[0], talk[-1])
    assert first["start_time"] == calls[talk[0]]["started_at"]
    assert first["last_updated"] == calls[talk[-1]]["ended_at"]
    assert first["p99_turn_duration_ms"] >= first["p50_turn_duration_ms"] >= 0
    (only,) = wire.lines("/threads/stream_query", filter={"thread_ids": ["other"]})
    assert (only["first_turn_id"], only["last_turn_id"]) == (other[0], other[1])
    turns = [call for call in calls.values() if call["id"] == call["turn_id"]]
    assert sorted(call["id"] for call in turns if call["thread_id"] == "talk") == sorted(talk)
    outside = [call for call in calls.values() if call["thread_id"] is None]
    assert len(outside) == 2 and {call["turn_id"] for call in outside} == {None}


@pytest.mark.thorough
def test_saved_views(sdk: Client, wire: Wire) -> None:
    """Views are objects of class SavedView; their filters, sorts and columns select calls."""
    seen = sdk.run("views.py")
    assert seen["big"] == [5, 5, 4, 4, 3, 3, 2, 2]
    assert (seen["numbers"], seen["limited"]) == ([5, 4, 3, 2, 1, 0], [5, 4])
    assert (seen["label"], seen["columns"], seen["rows"]) == ("Renamed", ["inputs.n", "output.value"], 6)
    views = wire.objects(filter={"base_object_classes": ["SavedView"]})
    digests = {item["digest"]: item["val"] for item in views}
    assert digests.keys() == {seen["big_ref"][1], seen["first_ref"][1], seen["renamed_digest"]}
    query = without_classes(digests[seen["big_ref"][1]]["definition"]["query"])
    number = {"$convert": {"input": {"$getField": "inputs.n"}, "to": "double"}}
    assert query == {"$expr": {"$and": [{"$gte": [number, {"$literal": 2}]}]}}
    assert digests[seen["first_ref"][1]]["label"] == "Measures"
    assert digests[seen["renamed_digest"]]["label"] == "Renamed"


def without_classes(value: Any) -> Any:
    """The value without the class names that the SDK stores with every model."""
    if isinstance(value, list):
        return [without_classes(item) for item in value]
    if isinstance(value, dict):
        return {key: without_classes(item) for key, item in value.items() if not key.startswith("_")}
    return value
