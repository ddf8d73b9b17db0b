"""What was stored, read back through the API and printed: the traces, the prices, the dataset, the feedback."""

import json
import urllib.request
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from heddle.errors import HeddleError
from heddle.wire.refs import operation_name

Call = dict[str, Any]
_WIDTH = 36
_PRICES = {"default": "default table", "project": "this project"}
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Reading:
    """The API of one server, for one project."""

    address: str
    project: str

    def post(self, path: str, **body: Any) -> str:
        """The text of an answer."""
        data = json.dumps({"project_id": self.project, **body}).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"})
        with _OPENER.open(request, timeout=30) as answer:
            return str(answer.read().decode())

    def json(self, path: str, **body: Any) -> Any:
        """A JSON answer."""
        return json.loads(self.post(path, **body))

    def lines(self, path: str, **body: Any) -> list[Call]:
        """The objects of a line stream."""
        return [json.loads(line) for line in self.post(path, **body).splitlines()]


def show(reading: Reading, console: Console) -> None:
    """Print everything; raises HeddleError where something that the program did is not there."""
    oldest_first = [{"field": "started_at", "direction": "asc"}]
    calls = reading.lines("/calls/stream_query", include_costs=True, include_feedback=True, sort_by=oldest_first)
    objects = reading.json("/objs/query", filter={"base_object_classes": ["Dataset"], "latest_only": True})["objs"]
    feedback = reading.json("/feedback/query", sort_by=[{"field": "created_at", "direction": "asc"}])["result"]
    if not (calls and objects and feedback):
        raise HeddleError(f"stored are {len(calls)} calls, {len(objects)} datasets and {len(feedback)} feedback items")
    console.print(_traces(calls))
    _titled(console, "usage and costs", _models(calls))
    for dataset in objects:
        title = f"dataset {dataset['object_id']}, version {dataset['version_index']} ({dataset['digest'][:8]})"
        _titled(console, title, _dataset(reading, dataset))
    _titled(console, "feedback", _feedback(feedback, calls))


def _titled(console: Console, title: str, table: Table) -> None:
    console.print(f"\n[bold]{escape(title)}[/bold]")
    console.print(table)


def _name(call: Call) -> str:
    return str(call["summary"]["weave"].get("trace_name") or operation_name(call["op_name"]))


def _traces(calls: list[Call]) -> Tree:
    children: dict[str | None, list[Call]] = defaultdict(list)
    for call in calls:
        children[call["parent_id"]].append(call)
    threads = {call["thread_id"] for call in calls if call["thread_id"]}
    root = Tree(
        f"[bold]{len(calls)} calls in {len(children[None])} traces[/bold] of thread {', '.join(sorted(threads))}"
    )
    pending = [(root, call) for call in reversed(children[None])]
    while pending:
        branch, call = pending.pop()
        node = branch.add(_line(call))
        pending += [(node, child) for child in reversed(children[call["id"]])]
    return root


def _line(call: Call) -> str:
    weave, exception = call["summary"]["weave"], call["exception"]
    mark = "[green]✓[/green]" if weave["status"] == "success" else "[red]✗[/red]"
    parts = [f"{mark} [bold]{escape(_name(call))}[/bold]"]
    if call["parent_id"] is None:
        parts.append(f"[dim]{escape(_asked(call['inputs'])[:_WIDTH])}[/dim]")
    parts.append(f"{weave.get('latency_ms', 0)} ms")
    if tokens := _tokens(call):
        parts.append(f"{tokens} tokens")
    if (cost := _cost(weave.get("costs") or {})) is not None:
        parts.append(f"${cost:.6f}")
    if exception:
        parts.append(f"[red]{escape(_problem(exception))}[/red]")
    return "  ".join(parts)


def _asked(inputs: dict[str, Any]) -> str:
    """The question of the program, or the last message of a chat."""
    messages = inputs.get("messages")
    return str(messages[-1]["content"] if messages else inputs.get("question", ""))


def _problem(exception: str) -> str:
    """The message of an exception; the SDK sends it as JSON text."""
    return str(json.loads(exception)["message"])[:_WIDTH] if exception.startswith("{") else exception[:_WIDTH]


def _tokens(call: Call) -> int:
    return sum(usage.get("total_tokens") or 0 for usage in (call["summary"].get("usage") or {}).values())


def _cost(costs: dict[str, dict[str, Any]]) -> float | None:
    """Dollars of all models; None where none has a price."""
    kinds = ("prompt_tokens", "completion_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    found = [entry.get(f"{kind}_total_cost") for entry in costs.values() for kind in kinds]
    return sum(value for value in found if value is not None) if costs else None


def _models(calls: list[Call]) -> Table:
    """What each model used; the SDK sums the usage of a trace up into its root."""
    table = Table("model", "requests", "tokens in", "tokens out", "cost", "price from", box=None)
    rows: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0])
    prices: dict[str, str] = {}
    for root in (call for call in calls if call["parent_id"] is None):
        for model, usage in (root["summary"].get("usage") or {}).items():
            entry = (root["summary"]["weave"].get("costs") or {}).get(model)
            prices[model] = _PRICES[entry["pricing_level"]] if entry else "unpriced"
            cost = _cost({model: entry}) if entry else None
            found = (usage["requests"], usage["prompt_tokens"], usage["completion_tokens"], cost or 0)
            rows[model] = [old + new for old, new in zip(rows[model], found, strict=True)]
    for model, (requests, prompt, completion, cost) in sorted(rows.items()):
        table.add_row(model, f"{requests:g}", f"{prompt:g}", f"{completion:g}", f"${cost:.6f}", prices[model])
    return table


def _dataset(reading: Reading, dataset: dict[str, Any]) -> Table:
    digest = str(dataset["val"]["rows"]).rsplit("/", 1)[-1]
    rows = reading.json("/table/query", digest=digest, limit=10)["rows"]
    table = Table(*rows[0]["val"], box=None)
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row["val"].values()))
    return table


def _feedback(items: list[dict[str, Any]], calls: list[Call]) -> Table:
    names = {call["id"]: call["inputs"].get("question", _name(call)) for call in calls}
    table = Table("on", "kind", "content", box=None)
    for item in items:
        target = names.get(item["weave_ref"].rsplit("/", 1)[-1], item["weave_ref"])
        table.add_row(escape(target[:_WIDTH]), item["feedback_type"], escape(_content(item["payload"])))
    return table


def _content(payload: dict[str, Any]) -> str:
    """The emoji or the note of the two built-in kinds, the pairs of any other."""
    plain = payload.get("emoji") or payload.get("note")
    return str(plain) if plain else ", ".join(f"{name}: {value}" for name, value in payload.items())
