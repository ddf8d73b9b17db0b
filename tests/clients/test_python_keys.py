"""The SDK against a server that needs keys: a good one works to its reach, a bad one is told so at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.conftest import SDK_VERSIONS, Client, python_client
from tests.support.cli import make_key
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess

PROJECT = "team/keyed"


@dataclass(frozen=True)
class Keyed:
    """A server with --auth on and two keys."""

    server: HeddleProcess
    free: str
    bound: str


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """One key of user ann for everything, one of user bob for one project."""
    data = tmp_path_factory.mktemp("keyed") / "data"
    free, bound = make_key(data, "ann"), make_key(data, "bob", "--project", PROJECT)
    with HeddleProcess(data, auth="on") as server:
        yield Keyed(server, free, bound)


@pytest.fixture(params=with_breadth(SDK_VERSIONS))
def client(request: pytest.FixtureRequest, keyed: Keyed, tmp_path: Path) -> Client:
    """The Python SDK, once per supported version."""
    return python_client(request.param, keyed.server, PROJECT, tmp_path)


@pytest.mark.thorough
def test_each_key_works_in_its_reach(client: Client, keyed: Keyed) -> None:
    """Calls are stored under the key's user; a bare project name goes to the key's entity."""
    for key, name, entity, user in (
        (keyed.bound, PROJECT, "team", "bob"),
        (keyed.bound, "keyed", "team", "bob"),
        (keyed.free, "keyed", "ann", "ann"),
    ):
        seen = client.run("init.py", base_only=True, SCENARIO_INIT=name, WANDB_API_KEY=key)
        assert (seen["entity"], seen["output"]) == (entity, 7)
        read = {"project_id": f"{entity}/keyed", "id": seen["id"]}
        answer = httpx.post(keyed.server.url + "/call/read", json=read, auth=("api", key), timeout=30)
        assert answer.json()["call"]["wb_user_id"] == user


@pytest.mark.parametrize(
    ("key", "name", "why"),
    with_breadth(
        [
            ("bound", "team/other", "cannot access 'team/other'"),
            ("0123456789abcdef0123456789abcdef01234567", PROJECT, "401"),
        ]
    ),
)
def test_a_key_that_does_not_reach_stops_init(key: str, name: str, why: str, client: Client, keyed: Keyed) -> None:
    """`weave.init` raises at once instead of losing calls later."""
    given = {"bound": keyed.bound}.get(key, key)
    with pytest.raises(AssertionError) as failed:
        client.run("init.py", base_only=True, SCENARIO_INIT=name, WANDB_API_KEY=given)
    assert "ended with 1" in str(failed.value)
    assert why in str(failed.value)
    answer = httpx.post(
        keyed.server.url + "/calls/query_stats", json={"project_id": name}, auth=("api", keyed.free), timeout=30
    )
    assert name == PROJECT or answer.json()["count"] == 0
    assert given not in keyed.server.log()
