"""Unmodified clients in their newest releases, as `docs/compatibility.md` lists them: `make test-clients`."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heddle.inference.served_model import TINY_FOLDER
from tests.clients.compatibility import environments, page
from tests.clients.compatibility.observed import observe, observe_agent
from tests.clients.compatibility.table import CLIENTS, Client
from tests.conftest import API_KEY, Wire
from tests.conftest import Client as Runner
from tests.support.patience import strain
from tests.support.script_engine import scripted_settings
from tests.support.server import HeddleProcess, free_port
from tools.otel_cases.provider import Provider

pytestmark = [pytest.mark.client, pytest.mark.thorough]

SCENARIOS = Path(page.__file__).parent / "scenarios"
SCRIPT = Path(page.__file__).parent / "weather.json"
STEPS = Path(page.__file__).parent / "agents.json"
SERVERS = {
    "traces": "server",
    "models": "scripted",
    "texts": "server",
    "evaluation": "server",
    "agents": "server_of_agents",
}


@pytest.fixture(scope="session")
def provider() -> str:
    """The address of a provider with known answers."""
    return Provider(dated="-2025-08-07", reasoning_tokens=16).start()


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A heddle whose model plays `weather.json`."""
    folder = tmp_path_factory.mktemp("scripted")
    with HeddleProcess(folder / "data", trace_inference="on", **scripted_settings(SCRIPT, folder)) as process:
        yield process


@pytest.fixture(scope="session")
def server_with_grpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A heddle with a gRPC port."""
    pytest.importorskip("grpc", reason="grpcio is not installed")
    with HeddleProcess(tmp_path_factory.mktemp("grpc") / "data", otlp_grpc_port=free_port()) as process:
        yield process


@pytest.fixture(scope="session")
def server_of_agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A heddle whose model plays `agents.json`."""
    folder = tmp_path_factory.mktemp("agents")
    with HeddleProcess(folder / "data", trace_inference="on", **scripted_settings(STEPS, folder)) as process:
        yield process


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.id)
def test_client(client: Client, project: str, tmp_path: Path, request: pytest.FixtureRequest, provider: str) -> None:
    """Every aspect is as expected, and what is listed as a limit does not work."""
    stamp = environments.read_stamp(client)
    if stamp.problem:
        page.save(client, page.Result(skipped=stamp.problem))
        pytest.skip(f"{client.id}: {stamp.problem}")
    server: HeddleProcess = request.getfixturevalue("server_with_grpc" if client.over_grpc else SERVERS[client.kind])
    seen = run(client, server, provider, project, tmp_path)
    differences = {
        aspect: f"expected {json.dumps(wanted)}, got {json.dumps(seen.get(aspect))}"
        for aspect, wanted in client.expected.items()
        if seen.get(aspect) != wanted
    }
    works = [aspect for aspect in client.expected if aspect not in differences]
    fails = {aspect: client.limits.get(aspect, told) for aspect, told in differences.items()}
    page.save(client, page.Result(stamp.versions, stamp.runtime, works, fails))
    assert set(client.limits) <= set(client.expected)
    assert not [aspect for aspect in works if aspect in client.limits], "these limits are gone"
    unexpected = {aspect: told for aspect, told in differences.items() if aspect not in client.limits}
    assert not unexpected, "\n".join(f"{aspect}: {told}" for aspect, told in unexpected.items())


def run(client: Client, server: HeddleProcess, provider: str, project: str, folder: Path) -> dict[str, Any]:
    """What the scenario reports, and what it left on the server."""
    runner = Runner(environments.command_of(client), SCENARIOS, server.url, project, folder)
    endpoint = f"http://127.0.0.1:{server.settings['otlp_grpc_port']}" if client.over_grpc else server.url
    addresses = addresses_of(
        server.url, endpoint, project, server.url if client.kind in ("models", "texts", "agents") else provider
    )
    modules = environments.folder_of(client) / "node_modules"
    paths = {"PYTHONPATH": str(SCENARIOS), "NODE_PATH": str(modules), "PYTHONWARNINGS": "ignore"}
    seen = runner.run(client.scenario, timeout=180 * strain(), **addresses, **paths)
    if client.kind not in ("traces", "agents"):
        return seen
    with contextlib.closing(Wire(server.url, project)) as wire:
        if client.kind == "agents":
            return {**seen, **observe_agent(wire, seen["session"])}
        return {**observe(wire, list(client.expected)), **seen}


def addresses_of(url: str, endpoint: str, project: str, models: str) -> dict[str, str]:
    """What users of the clients set: heddle's address, the project, and where models are asked."""
    return {
        "HEDDLE_URL": url,
        "HEDDLE_MODEL_FOLDER": str(TINY_FOLDER),
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_HEADERS": f"project_id={project}",
        "OPENAI_BASE_URL": f"{models}/v1",
        "OPENAI_API_BASE": f"{models}/v1",
        "OPENAI_API_KEY": API_KEY,
        "OPENAI_PROJECT_ID": project,
        "ANTHROPIC_BASE_URL": models,
        "ANTHROPIC_API_KEY": API_KEY,
        "LANGFUSE_HOST": url,
        "LANGFUSE_PUBLIC_KEY": project,
        "LANGFUSE_SECRET_KEY": API_KEY,
        "LANGSMITH_API_KEY": API_KEY,
    }
