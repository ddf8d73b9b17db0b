"""The conversation API of the Python SDK writes, and its client reads agents, versions, spans, turns and figures."""

from pathlib import Path

import pytest

from tests.conftest import Client, Wire, python_client
from tests.support.server import HeddleProcess


@pytest.fixture
def sdk(server: HeddleProcess, project: str, tmp_path: Path) -> Client:
    """The Python SDK of the version that has the conversation API."""
    return python_client("0.54.0", server, project, tmp_path)


def test_a_conversation(sdk: Client, wire: Wire) -> None:
    """Two turns with a tool and an agent below; each read of the client shows them."""
    seen = sdk.run("agents.py")
    assert seen["agents"] == [["guide", 2, 31], ["checker", 1, 0]] and seen["count"] == 2
    assert seen["versions"] == [["3", 1], ["4", 1]]
    assert seen["spans"] == [7, ["chat", "execute_tool", "invoke_agent"]]
    assert seen["first_page"] == ["chat gpt-4o", "invoke_agent guide"]
    assert seen["tools"] == [["map", "t1", "tour", "A tour"]]
    assert seen["turns"] == [
        [
            ["user_message", "User"],
            ["agent_start", "guide"],
            ["assistant_message", "guide"],
            ["tool_call", "guide"],
            ["agent_start", "checker"],
            ["assistant_message", "checker"],
            ["assistant_message", "guide"],
        ],
        [["user_message", "User"], ["agent_start", "guide"], ["assistant_message", "guide"]],
    ]
    assert seen["totals"] == [2, False, 31, "guide", []]
    assert seen["texts"] == ["Where is the tower?", "", "North it is", "In the north."]
    assert seen["thought"] == ["look it up", None, None] and seen["result"] == ["north"]
    assert seen["stats"] == [31, ["timestamp", "agent_name", "sum_tokens"]]
    assert seen["tenant"] == [8]
    assert seen["found"] == [["assistant", "In the north."], ["tool_result", "north"]]
    by_name = {call["op_name"].partition(":")[0].rpartition("/")[2] for call in wire.calls()}
    assert len(wire.calls()) == 8 and by_name, "spans are calls as well"
