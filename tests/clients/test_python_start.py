"""How a program finds the server, and the ways in which it may send its calls."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SDK_VERSIONS, Client, Wire, python_client
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess


def check_sum(wire: Wire, seen: dict[str, Any]) -> None:
    """The one call of `init.py` is stored as the SDK sees it."""
    assert (seen["total"], seen["output"], seen["inputs"]) == (7, 7, {"a": 3, "b": 4})
    assert [call["id"] for call in wire.calls()] == [seen["id"]]
    call = wire.call(seen["id"])
    assert (call["inputs"], call["output"], call["exception"]) == ({"a": 3, "b": 4}, 7, None)
    assert call["op_name"] == seen["op_name"]
    assert call["op_name"].startswith(f"weave:///{wire.project}/op/add:")
    assert call["summary"]["weave"]["status"] == "success"
    assert call["attributes"]["weave"]["client_version"] == call["attributes"]["weave"]["client_version"].strip() != ""


def test_init_with_the_base_address_only(sdk: Client, wire: Wire) -> None:
    """`WANDB_BASE_URL` alone is enough: the SDK goes to `/traces` below it."""
    check_sum(wire, sdk.run("init.py", base_only=True, SCENARIO_INIT=sdk.project))


@pytest.mark.thorough
def test_init_with_the_trace_address(sdk: Client, wire: Wire) -> None:
    """`WF_TRACE_SERVER_URL` names the trace address itself."""
    seen = sdk.run("init.py", SCENARIO_INIT=sdk.project)
    check_sum(wire, seen)
    assert f"{seen['entity']}/{seen['project']}" == sdk.project


def test_init_without_an_entity(sdk: Client, server: HeddleProcess) -> None:
    """A bare project name goes to the default entity of the caller."""
    bare = sdk.project.split("/")[1]
    seen = sdk.run("init.py", SCENARIO_INIT=bare)
    assert (seen["entity"], seen["project"]) == ("local", bare)
    check_sum(Wire(server.url, f"local/{bare}"), seen)


@pytest.mark.thorough
@pytest.mark.parametrize("version", with_breadth(SDK_VERSIONS))
def test_second_run_of_a_program_adds_to_the_project(
    version: str, server: HeddleProcess, project: str, wire: Wire, tmp_path: Path
) -> None:
    """Two processes with caches of their own share one op version and add two calls."""
    client = python_client(version, server, project, tmp_path)
    first, second = (client.run("init.py", SCENARIO_INIT=project) for _ in range(2))
    assert first["op_name"] == second["op_name"]
    assert {call["id"] for call in wire.calls()} == {first["id"], second["id"]}
    assert [item["object_id"] for item in wire.objects()] == ["add"]


MODES = {
    "client digests": {"WEAVE_ENABLE_CLIENT_SIDE_DIGESTS": "true"},
    "legacy writes": {"WEAVE_USE_CALLS_COMPLETE": "false"},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("version", with_breadth(SDK_VERSIONS))
def test_call_is_stored_in_every_mode(
    version: str, mode: str, server: HeddleProcess, project: str, wire: Wire, tmp_path: Path
) -> None:
    """Client-side digests and the legacy write path store the same call."""
    client = python_client(version, server, project, tmp_path)
    check_sum(wire, client.run("init.py", SCENARIO_INIT=project, **MODES[mode]))


@pytest.mark.parametrize("mode", with_breadth(["true", "false"]), ids=["complete writes", "legacy writes"])
def test_call_of_a_killed_program_stays_running(sdk: Client, wire: Wire, mode: str) -> None:
    """A call is visible while it runs, and stays so when its program dies; its finished child is whole."""
    seen = sdk.run("killed.py", WEAVE_USE_CALLS_COMPLETE=mode)
    parent, child = wire.call(seen["parent"]), wire.call(seen["child"])
    assert (parent["ended_at"], parent["output"], parent["inputs"]) == (None, None, {"steps": 2})
    assert parent["summary"]["weave"]["status"] == seen["during"] == "running"
    assert (child["parent_id"], child["trace_id"]) == (parent["id"], parent["trace_id"])
    assert (child["output"], child["summary"]["weave"]["status"]) == ({"done": 1}, "success")
    assert len(wire.calls()) == 2
    assert wire.post("/trace/usage")["unfinished_call_ids"] == [parent["id"]]
