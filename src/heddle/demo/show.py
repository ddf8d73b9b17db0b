"""What was stored, read back through the API and printed: the traces, the prices, the dataset, the feedback."""

from collections import defaultdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from heddle.errors import HeddleError
from heddle.remote import Project
from heddle.wire.call_summary import cost_of, name_of, problem_of, tokens_of

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
        raise HeddleError(f"stored are {len(calls)} calls, {len(objects)} datasets and {len(feedback)} feedback items")
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
        raise HeddleError("no call is stored")
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
    if tokens := tokens_of(call):
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
