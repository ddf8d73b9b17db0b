"""One real server per test worker, and runners that drive it with the unmodified SDKs in their own environments."""

import asyncio
import ctypes
import gc
import inspect
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import hypothesis
import pytest

from heddle.http.memory import collect_seldom
from tests.support import scale, selection
from tests.support.clickhouse import clickhouse_process
from tests.support.forked_modules import address_of_modules, fork_modules
from tests.support.postgres import postgres as postgres
from tests.support.server import HeddleProcess
from tests.support.vllm_differences import reason_of
from tests.support.vllm_server import LOOK_ALIKE, SWITCH
from tests.support.zygote import FROM_NOTHING

# Threads of torch and numba that wait for each other sleep: other tests run beside, and would wait for those that spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Tests assert no times.
hypothesis.settings.register_profile("heddle", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=25)
hypothesis.settings.load_profile("heddle")

if not FROM_NOTHING:
    fork_modules(address_of_modules)

pytest_plugins = ("tests.support.crashes", "tests.support.s3")

ROOT = Path(__file__).parent.parent
SCENARIOS = Path(__file__).parent / "clients" / "scenarios"
NODE_SCENARIOS = Path(__file__).parent / "clients" / "node"
SDK_VERSIONS = ("0.54.0", "0.53.13")
BOTH_VERSIONS = ("test_python_start", "test_python_ops", "test_python_objects", "test_python_queries", "test_python_v2")
"""Where the older SDK runs in `make test-all`, too."""
GUARDS_OF_SCALE = ("test_calls", "test_objects", "test_search")
"""Tests of the interface that `make test` runs on ClickHouse, too."""
NODE_PACKAGES = ROOT / ".node" / "node_modules"
API_KEY = "0123456789abcdef0123456789abcdef01234567"
NOWHERE = "http://127.0.0.1:9"
RESULT = "RESULT "


_TIMEOUT = inspect.signature(httpx.Client).parameters["timeout"].default
_TIMEOUT.connect = _TIMEOUT.read = _TIMEOUT.write = _TIMEOUT.pool = 120.0
"""On a busy machine an answer may take longer than the five seconds that httpx waits unless told otherwise."""
# A client reads the certificates of all authorities, 20 ms of a processor; tests have thousands of clients.
httpx._transports.default.create_ssl_context = cache(httpx.create_ssl_context)


class Wire:
    """Plain HTTP to the server's trace routes, to see what is stored without any SDK."""

    def __init__(self, url: str, project: str) -> None:
        self.url = url
        self.project = project
        self.client = httpx.Client(base_url=url, auth=("api", API_KEY), timeout=60)

    def close(self) -> None:
        """Give the connections back."""
        self.client.close()

    def post(self, path: str, **body: Any) -> Any:
        """The JSON answer of POST `path`; `project_id` is added, and anything but 200 fails the test."""
        answer = self.client.post(path, json={"project_id": self.project, **body})
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:2000]}"
        return answer.json()

    def lines(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """The objects of a line stream."""
        answer = self.client.post(path, json={"project_id": self.project, **body})
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:2000]}"
        assert answer.headers["content-type"].startswith("application/jsonl")
        return [json.loads(line) for line in answer.text.splitlines() if line]

    def calls(self, **body: Any) -> list[dict[str, Any]]:
        """The calls of the project, oldest first."""
        return self.lines("/calls/stream_query", **body)

    def call(self, call_id: str, **body: Any) -> dict[str, Any]:
        """One call by its id."""
        call = self.post("/call/read", id=call_id, **body)["call"]
        assert call is not None, f"call {call_id} is not stored"
        return dict(call)

    def objects(self, **body: Any) -> list[dict[str, Any]]:
        """The object versions of the project, oldest first."""
        return list(self.post("/objs/query", **body)["objs"])

    def file(self, digest: str) -> bytes:
        """The bytes of a stored file."""
        answer = self.client.post("/file/content", json={"project_id": self.project, "digest": digest})
        assert answer.status_code == 200, answer.text
        return answer.content


class Client:
    """Runs scenario scripts of one SDK, each run in a home and a cache of its own, with no way to the outside."""

    def __init__(self, command: list[str], scripts: Path, server: str, project: str, folder: Path) -> None:
        self.command = command
        self.scripts = scripts
        self.server = server
        self.project = project
        self.folder = folder
        self.runs = itertools.count(1)

    def environment(self) -> dict[str, str]:
        """What every run gets; `run` adds the addresses of the server."""
        home = self.folder / f"run{next(self.runs)}"
        (home / "cache").mkdir(parents=True)
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(home),
            "SCENARIO_FOLDER": str(home),
            "SCENARIO_PROJECT": self.project,
            "WANDB_API_KEY": API_KEY,
            "WANDB_ERROR_REPORTING": "false",
            "WEAVE_PRINT_CALL_LINK": "false",
            "WEAVE_SERVER_CACHE_DIR": str(home / "cache"),
            "HTTP_PROXY": NOWHERE,
            "HTTPS_PROXY": NOWHERE,
            "NO_PROXY": "127.0.0.1",
            "NODE_PATH": str(NODE_PACKAGES),
        }

    def run(self, scenario: str, *, base_only: bool = False, timeout: float = 90, **extra: str) -> dict[str, Any]:
        """What the scenario reports: the JSON of its last `RESULT` line. Any traceback on stderr fails the test.

        `base_only` gives the SDK nothing but `WANDB_BASE_URL`, so that it finds the trace address itself.
        """
        environment = {**self.environment(), "WANDB_BASE_URL": self.server, **extra}
        if not base_only:
            environment["WF_TRACE_SERVER_URL"] = self.server
        done = subprocess.run(
            [*self.command, str(self.scripts / scenario)],
            env=environment,
            cwd=environment["HOME"],
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        transcript = f"{scenario} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
        assert done.returncode == 0, transcript
        assert "Traceback" not in done.stderr and "Traceback" not in done.stdout, transcript
        reported = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
        assert reported, transcript
        return dict(json.loads(reported[-1].removeprefix(RESULT)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Choose tests by where they are and what they import."""
    parser.addoption("--part", choices=selection.PARTS, help="one of the parts that `make test` runs in turn")
    parser.addoption("--package", help="only tests that import this package of heddle")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what was not chosen, before it is imported."""
    return None if selection.is_chosen(collection_path, config) else True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for garbage neither while tests are imported nor, later, among what they and their modules are."""
    gc.disable()
    try:
        return (yield)
    finally:
        collect_seldom()


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    """Leave out files that were named but not chosen; what is listed as different behind vLLM must be so there."""
    config.stash[selection.HAS_TORCH] = "torch" in sys.modules
    if "torch" in sys.modules:
        # Other tests run beside; threads that wait for each other take a core from them.
        sys.modules["torch"].set_num_threads(1)
    config.hook.pytest_deselected(items=[item for item in items if not selection.is_chosen(item.path, config)])
    items[:] = [item for item in items if selection.is_chosen(item.path, config)]
    for item in items if SWITCH else ():
        reason = reason_of(item.nodeid, SWITCH != LOOK_ALIKE)
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=SWITCH == LOOK_ALIKE))


@pytest.fixture(scope="module", autouse=True)
def memory_given_back() -> Iterator[None]:
    """Give what a module's tests have freed back to the system: a worker lives as long as all of them."""
    yield
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(autouse=True)
def own_loop(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide the event loop that a worker's browser keeps running, from all tests but those of the web interface."""
    loop = None if "page" in request.fixturenames else asyncio._get_running_loop()
    if loop is None:
        yield
        return
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(loop)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of modules that say `ON_BOTH_STORES = True` on a server of each kind of store."""
    if getattr(metafunc.module, "ON_BOTH_STORES", False) and "server" in metafunc.fixturenames:
        kinds = (
            scale.KINDS
            if metafunc.module.__name__.rpartition(".")[2] in GUARDS_OF_SCALE
            else selection.with_breadth(scale.KINDS)
        )
        metafunc.parametrize("server", kinds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """One heddle with default settings on a free port and a temporary folder, shared by the tests of a worker."""
    kind = getattr(request, "param", scale.EVERYWHERE)
    if kind != "sqlite" and (reason := scale.missing()):
        pytest.skip(reason)
    data = tmp_path_factory.mktemp("heddle") / "data"
    with HeddleProcess(data, **scale.settings_of(kind, data)) as process:
        if kind != "sqlite":
            clickhouse_process().remove_old_parts_soon(process.settings["store"])
        yield process


@pytest.fixture
def within_a_day() -> None:
    """Skip what counts by the day where the day (of UTC) is about to end."""
    if time.time() % 86_400 > 86_400 - 300:
        pytest.skip("the day ends within five minutes, and with it what a quota has counted")


@pytest.fixture
def project() -> str:
    """The name `entity/project` of a project that no other test uses."""
    return f"team-{uuid.uuid4().hex[:8]}/project-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def wire(server: HeddleProcess, project: str) -> Iterator[Wire]:
    """Raw HTTP to the test's project."""
    wire = Wire(server.url, project)
    yield wire
    wire.close()


def python_client(version: str, server: HeddleProcess, project: str, folder: Path) -> Client:
    """The weave SDK of that version; skips where `make clients` has not installed it."""
    python = ROOT / ".clients" / f"weave-{version}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"weave {version} is not installed: run `make clients`")
    return Client([str(python)], SCENARIOS, server.url, project, folder)


@pytest.fixture(params=selection.with_breadth(SDK_VERSIONS))
def sdk(request: pytest.FixtureRequest, server: HeddleProcess, project: str, tmp_path: Path) -> Client:
    """The Python SDK, once per supported version; the older one runs everywhere in `make soak` only."""
    is_short = os.environ.get("HEDDLE_SOAK") != "1"
    if (
        is_short
        and request.param != SDK_VERSIONS[0]
        and request.module.__name__.rpartition(".")[2] not in BOTH_VERSIONS
    ):
        pytest.skip(f"weave {request.param} runs this in `make soak`")
    return python_client(request.param, server, project, tmp_path)


@pytest.fixture
def node(server: HeddleProcess, project: str, tmp_path: Path) -> Client:
    """The TypeScript SDK under node; skips where node or the package is missing."""
    if not (NODE_PACKAGES / "weave").exists() or shutil.which("node") is None:
        pytest.skip("node or npm weave is not installed: run `make clients`")
    return Client(["node"], NODE_SCENARIOS, server.url, project, tmp_path)
