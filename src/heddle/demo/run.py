"""The whole demonstration: a server, a traced program, chats, what was stored, and a model that is taught."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.tree import Tree

from heddle.errors import HeddleError
from heddle.extras import install_command
from heddle.remote import Project, Remote
from heddle.wire.call_summary import cost_of, name_of, problem_of
from heddle.wire.calls import tokens_of
from heddle.wire.jsontypes import Json

Call = dict[str, Any]
_WIDTH = 36
_PRICES = {"default": "default table", "project": "this project"}


def show(reading: Project, console: Console) -> None:
    """Print everything; raises HeddleError where something that the program did is not there."""
    oldest_first = [{"field": "started_at", "direction": "asc"}]
    calls = reading.lines("/calls/stream_query", include_costs=True, include_feedback=True, sort_by=oldest_first)
    objects = reading.post("/objs/query", filter={"base_object_classes": ["Dataset"], "latest_only": True})["objs"]
    feedback = reading.post("/feedback/query", sort_by=[{"field": "created_at", "direction": "asc"}])["result"]
    if not (calls and objects and feedback):
        raise HeddleError(
            f"expected records are missing; stored: {len(calls)} calls, {len(objects)} datasets "
            f"and {len(feedback)} feedback items"
        )
    console.print(_traces(calls))
    _titled(console, "usage and costs", _models(calls))
    for dataset in objects:
        title = f"dataset {dataset['object_id']}, version {dataset['version_index']} ({dataset['digest'][:8]})"
        _titled(console, title, _dataset(reading, dataset))
    _titled(console, "feedback", _feedback(feedback, calls))


def show_thread(reading: Project, thread: str, console: Console) -> None:
    """Print the calls of a thread as trees; raises HeddleError where there are none."""
    oldest_first = [{"field": "started_at", "direction": "asc"}]
    chosen = {"thread_ids": [thread]}
    calls = reading.lines("/calls/stream_query", include_costs=True, sort_by=oldest_first, filter=chosen)
    if not calls:
        raise HeddleError("no calls are stored")
    console.print(_traces(calls))


def show_links(links: dict[str, str], console: Console) -> None:
    """Print addresses, each with what it shows."""
    for what, where in links.items():
        console.print(f" {what + ':':30} {escape(where)}", soft_wrap=True)


def _titled(console: Console, title: str, table: Table) -> None:
    console.print(f"\n[bold]{escape(title)}[/bold]")
    console.print(table)


def _traces(calls: list[Call]) -> Tree:
    children: dict[str | None, list[Call]] = defaultdict(list)
    for call in calls:
        children[call["parent_id"]].append(call)
    threads = {call["thread_id"] for call in calls if call["thread_id"]}
    of_threads = f" of thread {', '.join(sorted(threads))}" if threads else ""
    root = Tree(f"[bold]{len(calls)} calls in {len(children[None])} traces[/bold]{of_threads}")
    pending = [(root, call) for call in reversed(children[None])]
    while pending:
        branch, call = pending.pop()
        node = branch.add(_line(call))
        pending += [(node, child) for child in reversed(children[call["id"]])]
    return root


def _line(call: Call) -> str:
    weave, exception = call["summary"]["weave"], call["exception"]
    mark = "[green]✓[/green]" if weave["status"] == "success" else "[red]✗[/red]"
    parts = [f"{mark} [bold]{escape(name_of(call))}[/bold]"]
    if call["parent_id"] is None:
        parts.append(f"[dim]{escape(_asked(call['inputs'])[:_WIDTH])}[/dim]")
    parts.append(f"{weave.get('latency_ms', 0)} ms")
    if tokens := tokens_of(call["summary"]):
        parts.append(f"{tokens} tokens")
    if (cost := cost_of(weave.get("costs"))) is not None:
        parts.append(f"${cost:.6f}")
    if exception:
        message = problem_of(exception).rpartition(": ")[2]
        parts.append(f"[red]{escape(message[:_WIDTH])}[/red]")
    return "  ".join(parts)


def _asked(inputs: dict[str, Any]) -> str:
    """The question of the program, or the last message of a chat."""
    messages = inputs.get("messages")
    return str(messages[-1]["content"] if messages else inputs.get("question", ""))


def _models(calls: list[Call]) -> Table:
    """What each model used; the SDK sums the usage of a trace up into its root."""
    table = Table("model", "requests", "tokens in", "tokens out", "cost", "price from", box=None)
    rows: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0])
    prices: dict[str, str] = {}
    for root in (call for call in calls if call["parent_id"] is None):
        for model, usage in (root["summary"].get("usage") or {}).items():
            entry = (root["summary"]["weave"].get("costs") or {}).get(model)
            prices[model] = _PRICES[entry["pricing_level"]] if entry else "unpriced"
            cost = cost_of({model: entry}) if entry else None
            found = (usage["requests"], usage["prompt_tokens"], usage["completion_tokens"], cost or 0)
            rows[model] = [old + new for old, new in zip(rows[model], found, strict=True)]
    for model, (requests, prompt, completion, cost) in sorted(rows.items()):
        table.add_row(model, f"{requests:g}", f"{prompt:g}", f"{completion:g}", f"${cost:.6f}", prices[model])
    return table


def _dataset(reading: Project, dataset: dict[str, Any]) -> Table:
    digest = str(dataset["val"]["rows"]).rsplit("/", 1)[-1]
    rows = reading.post("/table/query", digest=digest, limit=10)["rows"]
    table = Table(*rows[0]["val"], box=None)
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row["val"].values()))
    return table


def _feedback(items: list[dict[str, Any]], calls: list[Call]) -> Table:
    names = {call["id"]: call["inputs"].get("question", name_of(call)) for call in calls}
    table = Table("on", "kind", "content", box=None)
    for item in items:
        target = names.get(item["weave_ref"].rsplit("/", 1)[-1], item["weave_ref"])
        table.add_row(escape(target[:_WIDTH]), item["feedback_type"], escape(_content(item["payload"])))
    return table


def _content(payload: dict[str, Any]) -> str:
    """The emoji or the note of the two built-in kinds, the pairs of any other."""
    plain = payload.get("emoji") or payload.get("note")
    return str(plain) if plain else ", ".join(f"{name}: {value}" for name, value in payload.items())


_NOWHERE = "http://127.0.0.1:9"
_START_LINE = "heddle: serving "


@contextmanager
def run_server(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
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


class Programs:
    """Runs modules in a home of their own, with no way to anywhere but the server."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self._home = folder / "home"
        self._home.mkdir()

    def lines(self, module: str, *arguments: str) -> Iterator[str]:
        """What a program prints, line by line; raises HeddleError at the end of one that failed."""
        command = [sys.executable, "-m", module, *arguments]
        with (self._home / "errors.log").open("w+") as errors:
            process = subprocess.Popen(
                command, env=self._environment(), cwd=self._home, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            assert process.stdout is not None
            with process:
                try:
                    yield from process.stdout
                except BaseException:
                    process.kill()
                    raise
            if process.returncode != 0:
                errors.seek(0)
                raise HeddleError(f"the program {module} failed:\n{errors.read()}")

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", ""),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "HOME": str(self._home),
            "TMPDIR": str(self._home),
            "WANDB_BASE_URL": self._address,
            "WANDB_API_KEY": "0" * 40,
            "WANDB_ERROR_REPORTING": "false",
            "WEAVE_PRINT_CALL_LINK": "false",
            "WEAVE_SERVER_CACHE_DIR": str(self._home / "cache"),
            "HTTP_PROXY": _NOWHERE,
            "HTTPS_PROXY": _NOWHERE,
            "NO_PROXY": "127.0.0.1",
        }


PROJECT = "demo/shop-assistant"
NAME = "preference"
STEPS = 25
EVALUATION = "preferred-answers"


def show_training(programs: Programs, address: str, console: Console) -> tuple[str, str]:
    """Run everything and print it; the names of the first and the last policy. Raises HeddleError when a part fails."""
    (made,) = _json_lines(programs.lines("heddle.demo.teach", address, PROJECT, NAME, "0"))
    model = made["model"]
    before = _evaluate(programs, address, f"{model['address']}:step0")
    console.print(
        f"Asked to say yes, no or maybe, it gets a reward of {before['reward']:.2f} "
        f"(yes 0.5, no 0.75, maybe 1): {before['answers']} answers to {before['questions']} questions."
    )
    steps = _teach(programs.lines("heddle.demo.teach", address, PROJECT, NAME, str(STEPS)), console)
    after = _evaluate(programs, address, f"{model['address']}:step{len(steps)}")
    table = Table("reward", "before", "after", box=None)
    rewards = (f"{before['reward']:.2f}", f"[bold green]{after['reward']:.2f}[/bold green]")
    table.add_row(f"evaluation, {after['questions']} questions that training never saw", *rewards)
    table.add_row(f"rollouts, first and last of {len(steps)} steps", *(f"{steps[i]['reward']:.2f}" for i in (0, -1)))
    console.print(table)
    pages = pages_of(address)
    links = {
        "the policies": f"{pages}/models",
        "the last training job": f"{pages}/training/{steps[-1]['job']}",
        "the evaluations side by side": f"{pages}/evaluations/compare?runs={before['call']},{after['call']}",
    }
    show_links(links, console)
    return f"{model['address']}:step0", f"{model['address']}:step{len(steps)}"


def pages_of(address: str) -> str:
    """Where the pages of the project begin."""
    return f"{address}/{PROJECT}/weave"


def _json_lines(lines: Iterable[str]) -> Iterator[Json]:
    """The JSON lines among what a program prints."""
    return (json.loads(line) for line in lines if line.startswith("{"))


def _evaluate(programs: Programs, address: str, model: str) -> Json:
    (said,) = _json_lines(programs.lines("heddle.demo.evaluate", address, PROJECT, model))
    return dict(said["evaluation"])


def _teach(lines: Iterable[str], console: Console) -> list[Json]:
    """The steps, shown as they come."""
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("reward {task.fields[reward]:.2f}"),
        TimeElapsedColumn(),
    )
    steps = []
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("training", total=STEPS, reward=0.0)
        for said in _json_lines(lines):
            if "step" in said:
                steps.append(said["step"])
                progress.update(bar, completed=said["step"]["number"], reward=said["step"]["reward"])
    return steps


THREAD = "demo-visit"
_NEEDED = {"demo": ("weave", "openai"), "inference": ("torch", "tokenizers"), "training": ("torch", "tokenizers")}
"""What the whole demonstration needs, by the extra that brings it."""


def run(keep: bool | None) -> None:
    """Everything; raises HeddleError when a part of it fails. None keeps the server where somebody is there to look."""
    lacking = [extra for extra, modules in _NEEDED.items() if not all(map(importlib.util.find_spec, modules))]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="heddle-demo-") as folder, run_server(Path(folder)) as (server, address):
        programs, stored = Programs(address, Path(folder)), Remote(address).project(PROJECT)
        _say(console, 1, f"a temporary server: {address}")
        if lacking:
            _show_example(stored, console)
            more = "drives the unmodified weave, OpenAI and OpenTelemetry SDKs, chats with a model and trains it"
            command = install_command(*lacking)
            console.print(f"\nWith more packages the demo also {more}: {command}", markup=False, soft_wrap=True)
        else:
            _show_everything(programs, stored, address, console)
        if keep or (keep is None and sys.stdin.isatty() and sys.stdout.isatty()):
            console.print(
                f"\nThe server keeps running: {address}/ (project {PROJECT}). Ctrl-C stops it and deletes its folder."
            )
            try:
                server.wait()
            except KeyboardInterrupt:
                print()
        else:
            console.print("\nThe server stops here; `heddle demo --keep` keeps it running so that you can look around.")


def _show_example(stored: Project, console: Console) -> None:
    """What needs no SDK and no model: the example project, as its page makes it."""
    _say(console, 2, "an example project: traces of a small assistant, a dataset, an evaluation and feedback")
    stored.post("/_ui/api/projects/example")
    _say(console, 3, "what heddle stored, read back through its API")
    show(stored, console)
    _say(console, 4, "where to see all of it", space=True)
    pages = pages_of(stored.remote.server)
    links = _links(stored, pages) | {"the evaluation": f"{pages}/evaluations"}
    for of_programs in ("the conversations", "try the model"):
        del links[of_programs]
    show_links(links, console)


def _show_everything(programs: Programs, stored: Project, address: str, console: Console) -> None:
    """The traced program, chats, spans, training and the regression test."""
    _say(console, 2, "a program traced by the unmodified weave SDK, which needs only that address")
    list(programs.lines("heddle.demo.program", PROJECT))
    _say(console, 3, "chats with the small model that heddle serves, through the unmodified OpenAI SDK")
    table = Table("chat", "asked", "answered", "tokens", box=None)
    for chat in _json_lines(programs.lines("heddle.demo.chats", address, PROJECT)):
        table.add_row(chat["kind"], escape(chat["question"]), escape(str(chat["answer"])), str(chat["tokens"]))
    console.print(table)
    _say(console, 4, "what heddle stored, the chats included, read back through its API")
    show(stored, console)
    _say(console, 5, "an agent that uses only OpenTelemetry: its spans become calls like any others", space=True)
    list(programs.lines("heddle.demo.spans", address, PROJECT, THREAD))
    show_thread(stored, THREAD, console)
    _say(console, 6, "the small model learns: evaluated, trained by rewards alone, evaluated again", space=True)
    first, last = show_training(programs, address, console)
    _say(console, 7, "a regression test: the server evaluates the new policy and the old one, row by row", space=True)
    list(programs.lines("heddle.demo.evaluate", PROJECT, EVALUATION))
    words = ("--project", PROJECT, "--model", last, "--baseline", first, "--fail-if", "score < 0")
    for line in programs.lines("heddle", "eval", "run", EVALUATION, *words, "--server", address):
        console.print(escape(line.rstrip()), soft_wrap=True)
    _say(console, 8, "where to see all of it", space=True)
    show_links(_links(stored, pages_of(address)), console)


def _links(stored: Project, pages: str) -> dict[str, str]:
    """The pages to begin with; the step that failed is found as anybody would find it."""
    failed = {"$eq": [{"$getField": "summary.weave.status"}, {"$literal": "error"}]}
    newest = [{"field": "started_at", "direction": "desc"}]
    (step,) = stored.lines("/calls/stream_query", query={"$expr": failed}, columns=["id"], sort_by=newest, limit=1)
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
