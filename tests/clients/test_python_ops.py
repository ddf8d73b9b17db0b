"""Ops of every kind through the Python SDK: default writes, legacy writes, client-side digests."""

import json
from collections import Counter
from typing import Any

import pytest

from tests.conftest import Client, Wire
from tests.support.selection import with_breadth

ON_BOTH_STORES = True

MODES: dict[str, dict[str, str]] = {
    "default": {},
    "client digests": {"WEAVE_ENABLE_CLIENT_SIDE_DIGESTS": "true"},
    "legacy writes": {"WEAVE_USE_CALLS_COMPLETE": "false"},
}
NUMBERS = {
    "double": 1 + 2 + 4 + 6 + 1 + 1 + 8 + 20,
    "outer": 1,
    "gathers": 1,
    "waits": 3,
    "counts": 1,
    "counts_async": 1,
    "fails": 2,
    "survives": 1,
    "fans_out": 1,
    "renamed.op": 1,
    "Counter.above": 1,
    "logged.op": 1,
}


def name_of(call: dict[str, Any]) -> str:
    """The op's own name, from its ref or as it is."""
    text: str = call["op_name"]
    return text.rsplit("/", 1)[-1].split(":")[0] if text.startswith("weave:///") else text


@pytest.mark.parametrize("mode", with_breadth(MODES))
def test_ops_of_every_kind(sdk: Client, wire: Wire, mode: str) -> None:
    """Names, inputs, outputs, structure, exceptions, attributes and runs are stored as they happened."""
    seen = sdk.run("ops.py", **MODES[mode])
    calls = wire.calls()
    by_id = {call["id"]: call for call in calls}
    ids = seen["calls"]

    assert Counter(name_of(call) for call in calls) == NUMBERS
    assert seen["count"] == len(calls) == sum(NUMBERS.values())
    assert seen["roots"] == sum(call["parent_id"] is None for call in calls) == 41
    check_structure(calls)
    check_values(seen, by_id, ids)
    check_nested(seen, calls, by_id[ids["outer"]])
    check_failures(seen, calls, ids)
    check_context(by_id, ids, sdk.project, seen["logged"])


def check_structure(calls: list[dict[str, Any]]) -> None:
    """Children share the trace of their parent and lie within its time."""
    by_id = {call["id"]: call for call in calls}
    for call in calls:
        assert call["ended_at"] >= call["started_at"]
        assert (call["thread_id"], call["deleted_at"], call["wb_user_id"]) == (None, None, "local")
        if call["parent_id"] is not None:
            parent = by_id[call["parent_id"]]
            assert call["trace_id"] == parent["trace_id"]
            assert call["started_at"] >= parent["started_at"]
    roots = [call["trace_id"] for call in calls if call["parent_id"] is None]
    assert len(set(roots)) == len(roots)


def check_values(seen: dict[str, Any], by_id: dict[str, dict[str, Any]], ids: dict[str, str]) -> None:
    """Inputs and outputs of plain, generator, method and thread ops."""
    assert (by_id[ids["double"]]["inputs"], by_id[ids["double"]]["output"]) == ({"x": 21}, 42)
    assert (by_id[ids["gathers"]]["output"], by_id[ids["fans_out"]]["output"]) == ([1, 2, 3], [0, 2, 4, 6, 8, 10])
    named = {name_of(call): call for call in by_id.values()}
    assert named["counts"]["output"] == seen["generated"] == [0, 2, 4, 6]
    assert named["counts_async"]["output"] == seen["generated_async"] == [0, 1, 2]
    assert named["Counter.above"]["output"] == seen["method_output"] == 105
    assert named["logged.op"]["inputs"] == {"question": "why"}
    assert named["logged.op"]["output"] == {"answer": 42}
    doubles = [call for call in by_id.values() if name_of(call) == "double"]
    threaded = sorted(call["inputs"]["x"] for call in doubles if call["inputs"]["x"] >= 1000)
    assert threaded == [*range(1000, 1008), *range(2000, 2020)]
    assert all(call["output"] == 2 * call["inputs"]["x"] for call in doubles)


def check_nested(seen: dict[str, Any], calls: list[dict[str, Any]], outer: dict[str, Any]) -> None:
    """Children hang below their parent for nested, async, generator and pooled ops alike."""
    rest = {"note": "ünïcode ✓", "deep": {"a": [1, None]}}
    assert outer["inputs"] == seen["outer"]["inputs"] == {"x": 1, "scale": 10, "rest": rest}
    assert outer["output"] == seen["outer"]["output"] == {"first": 20, "second": 40, "rest": rest}
    assert seen["outer"]["children"] == [["double", {"x": 1}, 2], ["double", {"x": 2}, 4]]
    assert seen["outer"]["status"] == outer["summary"]["weave"]["status"] == "success"
    assert seen["outer"]["latency"] == outer["summary"]["weave"]["latency_ms"] >= 0
    parents = {call["id"]: name_of(call) for call in calls}
    children = Counter(parents[call["parent_id"]] for call in calls if call["parent_id"])
    assert children == {"outer": 2, "gathers": 3, "counts": 4, "survives": 1, "fans_out": 6}


def check_failures(seen: dict[str, Any], calls: list[dict[str, Any]], ids: dict[str, str]) -> None:
    """A failing op keeps its exception; its parent, if it lives on, is marked by its descendant."""
    status = {call["id"]: call["summary"]["weave"]["status"] for call in calls}
    failed = {call["id"]: json.loads(call["exception"]) for call in calls if call["exception"]}
    assert sorted(error["message"] for error in failed.values()) == ["inner trouble", "no luck"]
    assert {error["type"] for error in failed.values()} == {"ValueError"}
    assert failed[ids["fails"]]["traceback"][-1]["function_name"] == "fails"
    assert json.loads(seen["failed"]["exception"]) == failed[ids["fails"]]
    assert seen["failed"]["status"] == status[ids["fails"]] == "error"
    assert status[ids["survives"]] == "descendant_error"
    survivor = next(call for call in calls if call["id"] == ids["survives"])
    assert survivor["output"] == "caught inner trouble"
    assert survivor["summary"]["status_counts"] == {"success": 1, "error": 1}
    assert Counter(status.values()) == {"error": 2, "descendant_error": 1, "success": len(calls) - 3}


def check_context(by_id: dict[str, dict[str, Any]], ids: dict[str, str], project: str, logged: str) -> None:
    """Display names, attributes and run ids."""
    renamed = by_id[ids["renamed"]]
    assert (renamed["display_name"], renamed["output"]) == ("Shown name", "ABC")
    assert renamed["summary"]["weave"]["display_name"] == "Shown name"
    attributes = by_id[ids["attributes"]]["attributes"]
    assert (attributes["env"], attributes["nested"]) == ("production", {"level": 3})
    assert by_id[logged]["attributes"]["env"] == "batch"
    run = by_id[ids["run"]]
    assert (run["wb_run_id"], run["wb_run_step"]) == (f"{project}/run-7", 11)
    assert {call["wb_run_id"] for call in by_id.values() if call["id"] != ids["run"]} == {None}
