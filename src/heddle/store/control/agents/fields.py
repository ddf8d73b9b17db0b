"""What requests can name of an agent span, as SQL: fields, custom attributes, derived values, costs.

Names of the GenAI semantic conventions (`gen_ai.agent.name`), of the service (`weave.agent.name`) and without a prefix
(`agent.name`) mean the same field as `agent_name`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from heddle.errors import InvalidField
from heddle.store.control.agents.table import CUSTOM, MORE_NUMBERS, MORE_TEXTS, OWN_AGENT, TEXTS, TOKENS, agent_spans
from heddle.store.control.expressions import Column, Expression, JsonRead
from heddle.store.query.compiler import Kind
from heddle.wire import times

NUMBER, STRING, BOOLEAN, DATETIME = "number", "string", "boolean", "datetime"
COSTS = ("input_cost_usd", "output_cost_usd", "cache_read_cost_usd", "cache_creation_cost_usd", "total_cost_usd")
DERIVED = {
    "duration_ms": NUMBER,
    "total_tokens": NUMBER,
    "is_error": BOOLEAN,
    "is_invocation": BOOLEAN,
    "total_cost_usd": NUMBER,
    "input_cost_usd": NUMBER,
    "output_cost_usd": NUMBER,
}
"""Derived values and their types. The tokens of a span are those it took in and gave out; giving out includes
reasoning."""

CUSTOM_TYPES = {
    "custom_attrs_string": STRING,
    "custom_attrs_int": NUMBER,
    "custom_attrs_float": NUMBER,
    "custom_attrs_bool": BOOLEAN,
}
_READINGS = {STRING: "scalar", NUMBER: "number", BOOLEAN: "boolean"}
_DOTTED = {
    "operation.name": "operation_name",
    "provider.name": "provider_name",
    "system": "provider_name",
    "agent.name": "agent_name",
    "agent.id": "agent_id",
    "agent.description": "agent_description",
    "agent.version": "agent_version",
    "request.model": "request_model",
    "response.model": "response_model",
    "response.id": "response_id",
    "conversation.id": "conversation_id",
    "conversation.name": "conversation_name",
    "tool.name": "tool_name",
    "tool.type": "tool_type",
    "tool.call.id": "tool_call_id",
    "output.type": "output_type",
    "usage.input_tokens": "input_tokens",
    "usage.output_tokens": "output_tokens",
    "usage.reasoning_tokens": "reasoning_tokens",
    "usage.reasoning.output_tokens": "reasoning_tokens",
    "usage.cache_creation.input_tokens": "cache_creation_input_tokens",
    "usage.cache_read.input_tokens": "cache_read_input_tokens",
    "request.max_tokens": "request_max_tokens",
    "request.seed": "request_seed",
    "request.choice.count": "request_choice_count",
    "request.temperature": "request_temperature",
    "request.top_p": "request_top_p",
    "request.frequency_penalty": "request_frequency_penalty",
    "request.presence_penalty": "request_presence_penalty",
    "compaction.items_before": "compaction_items_before",
    "compaction.items_after": "compaction_items_after",
    "error.type": "error_type",
    "server.address": "server_address",
    "server.port": "server_port",
}
ALIASES = {prefix + name: column for name, column in _DOTTED.items() for prefix in ("", "weave.", "gen_ai.")}
UNREAD = (
    *("input_messages", "output_messages", "system_instructions", "reasoning_content", "tool_definitions"),
    *("tool_description", "tool_call_arguments", "tool_call_result", "compaction_summary", "raw_span_dump"),
    *("content_refs", "artifact_refs", "object_refs", "finish_reasons", "request_stop_sequences"),
)
"""Fields that are shown but that no condition, group or order can use; texts among them are found by search."""

_c = agent_spans.c
MODEL = sa.case((_c.response_model != "", _c.response_model), else_=_c.request_model)
"""The model that a span's tokens are paid for."""
INVOKES = sa.and_(
    _c.operation_name == "invoke_agent", sa.or_(_c.own.op("&")(OWN_AGENT) == OWN_AGENT, _c.agent_name == "")
)
"""Spans that are an agent at work. One that names no agent while others of its trace do only wraps around theirs."""


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """US dollars per token of a model for spans that start at `since` (microseconds; None: always) or later."""

    model: str
    since: int | None
    prompt: float
    completion: float
    cache_read: float
    cache_creation: float


@dataclass(frozen=True, slots=True)
class Typed:
    """An SQL value with the type that its users know; booleans are 1 and 0, instants microseconds.

    `is_usage` marks tokens and costs.
    """

    expression: Expression
    type: str
    is_usage: bool = False

    @property
    def summed(self) -> Expression:
        """What sums add up: tokens that spans above the models' only repeat are left out."""
        return sa.case((_c.is_counted == 1, self.expression)) if self.is_usage else self.expression


def column_name(name: str) -> str:
    """The field that a name of any spelling means; the name itself when it is no other spelling."""
    return ALIASES.get(name, name)


class Fields:
    """Resolves names; `prices` is what costs are computed with, newest first per model."""

    def __init__(self, prices: Sequence[ModelPrice] = ()) -> None:
        self._prices = prices

    def value(self, path: str) -> Column:
        """The operand of a condition or an order; raises InvalidField for an unknown name."""
        source, dot, key = path.partition(".")
        if dot and key and source in CUSTOM_TYPES:
            typed = self.custom(source, key)
            return Column(Kind.TEXT if typed.type == STRING else Kind.NUMBER, typed.expression)
        if path in ("duration_ms", "total_tokens") or path in COSTS:
            return Column(Kind.NUMBER, self.derived(path).expression)
        typed = self.field(path)
        kinds = {STRING: Kind.TEXT, NUMBER: Kind.NUMBER, DATETIME: Kind.INSTANT}
        return Column(kinds[typed.type], typed.expression)

    def field(self, name: str) -> Typed:
        """A field of the span; raises InvalidField for an unknown one."""
        column = column_name(name)
        if column in TEXTS:
            return Typed(_c[column], STRING)
        if column in TOKENS:
            return Typed(_c[column], NUMBER, is_usage=True)
        if column in ("started_at", "ended_at"):
            return Typed(_c[column], DATETIME)
        if column in MORE_TEXTS:
            return Typed(sa.func.coalesce(JsonRead(_c.more, (column,), "scalar"), ""), STRING)
        if column in MORE_NUMBERS:
            return Typed(JsonRead(_c.more, (column,), "number"), NUMBER)
        if column in UNREAD:
            raise InvalidField(f"Field {name[:200]} cannot be used in a query; /agents/search finds texts of messages")
        raise InvalidField(f"Unknown field: {name[:200]}")

    @staticmethod
    def custom(source: str, key: str) -> Typed:
        """A custom attribute; null where a span lacks it."""
        kind = CUSTOM_TYPES[source]
        return Typed(JsonRead(_c.custom, (source, key), _READINGS[kind]), kind)

    def derived(self, name: str) -> Typed:
        """A value computed from the span; raises InvalidField for an unknown one."""
        if name in COSTS:
            return Typed(self._cost(name), NUMBER, is_usage=True)
        if name == "duration_ms":
            elapsed = (_c.ended_at - _c.started_at) / sa.literal(1000.0)
            return Typed(sa.case((_c.ended_at > _c.started_at, elapsed)), NUMBER)
        if name == "total_tokens":
            tokens = sa.func.coalesce(_c.input_tokens, 0) + sa.func.coalesce(_c.output_tokens, 0)
            return Typed(tokens, NUMBER, is_usage=True)
        if name == "is_error":
            return Typed(sa.case((_c.status_code == "ERROR", 1), else_=0), BOOLEAN)
        if name == "is_invocation":
            return Typed(sa.case((INVOKES, 1), else_=0), BOOLEAN)
        raise InvalidField(f"Unknown derived value: {name[:200]}; known are {', '.join(DERIVED)}")

    def value_of(self, source: str, key: str) -> Typed:
        """The value of a reference `{source, key}`."""
        if source in CUSTOM:
            return self.custom(source, key)
        return self.derived(key) if source == "derived" else self.field(key)

    def _cost(self, name: str) -> Expression:
        """The cost of a span; null where its model has no price."""
        if name == "total_cost_usd":
            parts = [self._cost(part) for part in COSTS if part != name]
            return parts[0] + parts[1] + parts[2] + parts[3]
        read = sa.func.coalesce(_c.cache_read_input_tokens, 0)
        created = sa.func.coalesce(_c.cache_creation_input_tokens, 0)
        taken = sa.func.coalesce(_c.input_tokens, 0)
        # More cached tokens than input tokens can only be counted beside them.
        uncached = sa.case((read + created <= taken, taken - read - created), else_=taken)
        tokens: dict[str, tuple[Expression, Callable[[ModelPrice], float]]] = {
            "input_cost_usd": (uncached, lambda price: price.prompt),
            "output_cost_usd": (sa.func.coalesce(_c.output_tokens, 0), lambda price: price.completion),
            "cache_read_cost_usd": (read, lambda price: price.cache_read),
            "cache_creation_cost_usd": (created, lambda price: price.cache_creation),
        }
        count, price_of = tokens[name]
        branches: list[Any] = [(_applies(price), sa.literal(price_of(price), sa.Float())) for price in self._prices]
        return count * sa.case(*branches) if branches else sa.cast(sa.null(), sa.Float())


def _applies(price: ModelPrice) -> Expression:
    is_model = sa.literal(price.model, sa.Text()) == MODEL
    return is_model if price.since is None else sa.and_(is_model, _c.started_at >= price.since)


def shown(typed_kind: str, value: Any) -> Any:
    """A value read by one of these expressions as an answer shows it."""
    if value is None:
        return None
    if typed_kind == BOOLEAN:
        return bool(value)
    if typed_kind == DATETIME:
        return times.to_iso(int(value))
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
