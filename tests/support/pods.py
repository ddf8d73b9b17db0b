"""What the files of deploy/ start, as plain processes: their variables, volumes and probes, with ports of the test."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.server import free_port

_READY_WITHIN = 180.0
_USER = 10001
"""The user of the image."""
_UNPRIVILEGED = ("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--pdeathsig=KILL")
_AS_USER = (f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups")


class Container:
    """A server as a container engine runs it: nothing but its variables, its volumes to write to, no privileges.

    Where this may make mounts, the rest of the file system is read-only; where its Python can be reached by other
    users, it runs as the user of the image.
    """

    def __init__(self, variables: Mapping[str, str], volumes: Mapping[str, Path]) -> None:
        """`volumes` are folders by the place at which the container has them; /tmp is needed."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._volumes = dict(volumes)
        self._variables = {name: self._place(value) for name, value in variables.items()}
        # Every container has a network of its own; here they share one.
        self._variables |= {"HEDDLE_PORT": str(self.port), "HEDDLE_HOST": "127.0.0.1"}
        self._process: subprocess.Popen[bytes] | None = None
        self.log_path = volumes["/tmp"].parent / f"{self.port}.log"

    def _place(self, value: str) -> str:
        """A value with the folders of the test in place of volumes."""
        for place, folder in self._volumes.items():
            if f"{value}/".startswith(f"{place}/"):
                return f"{folder}{value.removeprefix(place)}"
        return value

    def start(self, *arguments: str) -> "Container":
        """Start `heddle ...`."""
        python, is_user = _python()
        keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        paths = os.pathsep.join(path for path in sys.path if path and Path(path).is_dir())
        environment = keep | {"PYTHONPATH": paths, "TMPDIR": str(self._volumes["/tmp"]), "HOME": "/nonexistent"}
        command = [python, "-m", "heddle", *arguments]
        if os.geteuid() == 0:
            for folder in self._volumes.values() if is_user else ():
                shutil.chown(folder, _USER, _USER)
            command = [*_UNPRIVILEGED, *(_AS_USER if is_user else ()), *command]
            if _may_mount():
                binds = "".join(f"mount --bind '{folder}' '{folder}' && " for folder in self._volumes.values())
                command = [
                    "unshare",
                    "--mount",
                    "sh",
                    "-c",
                    f'{binds}mount -o remount,bind,ro / && exec "$@"',
                    "-",
                    *command,
                ]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, env=environment | self._variables, stdout=log, stderr=log)
        return self

    def answers(self, path: str) -> bool:
        """Whether a probe of HTTP is content."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return bool(200 <= answer.status < 400)
        except (urllib.error.URLError, OSError):
            return False

    def wait(self, *paths: str) -> "Container":
        """Wait until all probes are content, one after the other; raises RuntimeError with the log."""
        deadline = time.monotonic() + _READY_WITHIN
        for path in paths:
            while not self.answers(path):
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{path} of the container does not answer:\n{self.log()}")
                time.sleep(0.05)
        return self

    def run_check(self, command: list[str]) -> int:
        """The exit code of a health check of the container."""
        words = [word.replace(":8470", f":{self.port}") for word in command]
        words[0] = sys.executable if words[0] == "python" else words[0]
        return subprocess.run(words, capture_output=True).returncode

    def log(self) -> str:
        """What it printed."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def stop(self) -> int:
        """SIGTERM, as an engine sends it, and the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(_READY_WITHIN)

    def __enter__(self) -> "Container":
        return self

    def __exit__(self, *failure: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


_PROBE = "import sys, subprocess, orjson, heddle; subprocess.run([sys.executable, '-c', ''], check=True)"


def interpolate(value: str, variables: Mapping[str, str]) -> str:
    """A text of a compose file with its variables; raises KeyError for one that must be given and is not."""

    def fill(match: re.Match[str]) -> str:
        name, _, rest = match[1].partition(":")
        return variables.get(name) or (rest[1:] if rest.startswith("-") else variables[name])

    return re.sub(r"\$\{([^}]*)\}", fill, value)


def duration(text: str) -> float:
    """Seconds of a compose file's duration."""
    match = re.fullmatch(r"(\d+)(s|m)", text)
    assert match is not None, text
    return int(match[1]) * (60 if match[2] == "m" else 1)


@cache
def _may_mount() -> bool:
    command = ["unshare", "--mount", "mount", "-o", "remount,bind,ro", "/"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@cache
def _python() -> tuple[str, bool]:
    """A Python that has this one's packages, and whether users of no privileges can start it with them."""
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/python{own}"):
        command = [*_UNPRIVILEGED, *_AS_USER, python, "-c", _PROBE]
        environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PATH": os.environ["PATH"]}
        if os.geteuid() == 0 and subprocess.run(command, env=environment, capture_output=True).returncode == 0:
            return python, True
    return sys.executable, False


Json = Any


def read_probe(probe: Json, ports: Mapping[str, int]) -> str:
    """The path of a probe of Kubernetes, whose port must be the server's."""
    assert ports[probe["httpGet"]["port"]] == 8470, json.dumps(probe)
    return str(probe["httpGet"]["path"])
