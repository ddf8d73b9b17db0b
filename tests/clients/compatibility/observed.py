"""What a client left on the server, aspect by aspect, as far as the table asks for it."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from heddle.wire import times
from tests.clients.compatibility.table import CONVERSATION, TOKENS
from tests.conftest import Wire

Json = dict[str, Any]
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
OWN_SPAN = "weather"
"""The span that a scenario makes by itself around its requests."""


class Traces:
    """The calls of one project."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.calls = sorted(wire.calls(include_costs=True), key=lambda call: call["started_at"])
        ids = {call["id"] for call in self.calls}
        self.roots = [call for call in self.calls if call["parent_id"] not in ids]
        self.failed = [call for call in self.calls if call.get("exception")]
        told = [call for call in self.roots if call not in self.failed]
        self._asked = told[0] if told else None
        self.chat = self._chat(False)
        if not any(message["type"] == "tool_call" for message in self.chat["messages"]):
            # No span of a tool: what the model called is all there is.
            self.chat = self._chat(True)

    def _chat(self, calls_of_models: bool) -> Json:
        if self._asked is None:
            return {"messages": []}
        body = {"trace_id": self._asked["trace_id"], "include_model_tool_calls": calls_of_models}
        return dict(self._wire.post("/agents/traces/chat", **body))

    def tree(self) -> str:
        """Names of all calls: children in brackets, those that failed with an exclamation mark."""
        return "; ".join(map(self._branch, self.roots))

    def _branch(self, call: Json) -> str:
        children = [child for child in self.calls if child["parent_id"] == call["id"]]
        name = name_of(call) + ("!" if call.get("exception") else "")
        return f"{name} > ({', '.join(map(self._branch, children))})" if children else name

    def messages(self) -> list[str]:
        """The conversation that the page of the last answered call of a model shows."""
        calls = self._wire.calls(include_conversation=True, sort_by=[{"field": "started_at", "direction": "asc"}])
        told = [call["conversation"] for call in calls if call["conversation"] and not call.get("exception")]
        chats = [chat for chat in told if chat["is_chat"] and chat["choices"]]
        if not chats:
            return []
        last = chats[-1]
        return [_line(message) for message in [*last["messages"], *last["choices"][0]["messages"]]]

    def chat_view(self) -> list[str]:
        """The chat of the first trace."""
        return [told for message in self.chat["messages"] if (told := _told(message))]

    def tokens(self) -> Json:
        """Tokens of the innermost calls that have any; the chat of their trace must count alike where there is one."""
        counted = self._usage(("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens"))
        (cached,) = self._usage(("cache_read_input_tokens",))
        (reasoning,) = self._usage(("reasoning_tokens",))
        return {
            "input": self._agreed(counted[0], "total_input_tokens"),
            "output": self._agreed(counted[1], "total_output_tokens"),
            "cached": self._agreed(cached, "total_cache_read_input_tokens"),
            "reasoning": self.chat.get("total_reasoning_tokens") or reasoning,
        }

    def cost(self) -> Any:
        """The cost of the same calls, which the chat must tell alike."""
        names = ("prompt", "completion", "cache_read_input", "cache_creation_input")
        costs = self._sums("costs", [(f"{name}_tokens_total_cost",) for name in names])
        return self._agreed(round(sum(costs), 10), "total_cost_usd")

    def _usage(self, *names: tuple[str, ...]) -> list[float]:
        return self._sums("usage", names)

    def _sums(self, kind: str, names: Sequence[tuple[str, ...]]) -> list[float]:
        """Sums over the innermost calls with usage, of the first name that each entry has."""
        of_call = {call["id"]: _entries(call, kind) for call in self.calls if _entries(call, "usage")}
        parent_of = {call["id"]: call["parent_id"] for call in self.calls}
        above: set[str] = set()
        for call_id in of_call:
            parent = parent_of[call_id]
            while parent is not None:
                above.add(parent)
                parent = parent_of.get(parent)
        entries = [entry for call_id, found in of_call.items() if call_id not in above for entry in found]
        return [sum(next((entry[key] for key in name if entry.get(key)), 0) for entry in entries) for name in names]

    def _agreed(self, counted: float, name: str) -> Any:
        shown = round(self.chat.get(name) or 0, 10)
        return counted if shown == counted or not self.chat["messages"] else {"calls": counted, "chat": shown}

    def thread(self) -> list[str | None]:
        """The threads of its traces."""
        return _distinct(call["thread_id"] for call in self._of_client())

    def user(self) -> list[str | None]:
        """The users of its traces."""
        return _distinct(call["wb_user_id"] for call in self._of_client())

    def _of_client(self) -> list[Json]:
        """The roots of its traces, where it made them itself, else what is just below them."""
        own = {call["id"] for call in self.roots if name_of(call) == OWN_SPAN}
        return [
            call for call in self.calls if call["parent_id"] in own or (call in self.roots and call["id"] not in own)
        ]

    def metrics(self) -> Json:
        """The sum of each metric of tokens and durations; of durations only that there are some."""
        start = times.to_iso(times.now() - times.DAY)
        asked = {"start": start, "granularity": 36_500 * 86_400, "aggregations": ["sum"]}
        found = {}
        for one in self._wire.post("/metrics/query")["metrics"]:
            name = one["name"]
            if one["kind"] == "gauge" or not ("token" in name or "duration" in name):
                continue
            by = [key for key in one["attributes"] if key.endswith("token.type")]
            buckets = self._wire.post("/metrics/stats", name=name, group_by=by, **asked)["buckets"]
            sums = {str(*bucket["attributes"].values()): bucket["sum"] for bucket in buckets}
            found[name] = sums if by else all(total > 0 for total in sums.values())
        return found

    def error(self) -> list[str]:
        """The part of each failure's message that the provider gave."""
        known = "no such model: model-missing"
        told = (str(call["exception"]) for call in self.failed)
        return _distinct(known if known in text else text[:200] for text in told)


def _entries(call: Json, kind: str) -> list[Json]:
    """The entries of a call's usage or costs that count anything; details are taken in."""
    summary = call["summary"]
    found = (summary.get("usage") if kind == "usage" else summary["weave"].get("costs")) or {}
    flat = []
    for entry in found.values():
        details = [value for value in entry.values() if isinstance(value, dict)]
        merged = {key: value for part in [*details, entry] for key, value in part.items() if value}
        merged.setdefault("cache_read_input_tokens", merged.get("cached_tokens", 0))
        if any(isinstance(value, int | float) and value for value in merged.values()):
            flat.append(merged)
    return flat


def name_of(call: Json) -> str:
    """What a call is shown as, without the ids that some libraries write into names."""
    return _ID.sub("…", str(call.get("display_name") or call["summary"]["weave"]["trace_name"]))


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _told(message: Json) -> str | None:
    kind, said = message["type"], message[message["type"]]
    if kind == "user_message":
        return f"user: {said['text']}"
    if kind == "assistant_message":
        return f"assistant: {said['text']}" if said["text"] else None
    if kind == "tool_call":
        return f"tool: {said['tool_name']} {_json_text(said['tool_arguments'])}"
    return None


def _line(message: Json) -> str:
    """A message of a conversation: its role, then texts, calls of tools and their results."""
    said = []
    for part in message["parts"]:
        if part["type"] == "tool_call":
            said.append(f"{part['name']} {_json_text(part['arguments'])}")
        elif part["type"] == "tool_call_response":
            said.append(_text(part.get("response", part.get("result"))))
        elif part["type"] == "text":
            said.append(part["content"])
    return f"{message['role']}: {' '.join(said)}"


def _text(value: Any) -> str:
    """A text, or the texts of parts."""
    if isinstance(value, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in value):
        return " ".join(part["content"] for part in value)
    return value if isinstance(value, str) else json.dumps(value)


def _json_text(arguments: Any) -> str:
    """Arguments in one spelling."""
    try:
        return json.dumps(json.loads(arguments or "null") if isinstance(arguments, str | None) else arguments)
    except ValueError:
        return str(arguments)


def observe_agent(wire: Wire, session: str) -> Json:
    """What an agent's requests and its telemetry left: `session` is what it calls its conversation."""
    calls = wire.calls(sort_by=[{"field": "started_at", "direction": "asc"}])
    asked = [call for call in calls if call["op_name"].startswith("heddle.")]
    told = [call for call in calls if call not in asked]
    counted = [next(iter(call["summary"]["usage"].values()), {}) for call in asked]
    without = [
        number
        for number, usage in enumerate(counted)
        if not (usage.get("prompt_tokens") and usage.get("completion_tokens"))
        or (number > 1 and not usage.get("cache_read_input_tokens"))
    ]
    threads = {
        "requests": _distinct(call["thread_id"] for call in asked),
        "telemetry": _distinct(call["thread_id"] for call in told if call["thread_id"] is not None),
    }
    is_one = threads == {"requests": [session], "telemetry": [session]}
    return {
        "requests": len(asked),
        "tokens": f"missing in requests {without} of {counted}" if without else TOKENS,
        "conversation": CONVERSATION if is_one else {"session": session, **threads},
    }


def observe(wire: Wire, aspects: Sequence[str]) -> Json:
    """The value of each aspect of the project's traces."""
    traces = Traces(wire)
    readers: dict[str, Callable[[], Any]] = {
        "tree": traces.tree,
        "messages": traces.messages,
        "chat": traces.chat_view,
        "tokens": traces.tokens,
        "cost": traces.cost,
        "thread": traces.thread,
        "user": traces.user,
        "error": traces.error,
        "metrics": traces.metrics,
    }
    return {name: readers[name]() for name in aspects if name in readers}
