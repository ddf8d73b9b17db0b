"""A call as an observation of Langfuse, and as the trace that it is the outermost observation of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from heddle.wire import refs, times
from heddle.wire.jsontypes import Json

TYPES = {
    "llm": "GENERATION",
    "tool": "TOOL",
    "agent": "AGENT",
    "workflow": "CHAIN",
    "embedding": "EMBEDDING",
    "retriever": "RETRIEVER",
    "evaluator": "EVALUATOR",
    "guardrail": "GUARDRAIL",
}
"""Kinds of calls as types of observations; all others are spans."""
SPAN, EVENT = "SPAN", "EVENT"
DEFAULT, ERROR = "DEFAULT", "ERROR"
_USAGE = {
    "input": ("prompt_tokens", "input_tokens"),
    "output": ("completion_tokens", "output_tokens"),
    "total": ("total_tokens",),
    "input_cached_tokens": ("cache_read_input_tokens",),
    "input_cache_creation": ("cache_creation_input_tokens",),
    "output_reasoning_tokens": ("reasoning_tokens",),
}
_WITHIN = {"input": ("input_cached_tokens", "input_cache_creation"), "output": ("output_reasoning_tokens",)}
"""Counts that heddle's sums hold inside, and Langfuse has beside."""
_COSTS = {
    "input": "prompt_tokens_total_cost",
    "input_cached_tokens": "cache_read_input_tokens_total_cost",
    "input_cache_creation": "cache_creation_input_tokens_total_cost",
    "output": "completion_tokens_total_cost",
}

GROUPS = {
    "core": ("id", "traceId", "projectId", "parentObservationId", "type", "startTime", "endTime"),
    "basic": ("name", "level", "statusMessage", "version", "environment", "userId", "sessionId", "isRootObservation"),
    "time": ("completionStartTime", "createdAt", "updatedAt"),
    "io": ("input", "output"),
    "metadata": ("metadata",),
    "model": ("model", "modelParameters"),
    "usage": ("usageDetails", "costDetails", "totalCost"),
    "prompt": ("promptName", "promptVersion"),
    "metrics": ("latency",),
    "trace_context": ("tags", "release", "traceName"),
}
"""The groups of fields of an observation."""


USER_PATHS = ("user.id", "enduser.id", "langfuse.user.id")
"""The attributes of a span that tell the user; the first with a value counts."""


class Observation:
    """One call as an observation; what it lacks is None."""

    def __init__(self, call: Json, project_id: str) -> None:
        self.call = call
        self._project_id = project_id
        self._attributes: Json = call.get("attributes") or {}
        span = self._attributes.get("otel_span")
        self._span: Json = span if isinstance(span, dict) else {}
        self._raw = _object(self._span.get("attributes"))
        self._own = _object(_object(self._raw.get("langfuse")).get("observation"))

    @property
    def trace_id(self) -> str:
        """The trace that it belongs to."""
        return str(self.call["trace_id"])

    @property
    def name(self) -> str:
        """The span's own name, else that of the call."""
        names = (self._span.get("name"), self.call.get("display_name"), refs.operation_name(self.call["op_name"]))
        return next((str(name) for name in names if name), "")

    @property
    def trace_name(self) -> str:
        """The name of its trace, as far as it says one."""
        named = self._of_trace("name") or self._attributes.get("trace_name") or self.call.get("display_name")
        return str(named) if named else self.name

    @property
    def type(self) -> str:
        """GENERATION, SPAN, TOOL, ..."""
        if str(self._own.get("type")).upper() == EVENT:
            return EVENT
        return TYPES.get(str(self._attributes.get("kind")), SPAN)

    @property
    def user_id(self) -> str | None:
        """Whom the work was done for, where its span says so: the user of a call may be that of the API key."""
        found = next(filter(None, map(self._named, USER_PATHS)), None)
        return found if isinstance(found, str) else None

    def _named(self, path: str) -> Any:
        """What the attributes of its span hold at a path."""
        found: Any = self._raw
        for part in path.split("."):
            found = _object(found).get(part)
        return found

    @property
    def tags(self) -> list[str]:
        """The tags of its trace."""
        tags = self._attributes.get("tags") or self._of_trace("tags")
        return [str(tag) for tag in tags] if isinstance(tags, list) else []

    @property
    def input(self) -> Any:
        """What went in, as it was sent."""
        return self._own["input"] if "input" in self._own else self.call.get("inputs") or None

    @property
    def output(self) -> Any:
        """What came out."""
        found = self._own["output"] if "output" in self._own else self.call.get("output")
        return None if found == {} else found

    @property
    def seconds(self) -> float | None:
        """From start to end."""
        first, last = times.parse(self.call["started_at"]), times.parse(self.call.get("ended_at") or "")
        return None if first is None or last is None else (last - first) / times.SECOND

    @property
    def cost(self) -> float | None:
        """US dollars."""
        return self.costs.get("total")

    @property
    def costs(self) -> dict[str, float]:
        """US dollars by kind of token and in total, by the prices that the server knows; empty without tokens."""
        priced = list(((self.call.get("summary") or {}).get("weave", {}).get("costs") or {}).values())
        sums = {name: sum(float(one.get(key) or 0) for one in priced) for name, key in _COSTS.items()}
        found = {name: cost for name, cost in sums.items() if cost}
        return {**found, "total": sum(found.values())} if found else {}

    @property
    def usage(self) -> dict[str, int]:
        """Tokens by kind, cached ones and thoughts beside input and output."""
        found: dict[str, int] = {}
        for entry in ((self.call.get("summary") or {}).get("usage") or {}).values():
            for name, keys in _USAGE.items():
                count = next((entry[key] for key in keys if entry.get(key)), None)
                if isinstance(count, int):
                    found[name] = found.get(name, 0) + count
        for whole, parts in _WITHIN.items():
            inside = sum(found.get(part, 0) for part in parts)
            if whole in found and inside <= found[whole]:
                found[whole] -= inside
        return found

    def _of_trace(self, name: str) -> Any:
        return _object(_object(self._raw.get("langfuse")).get("trace")).get(name)

    def _said(self, name: str) -> Any:
        """What is said under a name by the call, or by the span in the words of Langfuse."""
        return self._attributes.get(name) or _object(self._raw.get("langfuse")).get(name)

    @property
    def environment(self) -> str:
        """Where it ran."""
        return str(self._said("environment") or "default")

    @property
    def metadata(self) -> Any:
        """What else its maker told."""
        return self._attributes.get("metadata") or self._own.get("metadata") or {}

    def fields(self) -> Json:
        """What the groups of fields are made of."""
        call, usage = self.call, self.usage
        own, exception, started = self._own, call.get("exception"), call["started_at"]
        begun = own.get("completion_start_time") or self._attributes.get("completion_start_time")
        level, message = (self._attributes.get(name) or own.get(name) for name in ("level", "status_message"))
        model, parameters = self._attributes.get("model"), _object(own.get("model")).get("parameters")
        prompt = _object(self._attributes.get("prompt") or own.get("prompt"))
        return {
            "id": call["id"],
            "traceId": self.trace_id,
            "projectId": self._project_id,
            "parentObservationId": call.get("parent_id"),
            "type": self.type,
            "startTime": started,
            "endTime": call.get("ended_at"),
            "name": self.name,
            "level": ERROR if exception else str(level or DEFAULT),
            "statusMessage": message or exception,
            "version": self._said("version"),
            "environment": self.environment,
            "userId": self.user_id,
            "sessionId": call.get("thread_id"),
            "isRootObservation": call.get("parent_id") is None,
            "input": self.input,
            "output": self.output,
            "model": model if isinstance(model, str) else None,
            "modelParameters": parameters or self._attributes.get("model_parameters"),
            "promptName": prompt.get("name"),
            "promptVersion": prompt.get("version"),
            "usageDetails": usage,
            "costDetails": self.costs,
            "totalCost": self.cost,
            "completionStartTime": str(begun).strip('"') if begun else None,
            "createdAt": started,
            "updatedAt": call.get("ended_at") or started,
            "metadata": self.metadata,
            "latency": self.seconds,
            "tags": self.tags,
            "release": self._said("release"),
            "traceName": self.trace_name,
        }

    def select(self, groups: Sequence[str]) -> Json:
        """The fields of some groups, as the second version of the interface has them: input and output as JSON text."""
        known = self.fields()
        known |= {name: _text(known[name]) for name in GROUPS["io"]}
        return {name: known[name] for group in groups for name in GROUPS[group]}

    def whole(self) -> Json:
        """Everything, as the first version of the interface has it."""
        known, usage = self.fields(), self.usage
        counts = {name: sum(count for key, count in usage.items() if key.startswith(name)) for name in _WITHIN}
        return {
            **{name: value for name, value in known.items() if name not in GROUPS["trace_context"]},
            "usage": {**counts, "total": sum(counts.values()), "unit": "TOKENS"},
            "calculatedTotalCost": known["totalCost"],
            "promptId": None,
            "modelId": None,
        }

    def trace(self) -> Json:
        """The trace that it is the outermost observation of."""
        given = {name: self._of_trace(name) for name in ("input", "output")}
        return {
            "id": self.trace_id,
            "timestamp": self.call["started_at"],
            "createdAt": self.call["started_at"],
            "updatedAt": self.call.get("ended_at") or self.call["started_at"],
            "projectId": self._project_id,
            "name": self.trace_name,
            "input": self.input if given["input"] is None else given["input"],
            "output": self.output if given["output"] is None else given["output"],
            "sessionId": self.call.get("thread_id"),
            "userId": self.user_id,
            "release": self._said("release"),
            "version": self._said("version"),
            "metadata": self.metadata,
            "tags": self.tags,
            "public": False,
            "bookmarked": False,
            "environment": self.environment,
            "htmlPath": f"/{self._project_id}/weave/traces/{self.trace_id}",
        }


@dataclass(slots=True)
class TraceSums:
    """What the observations of a trace make together: their ids, cost and duration."""

    ids: list[str] = field(default_factory=list)
    root: str | None = None
    """The first that lies under no other."""
    cost: float = 0.0
    first: int | None = None
    last: int | None = None

    def add(self, one: Observation) -> None:
        """Take one more in, the oldest first."""
        self.ids.append(one.call["id"])
        if self.root is None and one.call.get("parent_id") is None:
            self.root = one.call["id"]
        self.cost += one.cost or 0.0
        begun, ended = times.parse(one.call["started_at"]), times.parse(one.call.get("ended_at") or "")
        self.first = min((at for at in (self.first, begun) if at is not None), default=None)
        self.last = max((at for at in (self.last, ended) if at is not None), default=None)

    def described(self) -> Json:
        """Cost and seconds, as a trace has them."""
        is_known = self.first is not None and self.last is not None
        seconds = ((self.last or 0) - (self.first or 0)) / times.SECOND if is_known else 0.0
        return {"totalCost": self.cost, "latency": max(seconds, 0.0)}


def _object(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
