"""Monitors that the SDK switches on score calls that the SDK makes."""

import pytest

from tests.conftest import Client, Wire
from tests.support.chat import until

pytestmark = pytest.mark.thorough


def test_an_activated_monitor_scores_new_calls(sdk: Client, wire: Wire) -> None:
    seen = sdk.run("monitors.py")
    good, bad = seen["ids"]["good"], seen["ids"]["bad"]

    def rows() -> list[dict]:
        return [row for row in wire.post("/feedback/query")["result"] if row["trigger_ref"]]

    until(lambda: len(rows()) >= 4, "two scores of two calls")
    found = {
        (row["weave_ref"].rpartition("/")[2], row["feedback_type"].rpartition(".")[2]): row["payload"]["output"]
        for row in rows()
    }
    [valid, mentions] = sorted({kind for _, kind in found}, key=lambda kind: "mentions" in kind.lower())
    assert {key: value for key, value in found.items() if key[1] == valid} == {
        (good, valid): {"json_valid": True},
        (bad, valid): {"json_valid": False},
    }
    assert set(found) == {(call, kind) for call in (good, bad) for kind in (valid, mentions)}
    assert {row["trigger_ref"] for row in rows()} == {seen["ref"]}
    assert seen["loaded"] == ["json-monitor", True, 1, 2]
    [state] = wire.post("/monitors/query")["monitors"]
    assert (state["active"], state["problem"], state["submitted"]) == (True, None, 2)
