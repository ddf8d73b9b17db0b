"""Environments of the clients, below `.clients/compatibility/`: `python -m tests.clients.compatibility.environments`.

    ... environments                      # installs what is not installed yet
    ... environments openinference_openai # only these clients
    ... environments --upgrade            # the newest releases of today

An environment that cannot be made says why in its stamp; the tests of that client are skipped with this reason.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.clients.compatibility.table import CLIENTS, Client
from tests.support.pythons import find_python

ROOT = Path(__file__).resolve().parent.parent.parent.parent
FOLDER = ROOT / ".clients" / "compatibility"
TOOLS = ROOT / ".clients" / "tools" / "bin"
UV, NODE, NPM = str(TOOLS / "uv"), str(TOOLS / "node"), str(TOOLS / "npm")
"""npm chooses the newest releases that run on its own Node, so it is not the machine's."""
NEWEST_PYTHON = ("3.12", "3.11", "3.13")
"""In the order in which they are chosen."""
INSTALL_SECONDS = 900
_NAME = re.compile(r"^(@[\w.-]+/)?[\w.-]+")


@dataclass(frozen=True, slots=True)
class Stamp:
    """What an environment was made of, and what came of it."""

    packages: tuple[str, ...]
    versions: dict[str, str] = field(default_factory=dict)
    """The version of each package that was asked for."""
    runtime: str = ""
    """Such as `Python 3.12.1`."""
    problem: str = ""
    """Why there is no environment."""


def folder_of(client: Client) -> Path:
    """Where a client is installed."""
    return FOLDER / client.id


def read_stamp(client: Client) -> Stamp:
    """The state of a client's environment; `problem` says so where it is missing or was made for other packages."""
    path = folder_of(client) / ".installed"
    if not path.exists():
        return Stamp(client.packages, problem="not installed: run `make test-clients`")
    values = json.loads(path.read_text(encoding="utf-8"))
    stamp = Stamp(**{**values, "packages": tuple(values["packages"])})
    if stamp.packages != client.packages:
        return Stamp(client.packages, problem="installed with other packages: run `make test-clients`")
    return stamp


def command_of(client: Client) -> list[str]:
    """What runs a scenario of the client."""
    return [NODE] if client.language == "Node" else [str(folder_of(client) / "bin" / "python")]


def install(client: Client) -> Stamp:
    """A new environment of a client, with the newest releases."""
    folder = folder_of(client)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        stamp = _install_node(client, folder) if client.language == "Node" else _install_python(client, folder)
    except (OSError, subprocess.SubprocessError, LookupError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        stamp = Stamp(client.packages, problem=_reason(error))
    (folder / ".installed").write_text(json.dumps(asdict(stamp)), encoding="utf-8")
    return stamp


def _install_python(client: Client, folder: Path) -> Stamp:
    oldest = _number(client.python)
    python = next(
        (path for minor in NEWEST_PYTHON if _number(minor) >= oldest and (path := find_python(minor)) is not None), None
    )
    if python is None:
        raise LookupError(f"needs Python {client.python}, which is not installed")
    _run(UV, "venv", "--quiet", "--python", str(python), str(folder))
    _run(UV, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), *client.packages)
    listed = json.loads(_run(UV, "pip", "list", "--format", "json", "--python", str(folder / "bin" / "python")))
    known = {_plain(item["name"]): item["version"] for item in listed}
    versions = {name: known[_plain(name)] for name in map(_name, client.packages)}
    return Stamp(client.packages, versions, _run(str(folder / "bin" / "python"), "--version").strip())


def _install_node(client: Client, folder: Path) -> Stamp:
    _run(NPM, "install", "--prefix", str(folder), "--loglevel", "error", "--no-audit", "--no-fund", *client.packages)
    versions = {}
    for name in map(_name, client.packages):
        about = json.loads((folder / "node_modules" / name / "package.json").read_text(encoding="utf-8"))
        versions[name] = about["version"]
    return Stamp(client.packages, versions, f"Node {_run(NODE, '--version').strip().removeprefix('v')}")


def _run(*command: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=INSTALL_SECONDS, stdin=subprocess.DEVNULL
    )
    return done.stdout


def _reason(error: Exception) -> str:
    text = str(error.stderr or "") if isinstance(error, subprocess.CalledProcessError) else str(error)
    lines = [line.strip(" ×╰─▶│") for line in text.splitlines() if line.strip()]
    return " ".join(lines)[:300] or type(error).__name__


def _name(package: str) -> str:
    found = _NAME.match(package)
    assert found is not None, package
    return found[0]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def chosen(names: Sequence[str]) -> list[Client]:
    """The clients of these names, all without names; raises SystemExit for one that there is not."""
    unknown = set(names) - {client.id for client in CLIENTS}
    if unknown:
        raise SystemExit(f"no such client: {', '.join(sorted(unknown))}")
    return [client for client in CLIENTS if not names or client.id in names]


def main() -> None:
    """Install, two at a time, and tell each one's versions or the reason why there is none."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--upgrade", action="store_true")
    arguments = parser.parse_args()
    wanted = [client for client in chosen(arguments.names) if arguments.upgrade or read_stamp(client).problem]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        for client, stamp in zip(wanted, pool.map(install, wanted), strict=True):
            told = stamp.problem or ", ".join(f"{name} {version}" for name, version in stamp.versions.items())
            print(f"{client.id}: {'SKIPPED: ' if stamp.problem else ''}{told}", flush=True)


if __name__ == "__main__":
    main()
