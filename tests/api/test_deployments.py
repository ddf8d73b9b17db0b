"""What the compose and Kubernetes files start, as processes with their variables, volumes, order and probes."""

import json
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import yaml

from tests.support import clickhouse, nginx, scale
from tests.support.nginx import Nginx
from tests.support.pods import Container, duration, interpolate, read_probe
from tests.support.postgres import postgres_server
from tests.support.s3 import S3Server
from tests.unit import test_deploy as files

KEY = "first-key-of-a-deployment"
PASSWORD = "password-of-the-stores"
Json = Any


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the user of the image can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="heddle-deployment-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def folders(root: Path, *places: str) -> dict[str, Path]:
    """A folder for each volume."""
    made = {place: root / place.strip("/") for place in places}
    for folder in made.values():
        folder.mkdir(parents=True, exist_ok=True)
    return made


def check_answers(url: str, *others: str) -> None:
    """The first key writes, makes another key that reads, and a stranger does neither; each server has it."""
    project = f"team/{uuid.uuid4().hex}"
    body = {"project_id": project}
    with httpx.Client(base_url=url) as stranger:
        refused = stranger.post("/calls/stream_query", json=body)
        assert refused.status_code == 401 and "no keys yet" not in refused.text
    with httpx.Client(base_url=url, auth=("api", KEY)) as client:
        start = {"project_id": project, "id": "one", "op_name": "o", "started_at": "2026-11-23T08:00:00Z"}
        start |= {"trace_id": "t", "attributes": {}, "inputs": {"text": "x" * 2_000_000}}
        whole = start | {"ended_at": "2026-11-23T08:00:01Z", "output": "done", "summary": {}}
        answer = client.post(f"/v2/{project}/calls/complete", json={"batch": [whole]})
        assert answer.status_code == 200, answer.text
        made = client.post("/_ui/api/keys", json={"user": "ann", "scopes": ["read"]}, headers={"x-heddle-ui": "1"})
        assert made.status_code == 200, made.text
    for other in (url, *others):
        with httpx.Client(base_url=other, auth=("api", made.json()["key"])) as reader:
            (line,) = reader.post("/calls/stream_query", json=body).text.splitlines()
            call = json.loads(line)
            assert (call["id"], call["output"], len(call["inputs"]["text"])) == ("one", "done", 2_000_000)
            assert reader.post("/calls/delete", json=body | {"call_ids": ["one"]}).status_code == 403


def compose(name: str) -> Json:
    """A compose file with its variables."""
    text = (files.DEPLOY / name).read_text(encoding="utf-8")
    return yaml.safe_load(interpolate(text, {"HEDDLE_BOOTSTRAP_KEY": KEY, "STORES_PASSWORD": PASSWORD}))


def variables_of_image() -> dict[str, str]:
    """What the image sets for the server, which here is installed elsewhere."""
    return {name: value for name, value in files.variables_of_image().items() if name != "PATH"}


def variables_of(service: Json) -> dict[str, str]:
    """What the server finds in its container."""
    return variables_of_image() | {name: str(value) for name, value in service["environment"].items()}


def volumes_of(service: Json, root: Path) -> dict[str, Path]:
    """The folders of a service's named volumes, and its /tmp."""
    return folders(root, *(volume.split(":")[1] for volume in service["volumes"]), "/tmp")


def health_check() -> list[str]:
    """The command of the image."""
    command: list[str] = json.loads(dict(files.stages()["cpu"])["HEALTHCHECK"].partition("CMD ")[2])
    return command


def test_compose_of_one_server(place: Path) -> None:
    service = compose("compose.single.yaml")["services"]["heddle"]
    volumes = volumes_of(service, place)
    with Container(variables_of(service), volumes) as container:
        assert container.run_check(health_check()) != 0
        container.start("serve").wait("/health", "/ready")
        assert container.run_check(health_check()) == 0
        check_answers(container.url)
        assert (volumes["/data"] / "heddle.db").exists()
        assert container.stop() == 0
    assert duration(service["stop_grace_period"]) > 30
    # The data outlives its container, and the key is not made twice.
    with Container(variables_of(service), volumes) as container:
        container.start("serve").wait("/ready")
        with httpx.Client(base_url=container.url, auth=("api", KEY)) as client:
            keys = client.get("/_ui/api/keys", headers={"x-heddle-ui": "1"}).json()["keys"]
        assert sorted(key["user"] for key in keys) == ["admin", "ann"]


def stores(variables: dict[str, str], clickhouse_name: str, postgres_name: str) -> dict[str, str]:
    """The same variables with stores of the test, which are called in the file what they are called there."""
    for name, host, port, made in (
        ("HEDDLE_STORE", clickhouse_name, 8123, clickhouse.clickhouse_process().new_database()),
        ("HEDDLE_CONTROL", postgres_name, 5432, postgres_server().new_database()),
    ):
        found = urlsplit(variables[name])
        assert (found.hostname, found.port, found.username, found.path) == (host, port, "heddle", "/heddle")
        variables = variables | {name: made}
    return variables


@pytest.mark.thorough
@pytest.mark.skipif(scale.missing() is not None, reason=scale.missing() or "")
@pytest.mark.skipif(nginx.missing() is not None, reason=nginx.missing() or "")
def test_compose_of_two_servers_behind_a_gateway(place: Path) -> None:
    services = compose("compose.yaml")["services"]
    service = services["heddle"]
    databases = services["clickhouse"]["environment"], services["postgres"]["environment"]
    assert databases[0] == {f"CLICKHOUSE_{name}": value for name, value in _account()}
    assert databases[1] == {f"POSTGRES_{name}": value for name, value in _account()}
    assert PASSWORD in variables_of(service)["HEDDLE_STORE"] and PASSWORD in variables_of(service)["HEDDLE_CONTROL"]
    # The order: stores, then servers, then the gateway.
    assert set(service["depends_on"]) == {"clickhouse", "postgres"} and set(services["gateway"]["depends_on"]) == {
        "heddle"
    }
    variables = stores(variables_of(service), "clickhouse", "postgres")
    with ExitStack() as stack:
        servers = [
            stack.enter_context(Container(variables, volumes_of(service, place)))
            for _ in range(service["deploy"]["replicas"])
        ]
        for server in servers:
            server.start("serve")
        for server in servers:
            server.wait("/health", "/ready")
            assert server.run_check(health_check()) == 0
        gateway = stack.enter_context(Nginx()).balance([server.port for server in servers])
        url = f"http://127.0.0.1:{gateway.port}"
        check_answers(url, *(server.url for server in servers))
        drain = float(variables["HEDDLE_SHUTDOWN_DRAIN"])
        assert duration(service["stop_grace_period"]) > drain + 30
        assert servers[0].stop() == 0
        check_answers(url, servers[1].url)


def _account() -> list[tuple[str, str]]:
    return [("DB", "heddle"), ("USER", "heddle"), ("PASSWORD", PASSWORD)]


def pod_of(name: str) -> Json:
    """The pod of one workload of deploy/kubernetes."""
    return dict(files.pods())[name]


def pod_variables(name: str) -> dict[str, str]:
    """What the server finds in its pod; the first key is in the Secret that is made by hand."""
    (container,) = pod_of(name)["containers"]
    found = variables_of_image() | files.environment(name, container)
    (entry,) = (entry for entry in container["env"] if entry["name"] == "HEDDLE_BOOTSTRAP_KEY")
    assert entry["valueFrom"]["secretKeyRef"] == {"name": files.BY_HAND, "key": "key"}
    return found | {"HEDDLE_BOOTSTRAP_KEY": KEY}


def start_pod(pod: Json, variables: dict[str, str], root: Path) -> Iterator[Container]:
    """A pod that has passed its probes, in their order."""
    (container,) = pod["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    with Container(variables, folders(root, *mounts)) as started:
        yield started.start("serve").wait(*(read_probe(container[probe], ports) for probe in files.PROBES))


@pytest.mark.thorough
def test_kubernetes_with_one_server(place: Path) -> None:
    pod = pod_of("single/heddle")
    for container in start_pod(pod, pod_variables("single/heddle"), place):
        check_answers(container.url)
        assert container.stop() == 0


@pytest.mark.thorough
@pytest.mark.skipif(scale.missing() is not None, reason=scale.missing() or "")
def test_kubernetes_with_several_servers(place: Path) -> None:
    pod = pod_of("heddle/heddle")
    with S3Server() as store:
        variables = stores(pod_variables("heddle/heddle"), "clickhouse", "postgres") | store.variables
        assert variables["HEDDLE_FILES"] == f"s3://{store.bucket.name}/files"
        for one in start_pod(pod, variables, place):
            for other in start_pod(pod, variables, place):
                check_answers(one.url, other.url)
                assert "kernels cannot be cached" not in other.log()
                assert other.stop() == 0
        assert [path for path in (store.bucket / "files").rglob("*") if path.is_file()]
