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

from heddle.demo import loop, publish
from heddle.demo.loop import PROJECT
from heddle.demo.processes import Programs, serving
from heddle.demo.show import show, show_links, show_thread
from heddle.errors import ExtraMissing
from heddle.remote import Project, Remote

THREAD = "demo-visit"
_NEEDED = ("weave", "openai", "torch")


def run(keep: bool | None) -> None:
    """Everything; raises HeddleError when a part of it fails. None keeps the server where somebody is there to look."""
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        raise ExtraMissing(
            "The demo drives the real SDKs on a real model: pip install 'heddle[demo,inference]' installs them"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="heddle-demo-") as folder, serving(Path(folder)) as (server, address):
        programs, stored = Programs(address, Path(folder)), Remote(address).project(PROJECT)
        _say(console, 1, f"a server of its own: {address}")
        _say(console, 2, "a program traced by the unmodified weave SDK, which knows nothing but that address")
        list(programs.lines("heddle.demo.program", PROJECT))
        _say(console, 3, "chats with the small model that heddle serves, through the unmodified OpenAI SDK")
        _show_chats(list(programs.lines("heddle.demo.chats", address, PROJECT)), console)
        _say(console, 4, "what heddle stored, the chats included, read back through its API")
        show(stored, console)
        _say(console, 5, "an agent that knows OpenTelemetry only: its spans are calls like all others", space=True)
        list(programs.lines("heddle.demo.spans", address, PROJECT, THREAD))
        show_thread(stored, THREAD, console)
        _say(console, 6, "the small model is taught: evaluated, trained by rewards alone, evaluated again", space=True)
        first, last = loop.show(programs, address, console)
        _say(
            console, 7, "a regression gate: the server evaluates the new policy and the old one, row by row", space=True
        )
        list(programs.lines("heddle.demo.publish", PROJECT))
        words = ("--project", PROJECT, "--model", last, "--baseline", first, "--fail-if", "score < 0")
        for line in programs.lines("heddle", "eval", "run", publish.EVALUATION, *words, "--server", address):
            console.print(escape(line.rstrip()), soft_wrap=True)
        _say(console, 8, "all of it to look at", space=True)
        show_links(_links(stored, loop.pages_of(address)), console)
        if keep or (keep is None and sys.stdin.isatty() and sys.stdout.isatty()):
            console.print(f"\nThe server stays: {address}/ (project {PROJECT}). Ctrl-C ends it and deletes its folder.")
            _wait(server)
        else:
            console.print("\nThe server ends here; `make demo ARGS=--keep` leaves it running, to look around.")


def _links(stored: Project, pages: str) -> dict[str, str]:
    """The pages to begin with; the step that failed is found as anybody would find it."""
    named = {"$contains": {"input": {"$getField": "op_name"}, "substr": {"$literal": "find_order"}}}
    failed = {"$eq": [{"$getField": "summary.weave.status"}, {"$literal": "error"}]}
    (step,) = stored.lines("/calls/stream_query", query={"$expr": {"$and": [named, failed]}}, columns=["id"])
    return {
        "the project": pages,
        "the step that failed": f"{pages.removesuffix('/weave')}/r/call/{step['id']}",
        "the conversations": f"{pages}/threads",
        "what it cost": f"{pages}/costs",
        "try the model": f"{pages}/playground",
        "every route": f"{pages.split('/demo/')[0]}/docs",
    }


def _say(console: Console, number: int, text: str, space: bool = False) -> None:
    console.print(f"{chr(10) if space else ''}[bold]{number}.[/bold] {text}")


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
