"""The files of deploy/ are right by their schemas, and agree with the code about settings, paths, ports and extras."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from heddle import settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = sorted(DEPLOY.glob("compose*.yaml"))
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
VARIABLES = {row.variable: row for row in settings.TABLE}
BY_HAND = "heddle-first-key"
"""The Secret that the files of Kubernetes say how to make."""
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
Json = Any


def run(program: str, *arguments: str) -> None:
    """Run one of the checkers, which must find nothing."""
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def loaded(path: Path) -> list[Json]:
    """The documents of a YAML file."""
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def resources() -> Iterator[tuple[Path, Json]]:
    """Every resource of Kubernetes with its file."""
    for path in KUBERNETES:
        for resource in loaded(path):
            yield path, resource


def pods() -> Iterator[tuple[str, Json]]:
    """The pod of every workload, under its name."""
    for path, resource in resources():
        if "template" in resource.get("spec", {}):
            yield f"{path.stem}/{resource['metadata']['name']}", resource["spec"]["template"]["spec"]


def is_ours(container: Json) -> bool:
    """True for a container that runs the server or a worker."""
    return str(container["image"]).startswith("heddle:")


def environment(name: str, container: Json) -> dict[str, str]:
    """What a container of a pod finds in its environment; `name` is that of the pod."""
    path = DEPLOY / "kubernetes" / f"{name.partition('/')[0]}.yaml"
    known = {(item["kind"], item["metadata"]["name"]): item for item in loaded(path)}
    found = {entry["name"]: str(entry.get("value", "")) for entry in container.get("env", [])}
    for source in container.get("envFrom", []):
        for kind, reference in source.items():
            resource = known["ConfigMap" if kind == "configMapRef" else "Secret", reference["name"]]
            found |= resource.get("data", {}) | resource.get("stringData", {})
    return found


def check_settings(variables: dict[str, str], origin: str) -> None:
    """Every HEDDLE_ variable is a setting, and its value one that the setting takes."""
    ours = {name: value for name, value in variables.items() if name.startswith("HEDDLE_")}
    assert settings.unknown_variables(ours) == [], origin
    settings.load({}, ours)


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_compose_files_fit_their_schema(path: Path) -> None:
    run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(path))


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.name)
def test_kubernetes_files_fit_their_schemas(path: Path) -> None:
    run("kubernetes-validate", "--strict", "--quiet", str(path))


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_compose_services_name_settings_volumes_and_files_that_exist(path: Path) -> None:
    (compose,) = loaded(path)
    for name, service in compose["services"].items():
        given = service.get("environment", {}).items()
        variables = {key: re.sub(r"\$\{[^}]*\}", "password-of-some-length", str(value)) for key, value in given}
        check_settings(variables, name)
        assert set(service.get("depends_on", {})) <= set(compose["services"])
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists(), volume
        build = service.get("build")
        if build:
            assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
            assert build["target"] in stages()


def images() -> Iterator[str]:
    """Every image that a container engine would pull or build."""
    yield from (service["image"] for path in COMPOSE for service in loaded(path)[0]["services"].values())
    yield from (container["image"] for _, pod in pods() for container in pod["containers"])
    yield from (stage[0][1] for stage in stages().values())


def test_images_have_a_version_and_those_of_others_a_digest() -> None:
    digests: dict[str, set[str]] = {}
    for image in images():
        name, _, digest = image.partition("@")
        assert re.search(r":[\w.-]+$", name) and not name.endswith(":latest"), image
        if not name.startswith("heddle:"):
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", digest), image
            digests.setdefault(name, set()).add(digest)
    assert len(digests) == 4
    assert {name: len(found) for name, found in digests.items()} == dict.fromkeys(digests, 1)


def test_servers_in_kubernetes_agree_with_the_code() -> None:
    seen = 0
    for name, pod in pods():
        assert pod["enableServiceLinks"] is False, "a Service named heddle would set HEDDLE_PORT to an address"
        for container in filter(is_ours, pod["containers"]):
            seen += 1
            assert pod["securityContext"]["runAsNonRoot"] is True
            check_settings(environment(name, container), name)
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            probed = [container[probe]["httpGet"] for probe in PROBES if probe in container]
            assert {probe["path"] for probe in probed} <= {"/health", "/ready"}
            assert all(ports[probe["port"]] == settings.Settings().port for probe in probed)
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts["data"] == variables_of_image()["HEDDLE_DATA"]
    assert seen == 3


def test_a_rolling_update_leaves_nobody_without_an_answer() -> None:
    kinds = {(item["kind"], item["metadata"]["name"]): item for item in loaded(DEPLOY / "kubernetes" / "heddle.yaml")}
    deployment = kinds["Deployment", "heddle"]
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    sleep = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = settings.Settings().shutdown_grace
    assert pod["terminationGracePeriodSeconds"] > sleep + grace
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert kinds["Service", "heddle"]["spec"]["selector"] == labels
    assert kinds["PodDisruptionBudget", "heddle"]["spec"]["selector"]["matchLabels"] == labels


def test_every_reference_inside_kubernetes_is_met() -> None:
    known = {(item["kind"], item["metadata"]["name"]) for _, item in resources()}
    for name, pod in pods():
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for volume in volumes.values():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or ("PersistentVolumeClaim", claim) in known, name
        for container in pod["containers"]:
            for entry in container.get("env", []):
                secret = entry.get("valueFrom", {}).get("secretKeyRef", {"name": BY_HAND})
                assert secret["name"] == BY_HAND or ("Secret", secret["name"]) in known, name
    for _, resource in resources():
        if resource["kind"] == "StatefulSet":
            assert ("Service", resource["spec"]["serviceName"]) in known


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile with what follows them."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, those of the stages below it first."""
    arguments = dict(rest.split("=", 1) for name, rest in instructions() if name == "ARG")
    made: dict[str, list[tuple[str, str]]] = {}
    current: list[tuple[str, str]] = []
    for name, rest in instructions():
        if name == "FROM":
            base, _, stage = rest.replace("${PYTHON}", arguments["PYTHON"]).partition(" AS ")
            current = made[stage] = list(made.get(base, [("FROM", base)]))
        else:
            current.append((name, rest))
    return made


def variables_of_image() -> dict[str, str]:
    """What the image sets for the server."""
    words = [word for name, rest in stages()["cpu"] if name == "ENV" for word in shlex.split(rest)]
    return dict(word.split("=", 1) for word in words)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_image_runs_as_a_user_with_one_volume_and_a_health_check(target: str) -> None:
    stage = stages()[target]
    last = dict(stage)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", last["USER"])
    data = variables_of_image()["HEDDLE_DATA"]
    assert [json.loads(rest) for name, rest in stage if name == "VOLUME"] == [[data]]
    assert "/health" in last["HEALTHCHECK"] and last["EXPOSE"] == str(settings.Settings().port)
    assert f":{last['EXPOSE']}/health" in last["HEALTHCHECK"]
    assert (json.loads(last["ENTRYPOINT"]), json.loads(last["CMD"])) == (["heddle"], ["serve"])
    assert stage[0][0] == "FROM" and stage[0][1].startswith("python:")
    check_settings(variables_of_image(), target)


def test_what_the_image_copies_and_installs_exists() -> None:
    known = stages()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    installed = 0
    for name, rest in instructions():
        if name == "COPY":
            words = rest.split()
            if words[0].startswith("--from="):
                assert words[0].removeprefix("--from=") in known
                continue
            for source in words[:-1]:
                assert (ROOT / source).exists() and f"!{source.removeprefix('./')}" in ignored, source
        files = re.findall(r"-r ([\w./-]+)", rest) if name == "RUN" else []
        assert all((ROOT / path).exists() for path in files) and ("--require-hashes" in rest) == bool(files)
        found = {Path(path).stem for path in files} & set(extras)
        if found:
            installed += 1
            assert {"inference", "training", "clickhouse", "postgres", "s3"} <= found
    assert installed == 2
    assert instructions()[0][0] == "ARG" and os.linesep.join(ignored).startswith("*")


def test_the_health_check_runs() -> None:
    command = json.loads(dict(stages()["cpu"])["HEALTHCHECK"].partition("CMD ")[2])
    compile(command[2], "health check", "exec")
    assert command[:2] == ["python", "-c"]
