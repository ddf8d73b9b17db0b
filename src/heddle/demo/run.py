"""Starts a server, runs the program against it, reads back what was stored."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heddle.demo.show import Reading, show
from heddle.errors import ExtraMissing, HeddleError

PROJECT = "demo/shop-assistant"
_NOWHERE = "http://127.0.0.1:9"
_START_LINE = "heddle: serving "
_PROGRAM_SECONDS = 120


def run(keep: bool) -> None:
    """The whole demonstration; raises HeddleError when a part of it fails."""
    if any(importlib.util.find_spec(name) is None for name in ("weave", "openai", "torch")):
        raise ExtraMissing(
            "The demo drives the real SDKs on a real model: pip install 'heddle[demo,inference]' installs them"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="heddle-demo-") as folder, _server(Path(folder)) as (server, address):
        console.print(f"[bold]1.[/bold] a server of its own: {address}")
        console.print(
            "[bold]2.[/bold] a program traced by the unmodified weave SDK, which knows nothing but that address"
        )
        _run("heddle.demo.program", PROJECT, address=address, folder=Path(folder))
        console.print(
            "[bold]3.[/bold] chats with the small model that heddle serves, through the unmodified OpenAI SDK"
        )
        _show_chats(_run("heddle.demo.chats", address, PROJECT, address=address, folder=Path(folder)), console)
        console.print("[bold]4.[/bold] what heddle stored, the chats included, read back through its API")
        show(Reading(address, PROJECT), console)
        if keep:
            console.print(
                f"\nThe server stays: {address}/docs (project {PROJECT}). Ctrl-C ends it and deletes its folder."
            )
            _wait(server)


@contextmanager
def _server(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A server on a free port with a temporary folder, and its address."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEDDLE_")}
    command = [sys.executable, "-m", "heddle", "serve", "--port", "0", "--data", str(folder / "data")]
    command += ["--trace-inference", "on"]
    with (folder / "server.log").open("w") as log:
        # In a session of its own: Ctrl-C reaches this process only, which then stops the server in order.
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, start_new_session=True
        )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line.startswith(_START_LINE):
            raise HeddleError(f"the server did not start:\n{(folder / 'server.log').read_text()}")
        yield server, line.removeprefix(_START_LINE).split()[0]
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()


def _run(module: str, *arguments: str, address: str, folder: Path) -> str:
    """What a program prints that runs in a home of its own, with no way to anywhere but the server."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "TMPDIR": str(home),
        "WANDB_BASE_URL": address,
        "WANDB_API_KEY": "0" * 40,
        "WANDB_ERROR_REPORTING": "false",
        "WEAVE_PRINT_CALL_LINK": "false",
        "WEAVE_SERVER_CACHE_DIR": str(home / "cache"),
        "HTTP_PROXY": _NOWHERE,
        "HTTPS_PROXY": _NOWHERE,
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, env=environment, cwd=home, capture_output=True, text=True, timeout=_PROGRAM_SECONDS, check=False
    )
    if done.returncode != 0:
        raise HeddleError(f"the program {module} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def _show_chats(printed: str, console: Console) -> None:
    table = Table("chat", "asked", "answered", "tokens", box=None)
    for line in printed.splitlines():
        chat = json.loads(line)
        table.add_row(chat["kind"], escape(chat["question"]), escape(str(chat["answer"])), str(chat["tokens"]))
    console.print(table)


def _wait(server: "subprocess.Popen[str]") -> None:
    try:
        server.wait()
    except KeyboardInterrupt:
        print()
