"""What a convention is: a table from fields of `AgentSpan` to attributes, and two functions for what no table can say.

By tables, too, a span says who and what it is about: its user, tags, metadata and the name that people read.
Exporters write values in more types than they should, so every field has one converter.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from heddle.trace.otel.span import OtelSpan, split_key
from heddle.wire.conversation.parts import as_list, as_object, as_text, parse_json
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

Fields = Mapping[str, tuple[str, ...]]
"""A field of `AgentSpan` and its attributes; the first that gives a value counts."""
Rows = tuple[tuple[str, Callable[[Any], Any], tuple[str, ...]], ...]
_INT64 = 2**63
_MOST = 2**53
_MOST_DIGITS = 9
"""Longer numbers are names, no indices."""


@dataclass(frozen=True, eq=False)
class Convention:
    """How one family of instrumentation libraries writes spans.

    A span may follow several; they are read in order, and each fills only what is still empty.
    """

    name: str
    fields: Fields
    more: Collection[str] = ()
    """Attributes of the family that only the functions read: they are no custom attributes either."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of numbered attributes of the family."""
    shared: frozenset[str] = frozenset()
    """Attributes of others that it reads too."""
    marks: frozenset[str] = frozenset()
    """Attributes that show a span of the family; without any all of its own do."""
    scopes: tuple[str, ...] = ()
    """Beginnings of the names of its libraries."""
    events: frozenset[str] = frozenset()
    """Span events that show a span of the family."""
    context: Fields = field(default_factory=dict)
    """The attributes of `user`, `tags`, `metadata` and `display_name`. They remain custom attributes as well.

    One that ends with a dot is the beginning of several, `a:b` the part `b` of an object or its JSON text, as metadata
    may be as a whole.
    """
    details: Fields = field(default_factory=dict)
    """Attributes that a call has besides those of all libraries, and where spans have them; a subtree is one too."""
    roots: frozenset[str] = frozenset()
    """Subtrees of attributes that the convention reads wholly, so that a call need not show them as they came."""
    outermost: tuple[str, ...] = ()
    """Attributes that show, when true, that the parent of a span is never exported."""
    trace_name: str | None = None
    """The attribute with the name of the trace: what its outermost call is called."""
    repeated: tuple[str, str] | None = None
    """The attribute and the value of spans that repeat the tokens of a request with a span of its own."""
    tool: tuple[str, str] | None = None
    """The attributes of what a tool, or a step without messages, was given and gave; `messages` is not asked about
    spans of tools then."""
    steps: tuple[tuple[str, str], ...] = ()
    """More of these pairs, of steps without messages; a key that ends with a dot is a subtree."""
    value_of: Callable[[Any], Any] = parse_json
    """What a value of these pairs says."""
    derive: Callable[[OtelSpan, AgentSpan], None] | None = None
    """Fills names, models and numbers that the table cannot, after it."""
    messages: Callable[[OtelSpan, AgentSpan], None] | None = None
    """Fills messages, system instructions, tool definitions, arguments and results, reasoning."""

    @cached_property
    def keys(self) -> frozenset[str]:
        """All attributes of the family."""
        return frozenset(self.more).union(*self.fields.values(), self.tool or (), *self.steps) - self.shared

    def is_of(self, span: OtelSpan) -> bool:
        """True when the span holds anything of this family."""
        if not (self.marks or self.keys).isdisjoint(span.attributes):
            return True
        if self.scopes and span.scope.startswith(self.scopes):
            return True
        return any(event.name in self.events for event in span.events)


def to_text(value: Any) -> str | None:
    """A text that says something; numbers as their text, anything else is None."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    return None


def to_integer(value: Any) -> int | None:
    """An integer of 64 bits, also out of a float or a text that is one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    try:
        found = int(value)
    except ValueError:
        return None
    return found if -_INT64 <= found < _INT64 else None


def to_count(value: Any) -> int | None:
    """A count of tokens or the like: a whole number that is not negative, and that JavaScript can still hold."""
    found = to_integer(value)
    return found if found is not None and 0 <= found <= _MOST else None


def to_number(value: Any) -> float | None:
    """A finite number, also out of a text."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if found - found == 0 else None


def to_texts(value: Any) -> list[str] | None:
    """A list of texts; one text is a list of one, JSON text of a list is that list; None when nothing is in it."""
    if isinstance(value, str):
        found = parse_json(value) if value[:1] == "[" else value
        value = found if isinstance(found, list) else [value]
    if not isinstance(value, list):
        return None
    return [item if isinstance(item, str) else as_text(item) for item in value if item not in (None, "")] or None


def to_json_text(value: Any) -> str | None:
    """A value as text, JSON text in one spelling whatever spelling it came in; None for no value."""
    return None if value is None else as_text(parse_json(value))


_BY_TYPE: Mapping[Any, Callable[[Any], Any]] = {
    str | None: to_text,
    int | None: to_count,
    float | None: to_number,
    list[str]: to_texts,
}
CONVERTERS = {one.name: _BY_TYPE[one.type] for one in fields(AgentSpan) if one.type in _BY_TYPE}
CONVERTERS |= {"request_seed": to_integer, "eval_trial_index": to_integer}
"""How a value of any type becomes one of the field's, None when it cannot."""
PARAMETERS: Fields = {
    "request_temperature": ("temperature",),
    "request_max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    "request_top_p": ("top_p",),
    "request_frequency_penalty": ("frequency_penalty",),
    "request_presence_penalty": ("presence_penalty",),
    "request_seed": ("seed",),
    "request_stop_sequences": ("stop", "stop_sequences"),
    "request_choice_count": ("n",),
}
"""The parameters of a request to a model, as its body names them."""
OPERATIONS = {
    **dict.fromkeys(("llm", "chat_model", "generation"), "chat"),
    **dict.fromkeys(("chain", "workflow"), "invoke_workflow"),
    "agent": "invoke_agent",
    "embedding": "embeddings",
    "evaluator": "evaluator",
    "guardrail": "guardrail",
    "reranker": "rerank",
    "retriever": "retrieval",
    "tool": "execute_tool",
}
"""The kinds of spans that libraries write, as operations of the GenAI conventions."""


def select_rows(table: Fields, keys: Collection[str]) -> Rows:
    """The rows of a table that some of these attributes can fill."""
    found = ((filled, tuple(name for name in names if name in keys)) for filled, names in table.items())
    return tuple((filled, CONVERTERS[filled], names) for filled, names in found if names)


def fill(rows: Rows, values: Mapping[str, Any], into: AgentSpan) -> None:
    """Set every field that is still empty and that `values` have something for."""
    for filled, convert, names in rows:
        if not is_filled(into, filled):
            for name in names:
                value = convert(values[name]) if values[name] is not None else None
                if value is not None:
                    setattr(into, filled, value)
                    break


def fill_from(table: Fields, values: Mapping[str, Any], into: AgentSpan) -> None:
    """As `fill`, from a body or an event that holds some of the attributes of a table."""
    fill(select_rows(table, values), values, into)


def is_filled(into: AgentSpan, name: str) -> bool:
    """True when the field holds something; 0 is something."""
    value = getattr(into, name)
    return value is not None and value != [] and value != ""


def offer(into: AgentSpan, name: str, value: Any) -> None:
    """Set the field unless there is nothing to set or something else is there."""
    if value is not None and value != [] and value != "" and not is_filled(into, name):
        setattr(into, name, value)


def offer_name(into: AgentSpan, name: str | None) -> None:
    """Give the name of a span or an entity to the tool or the agent that it is about."""
    if into.operation_name == "execute_tool":
        offer(into, "tool_name", name)
    elif into.operation_name == "invoke_agent":
        offer(into, "agent_name", name)


_DETAILS = (
    ("prompt_tokens_details", "cached_tokens", "cache_read_input_tokens"),
    ("input_tokens_details", "cached_tokens", "cache_read_input_tokens"),
    ("completion_tokens_details", "reasoning_tokens", "reasoning_tokens"),
    ("output_tokens_details", "reasoning_tokens", "reasoning_tokens"),
)


def offer_details(into: AgentSpan, usage: Json) -> None:
    """Cached and reasoning tokens, as OpenAI's usage nests them."""
    for details, name, field_name in _DETAILS:
        offer(into, field_name, to_count(as_object(usage.get(details)).get(name)))


def nest_attributes(attributes: Mapping[str, Any], prefix: str) -> Any:
    """What stands below a dotted prefix, as nested objects; objects with the keys 0, 1, ... become lists.

    `nest_attributes({"a.0.b": 1, "a.0.c": 2}, "a.")` is `[{"b": 1, "c": 2}]`; an index that is missing leaves no hole.
    None without any such key.
    """
    tree: Json = {}
    start = len(prefix)
    for key, value in attributes.items():
        if key.startswith(prefix):
            node = tree
            *path, last = split_key(key[start:])
            for name in path:
                below = node.get(name)
                if not isinstance(below, dict):
                    below = node[name] = {}
                node = below
            node[last] = value
    return _lists(tree) if tree else None


def _lists(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if node and all(key.isdecimal() and len(key) <= _MOST_DIGITS for key in node):
        return [_lists(node[key]) for key in sorted(node, key=int)]
    return {key: _lists(value) for key, value in node.items()}


def object_below(attributes: Mapping[str, Any], name: str) -> Json:
    """An object that was sent as attributes of its own, or as JSON text."""
    return as_object(nest_attributes(attributes, f"{name}.") or attributes.get(name))


COMMON: Mapping[str, tuple[str, ...]] = {"user": ("user.id", "enduser.id")}
"""What every span may say, whatever wrote it."""
ContextRows = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
"""Fields of `SpanContext`, each with attributes of a span and, for parts of metadata, their names in it."""
_MAX_TAGS = 100
_MAX_LENGTH = 1024


@dataclass(slots=True)
class SpanContext:
    """What a span says of itself beside its work."""

    user: str | None = None
    display_name: str | None = None
    tags: list[str] = field(default_factory=list)
    metadata: Json = field(default_factory=dict)


def select_context(conventions: Iterable[Convention], keys: Collection[str]) -> ContextRows:
    """The rows of the conventions' tables that some of these attributes can fill."""
    found: dict[str, dict[str, str]] = {}
    for table in (*(one.context for one in conventions), COMMON):
        for name, attributes in table.items():
            row = found.setdefault(name, {})
            for attribute in attributes:
                if not attribute.endswith("."):
                    whole, _, part = attribute.partition(":")
                    row |= {whole: part} if whole in keys else {}
                    continue
                row |= {key: key.removeprefix(attribute) for key in keys if key.startswith(attribute)}
    return tuple((name, tuple(row.items())) for name, row in found.items() if row)


def read_context(rows: ContextRows, attributes: Json) -> SpanContext:
    """What the attributes of a span say: of several for one field the first with a value, all of the metadata."""
    into = SpanContext()
    for name, places in rows:
        for attribute, part in places:
            value = attributes[attribute]
            if name == "metadata":
                _join(into.metadata, part, parse_json(value))
                continue
            if part:
                value = as_object(value).get(part)
            if name == "tags":
                into.tags = into.tags or _to_tags(value)
            elif (text := to_text(parse_json(value))) is not None and getattr(into, name) is None:
                setattr(into, name, text[:_MAX_LENGTH])
    return into


def _join(metadata: Json, part: str, value: Any) -> None:
    if part:
        metadata.setdefault(part, value)
    elif isinstance(value, dict):
        for name, item in value.items():
            metadata.setdefault(name, item)


def _to_tags(value: Any) -> list[str]:
    """A list, its JSON text, or a text with commas."""
    listed = as_list(value)
    if not listed and isinstance(value, str) and value[:1] != "[":
        listed = value.split(",")
    tags = (text.strip()[:_MAX_LENGTH] for item in listed[:_MAX_TAGS] if (text := to_text(item)))
    return list(dict.fromkeys(tag for tag in tags if tag))
