"""The chart of deploy/helm: what Helm makes of it, and what it refuses."""

import platform
import re
import shlex
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import yaml

from heddle import settings
from tools import kubernetes

pytestmark = pytest.mark.skipif(
    kubernetes.find_helm() is None, reason=f"no Helm for {platform.machine()}: make clients installs it on x86_64 Linux"
)
Json = Any
EVERYTHING = (
    "--values", kubernetes.SCALED, "--set", "trainer.enabled=true,ingress.enabled=true,ingress.path=/tools/heddle/",
    "--set", "ingress.tlsSecret=certificate,ingress.className=nginx,serviceMonitor.enabled=true",
    "--set", "networkPolicy.enabled=true,otlpGrpcPort=4317,firstKey.value=first-key-of-a-chart,image.tag=",
    "--set", f"image.digest=sha256:{'0' * 64},settings.max_file=2147483648,settings.strict_fields=true",
    "--set", "settings.log_format=json,settings.shutdown_grace=90,resources.limits.nvidia\\.com/gpu=1",
)  # fmt: skip


def made(*arguments: str) -> dict[tuple[str, str], Json]:
    """The resources by kind and name; each but those of other projects must fit the schema of Kubernetes."""
    found = [one for one in yaml.safe_load_all(kubernetes.render(*arguments)) if one]
    for one in found:
        if not one["apiVersion"].startswith("monitoring."):
            kubernetes_validate.validate(one, "1.34", strict=True)
    assert len({(one["kind"], one["metadata"]["name"]) for one in found}) == len(found)
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def loaded(resources: dict[tuple[str, str], Json]) -> settings.Settings:
    """The settings of a server in a pod; raises BadSetting."""
    (pod,) = (
        one["spec"]["template"]["spec"]
        for (_, name), one in resources.items()
        if "template" in one.get("spec", {}) and name == "heddle"
    )
    (container,) = pod["containers"]
    variables: dict[str, str] = {}
    for source in container["envFrom"]:
        kind, key = ("ConfigMap", "configMapRef") if "configMapRef" in source else ("Secret", "secretRef")
        resource = resources[kind, source[key]["name"]]
        variables |= resource.get("data", {}) | resource.get("stringData", {})
    for entry in container.get("env", []):
        secret = entry["valueFrom"]["secretKeyRef"]
        variables[entry["name"]] = resources["Secret", secret["name"]]["stringData"][secret["key"]]
    return settings.load({}, variables)


def test_helm_finds_nothing_wrong() -> None:
    for arguments in ((), ("--values", kubernetes.SCALED)):
        command = [str(kubernetes.find_helm()), "lint", "--strict", str(kubernetes.CHART), *arguments]
        checked = subprocess.run(command, capture_output=True, text=True, cwd=kubernetes.ROOT)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", kubernetes.FILES)
def test_the_files_of_kubernetes_are_those_of_the_chart(name: str) -> None:
    written = (kubernetes.ROOT / "deploy" / "kubernetes" / name).read_text(encoding="utf-8")
    assert written == kubernetes.make_file(name), "run `make kubernetes`"


def test_one_server_with_a_volume_of_its_own() -> None:
    resources = made()
    assert {kind for kind, _ in resources} == {"ConfigMap", "Service", "StatefulSet"}
    found = loaded(resources)
    assert (found.auth, found.model, found.root_path, found.public_url) == ("on", "heddle-tiny", "/", "none")


def test_everything_at_once() -> None:
    resources = made(*EVERYTHING)
    found = loaded(resources)
    assert (found.root_path, found.public_url) == ("/tools/heddle", "https://heddle.example.com/tools/heddle")
    assert (found.max_file, found.otlp_grpc_port, found.strict_fields) == (2 << 30, 4317, "on")
    assert (found.bootstrap_key, found.log_format, found.files) == ("first-key-of-a-chart", "json", "s3://heddle/files")
    pod = resources["Deployment", "heddle"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert container["image"] == f"heddle@sha256:{'0' * 64}"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod["spec"]["terminationGracePeriodSeconds"] > 90 + 5
    service = resources["Service", "heddle"]
    assert service["spec"]["selector"] == pod["metadata"]["labels"]
    names = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == names == {"http", "otlp-grpc"}
    (rule,) = resources["Ingress", "heddle"]["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (path["path"], path["backend"]["service"]) == (
        "/tools/heddle/",
        {"name": "heddle", "port": {"name": "http"}},
    )
    monitor = resources["ServiceMonitor", "heddle"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [(one["port"], one["path"]) for one in monitor["endpoints"]] == [("http", "/metrics")]
    policy = resources["NetworkPolicy", "heddle"]["spec"]
    assert policy["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert {port["port"] for one in policy["ingress"] for port in one["ports"]} == names
    trainer = resources["StatefulSet", "heddle-trainer"]["spec"]["template"]
    assert trainer["metadata"]["labels"] != pod["metadata"]["labels"], "the service would send requests to workers"


def test_the_command_of_the_manual_makes_a_server_with_an_ingress() -> None:
    page = (kubernetes.ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^helm install heddle deploy/helm/heddle (.*?)^```", page, re.DOTALL | re.MULTILINE)
    resources = made(*shlex.split(command.replace("\\\n", " ")))
    assert {kind for kind, _ in resources} == {"ConfigMap", "Service", "StatefulSet", "Ingress"}
    (container,) = resources["StatefulSet", "heddle"]["spec"]["template"]["spec"]["containers"]
    (key,) = container["env"]
    assert key["valueFrom"]["secretKeyRef"] == {"name": "heddle-first-key", "key": "key"}


def test_a_changed_setting_starts_the_servers_anew() -> None:
    def checksum(*arguments: str) -> str:
        (found,) = (one for (kind, _), one in made(*arguments).items() if kind == "StatefulSet")
        return str(found["spec"]["template"]["metadata"]["annotations"]["checksum/settings"])

    assert checksum() == checksum() != checksum("--set", "settings.log_level=debug")
    assert checksum() != checksum("--set", "firstKey.value=another-key-of-a-chart")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("mode=many", "mode"),
        ("mode=scaled", "mode scaled needs HEDDLE_STORE and HEDDLE_CONTROL"),
        ("trainer.enabled=true", "trainer needs mode scaled"),
        ("replica=2", "replica"),
        ("settings.LOG_LEVEL=debug", "LOG_LEVEL"),
        ("firstKey.value=short", "/firstKey/value"),
        ("image.digest=sha256:12", "/image/digest"),
        ("ingress.path=heddle", "/ingress/path"),
        ("persistence.size=much", "/persistence/size"),
        ("serviceMonitor.interval=often", "/serviceMonitor/interval"),
    ],
)
def test_wrong_values_are_refused_by_name(wrong: str, told: str) -> None:
    with pytest.raises(RuntimeError, match=told):
        kubernetes.render("--set", wrong)


def test_a_value_that_is_no_setting_stops_the_server() -> None:
    with pytest.raises(settings.BadSetting, match="HEDDLE_LOG_LEVLE is not a setting of heddle: did you mean"):
        loaded(made("--set", "settings.log_levle=debug"))
