"""Where a reader tries a page: a folder, a shell, a server, and the environments that the SDKs are installed in."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from types import TracebackType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import NODE_PACKAGES, NOWHERE
from tests.docs.blocks import ROOT
from tests.support.patience import strain
from tests.support.server import free_port

ADDRESS = re.compile(r"\b(127\.0\.0\.1|localhost):8470\b")
CLIENTS = {"art": "art-0.5.18", "weave": "weave-0.54.0", "openai": "openai-3.57.0"}
"""Where a program runs that imports a package; all others run beside heddle."""
OTHERS = {"pre-commit"}
"""Packages that pages have installed and no environment of the tests holds."""
_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_SECONDS = 120.0
_SHIMS = {
    # What serves goes on in the background, as in another terminal.
    "heddle": """
        if [ "$1" != serve ]; then exec "$PYTHON" -m heddle "$@"; fi
        printf '%s\\n' "$@" > "$DESK/orders"
        answer=$(cat "$DESK/answers")
        printf '%s\\n' "$answer"
        case "$answer" in "heddle: serving "*) ;; *) exit 1 ;; esac
    """,
    # A target is looked up, not made: each has a test of its own.
    "make": """
        "$MAKE" -n -C "$ROOT" "$@" > /dev/null
        if [ "$1" = serve ]; then exec heddle serve; fi
    """,
    "pip": 'printf "%s\\n" "$*" >> "$DESK/installed"\n',
}


class Desk:
    """Runs blocks one after the other; a context manager that ends what they started.

    `words` are what a page leaves to its reader (ids, paths, addresses), by what stands for them there.
    """

    def __init__(self, folder: Path, words: Mapping[str, str]) -> None:
        self.folder = folder / "desk"
        self.words = dict(words)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.ends_with = 0
        """The exit code that the lines of the next block have."""
        self._hidden = folder / "hidden"
        self._server: subprocess.Popen[bytes] | None = None
        self.environment = self._clean_environment()

    def _clean_environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self._hidden / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self._hidden / "home"),
            "TMPDIR": str(self._hidden),
            "LANG": "C.UTF-8",
            "COLUMNS": "120",
            "HTTP_PROXY": NOWHERE,
            "HTTPS_PROXY": NOWHERE,
            "NO_PROXY": "127.0.0.1",
            "HEDDLE_PORT": str(self.port),
            "HEDDLE_SERVER": self.url,
            "WANDB_ERROR_REPORTING": "false",
            "WANDB_SILENT": "true",
            "DESK": str(self._hidden),
            "ROOT": str(ROOT),
            "PYTHON": sys.executable,
            "MAKE": shutil.which("make") or "make",
        }

    def __enter__(self) -> "Desk":
        (self._hidden / "home").mkdir(parents=True)
        self.folder.mkdir()
        (self._hidden / "bin").mkdir()
        # An answer that is no success fails a line with curl, which it does not by itself.
        (self._hidden / "home" / ".curlrc").write_text("fail-with-body\nshow-error\n")
        for name, text in _SHIMS.items():
            shim = self._hidden / "bin" / name
            shim.write_text(f"#!/bin/sh\nset -eu\n{text}")
            shim.chmod(0o700)
        for name in ("orders", "answers"):
            os.mkfifo(self._hidden / name)
        threading.Thread(target=self._take_orders, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        (self._hidden / "orders").write_text("")

    def _take_orders(self) -> None:
        while order := (self._hidden / "orders").read_text():
            (self._hidden / "answers").write_text(self.serve(*order.splitlines()[1:]))

    def serve(self, *arguments: str) -> str:
        """Start the server, in place of the one that runs: its first line, or what it printed when it failed."""
        self.stop()
        log = self._hidden / "server.log"
        command = [sys.executable, "-m", "heddle", "serve", *arguments]
        with log.open("wb") as out:
            self._server = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=out, stderr=out)
        deadline = time.monotonic() + 60 * strain()
        while self._server.poll() is None and time.monotonic() < deadline:
            lines = [line for line in log.read_text().splitlines() if line.startswith("heddle: serving ")]
            if lines and self._is_ready():
                return lines[0]
            time.sleep(0.05)
        return log.read_text() or "the server said nothing"

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/ready", timeout=10):
                return True
        except OSError:
            return False

    def log(self) -> str:
        """What the last server printed."""
        return (self._hidden / "server.log").read_text()

    def have_server(self) -> None:
        """Start a server with its defaults, if none runs."""
        if self._server is None or self._server.poll() is not None:
            told = self.serve()
            assert told.startswith("heddle: serving "), told

    def stop(self) -> None:
        """Stop the server, if there is one."""
        if self._server is not None and self._server.poll() is None:
            self._server.terminate()
            self._server.wait(60 * strain())

    def as_told(self, text: str) -> str:
        """What a reader types: the page's text with this server's address and his own words."""
        for word, own in self.words.items():
            text = text.replace(word, own)
        return ADDRESS.sub(f"127.0.0.1:{self.port}", text)

    def shell(self, text: str) -> str:
        """Run lines in bash, which stops at the first that fails; what they export stays. Their output."""
        variables = self._hidden / "variables"
        script = f"trap 'env -0 > {shlex.quote(str(variables))}' EXIT\nset -euo pipefail\n{self.as_told(text)}\n"
        out = self._run(["bash", "-c", script], self.ends_with)
        given = (item.partition("=") for item in variables.read_text().split("\0") if item)
        own = {"PWD", "OLDPWD", "SHLVL", "_"}
        self.environment = {name: value for name, _, value in given if name not in own}
        self._check_installed()
        return out

    def python(self, text: str) -> str:
        """Run a program where what it imports is installed; skips where that is nowhere. Its output."""
        imported = set(re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE))
        where = next((folder for name, folder in CLIENTS.items() if name in imported), None)
        python = Path(sys.executable) if where is None else ROOT / ".clients" / where / "bin" / "python"
        if not python.exists():
            pytest.skip(f"{where} is not installed: run `make clients`")
        (self.folder / "program.py").write_text(self.as_told(text), encoding="utf-8")
        return self._run([str(python), "program.py"])

    def session(self, text: str) -> str:
        """Run the commands behind `$` of a session, of which each must print what stands below it; numbers may differ.

        Ids in what was printed take the place of the page's ids in what follows.
        """
        for command, expected in commands_of(text):
            script = f"set -uo pipefail\n(exit ${{CODE:-0}})\n{self.as_told(command)}\n"
            deadline = time.monotonic() + _SECONDS
            while True:
                done = self._finished(["bash", "-c", script])
                self.environment["CODE"] = str(done.returncode)
                difference = unlike(expected, done.stdout)
                if difference is None or "/read " not in command or time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            assert difference is None, (
                f"$ {command}\nprinted\n{done.stdout}{done.stderr}\nwhere the page has\n{difference}"
            )
            self.words |= dict(zip(_ID.findall(expected), _ID.findall(done.stdout), strict=False))
        return ""

    def typescript(self, text: str) -> str:
        """Check the types of a module and run it under node; skips where the packages are missing. Its output."""
        if not (NODE_PACKAGES / "weave").exists() or shutil.which("node") is None:
            pytest.skip("node or npm weave is not installed: run `make clients`")
        folder = self._hidden / "typescript"
        folder.mkdir(exist_ok=True)
        (folder / "program.mts").write_text(self.as_told(text), encoding="utf-8")
        if not (folder / "node_modules").exists():
            (folder / "node_modules").symlink_to(NODE_PACKAGES)
        compiler = NODE_PACKAGES / ".bin" / "tsc"
        options = "--strict --skipLibCheck --target es2022 --module nodenext --types node"
        types = ["--typeRoots", str(folder / "node_modules" / "@types")]
        self._run([str(compiler), *options.split(), *types, str(folder / "program.mts")])
        return self._run(["node", str(folder / "program.mjs")])

    def _finished(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS * strain(),
            check=False,
        )

    def _run(self, command: list[str], code: int = 0) -> str:
        done = self._finished(command)
        told = f"ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert done.returncode == code and "Traceback" not in done.stderr, told
        return done.stdout

    def _check_installed(self) -> None:
        """What `pip install` was asked for is what the environments of these tests hold."""
        asked = self._hidden / "installed"
        for line in asked.read_text().splitlines() if asked.exists() else ():
            verb, *words = line.split()
            assert verb == "install", line
            for word in words:
                if not word.startswith("-") and not word.startswith("https://"):
                    check_requirement(word)
        asked.unlink(missing_ok=True)


def check_requirement(word: str) -> None:
    """A checkout of heddle with extras that it has, or a package in a version that an SDK's environment holds."""
    ours = re.fullmatch(r"\./?(?:heddle)?(?:\[([\w,]+)\])?", word)
    if ours:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(filter(None, (ours[1] or "").split(","))) <= set(extras), word
        return
    wanted = Requirement(word)
    name = canonicalize_name(wanted.name)
    places = [
        str(path) for name in CLIENTS.values() for path in (ROOT / ".clients" / name).glob("lib/python3*/site-packages")
    ]
    found = [item for path in (places, sys.path) for item in distributions(path=path)]
    versions = {item.version for item in found if canonicalize_name(item.metadata["Name"]) == name}
    assert name in OTHERS or any(wanted.specifier.contains(version) for version in versions), word


def commands_of(session: str) -> list[tuple[str, str]]:
    """The commands of a session, each with the output below it."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        length = next(count for count in range(1, len(lines) + 1) if is_whole("".join(lines[:count])))
        found.append(("".join(lines[:length]).strip(), "".join(lines[length:])))
    return found


def is_whole(command: str) -> bool:
    """Whether a shell would not ask for more."""
    try:
        shlex.split(command)
    except ValueError:
        return False
    return not command.rstrip().endswith("\\")


def unlike(expected: str, printed: str) -> str | None:
    """The first line of a page that is not in what was printed, in this order; `...` is anything, numbers are equal."""
    rest = list(filter(None, map(shape_of, printed.splitlines())))
    for line in re.sub(r"\.\.\.\n +", "...", expected).splitlines():
        pattern = ".*".join(re.escape(part.strip()) for part in shape_of(line).split("..."))
        place = next((number for number, other in enumerate(rest) if re.fullmatch(pattern, other)), None)
        if pattern and place is None:
            return line
        rest = rest[place + 1 :] if pattern and place is not None else rest
    return None


def shape_of(line: str) -> str:
    """A line without its ids, numbers and widths."""
    return re.sub(r"[\s─]+", " ", re.sub(r"[-+]?\d+(?:\.\d+)?(?:e-?\d+)?", "#", _ID.sub("ID", line))).strip()
