"""What requests can name of an agent span, as SQL: fields, custom attributes, derived values, costs, conditions.

Names of the GenAI semantic conventions (`gen_ai.agent.name`), of the service (`weave.agent.name`) and without a prefix
(`agent.name`) mean the same field as `agent_name`. In a query a name that is no field means the custom attribute of
that key and of the type of the constant that it stands beside; `custom_attrs_int.retries` and its like name one type. A
text that is not said equals both null and the empty text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from heddle.errors import InvalidField, InvalidRequest
from heddle.store.control.agents.table import (
    CUSTOM,
    MORE_NUMBERS,
    MORE_TEXTS,
    OWN_AGENT,
    SHOWN,
    TEXTS,
    TOKENS,
    agent_spans,
)
from heddle.store.control.costs import PriceRow
from heddle.store.control.row_queries import Column, DistinctList, Expression, JsonRead, Listed, QueryCondition, Sum
from heddle.store.query.compiler import Kind
from heddle.wire.aggregates import Key, Measure, Value
from heddle.wire.query import (
    And,
    Compare,
    Contains,
    Convert,
    Field,
    In,
    Literal,
    Not,
    Operand,
    Operation,
    Or,
    Search,
    Size,
)

NUMBER, STRING, BOOLEAN, DATETIME = "number", "string", "boolean", "datetime"
TEXTS_TYPE = "list of strings"
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
_DOTTED = (
    *("operation.name", "provider.name", "agent.name", "agent.id", "agent.description", "agent.version"),
    *("request.model", "response.model", "response.id", "conversation.id", "conversation.name", "tool.name"),
    *("tool.type", "tool.call.id", "output.type", "request.max_tokens", "request.seed", "request.choice.count"),
    *("request.temperature", "request.top_p", "request.frequency_penalty", "request.presence_penalty"),
    *("compaction.items_before", "compaction.items_after", "error.type", "server.address", "server.port"),
)
_USAGE = ("input_tokens", "output_tokens", "reasoning_tokens", "cache_creation.input_tokens", "cache_read.input_tokens")
_SPELLED = {
    **{name: name.replace(".", "_") for name in _DOTTED},
    **{f"usage.{name}": name.replace(".", "_") for name in _USAGE},
    "system": "provider_name",
    "usage.reasoning.output_tokens": "reasoning_tokens",
}
ALIASES = {prefix + name: column for name, column in _SPELLED.items() for prefix in ("", "weave.", "gen_ai.")}
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


Prices = Sequence[tuple[int | None, PriceRow]]
"""Prices of models, newest first per model, each for spans that start at an instant (microseconds; None: always) or
later."""


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


_FIELDS = frozenset((*TEXTS, *TOKENS, *MORE_TEXTS, *MORE_NUMBERS, "started_at", "ended_at"))
_COMPUTED = frozenset(("duration_ms", "total_tokens", *COSTS))
_MAPS: dict[type, str] = {
    bool: "custom_attrs_bool",
    int: "custom_attrs_int",
    float: "custom_attrs_float",
    str: "custom_attrs_string",
}
_READ_AS: dict[str, type] = {"int": int, "double": float, "bool": bool, "string": str, "exists": str}


AGGREGATIONS = {
    DATETIME: frozenset(("min", "max", "count", "count_distinct")),
    NUMBER: frozenset(("sum", "avg", "min", "max", "count", "count_distinct")),
    BOOLEAN: frozenset(("count", "count_distinct", "count_true", "count_false")),
    STRING: frozenset(("count", "count_distinct")),
}
"""What can be computed over values of a type."""
ZERO_OF_NOTHING = frozenset(("sum", "count", "count_distinct", "count_true", "count_false"))


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """Keeps the groups whose measure lies in `[low, high]`; instants are microseconds."""

    group_by: tuple[Key, ...]
    measure: Measure
    low: float | None
    high: float | None
    is_instant: bool = False


class Fields:
    """Resolves names; `prices` is what costs are computed with."""

    def __init__(self, prices: Prices = ()) -> None:
        self._prices = prices

    def operand(self, path: str) -> Column:
        """The operand of a condition or an order; raises InvalidField for an unknown name."""
        source, dot, key = path.partition(".")
        if dot and key and source in CUSTOM_TYPES:
            typed = self._custom(source, key)
            return Column(Kind.TEXT if typed.type == STRING else Kind.NUMBER, typed.expression)
        if path in _COMPUTED:
            return Column(Kind.NUMBER, self.derived(path).expression)
        typed = self._field(path)
        kinds = {STRING: Kind.TEXT, NUMBER: Kind.NUMBER, DATETIME: Kind.INSTANT}
        return Column(kinds[typed.type], typed.expression)

    def value(self, value: Value, expected: str | None = None) -> Typed:
        """A value whose nothing is null; raises InvalidField for an unknown one, InvalidRequest for another type."""
        if value.source in CUSTOM:
            typed = self._custom(value.source, value.key)
        else:
            typed = self.derived(value.key) if value.source == "derived" else self._field(value.key)
        if expected is not None and typed.type != expected:
            raise InvalidRequest(f"{value.key[:200]} has the type {typed.type}, expected {expected}")
        if typed.type == STRING and value.source == "field":
            return Typed(sa.func.nullif(typed.expression, ""), STRING)
        return typed

    def key(self, key: Key) -> Typed:
        """What a key groups by; raises InvalidField where spans cannot be grouped by it."""
        if key.source in CUSTOM_TYPES:
            return self._custom(key.source, key.key)
        column = column_name(key.key)
        if column in (*TEXTS, *MORE_TEXTS):
            return self._field(column)
        raise InvalidField(f"Spans cannot be grouped by {key.key[:200]}")

    def measure(self, measure: Measure) -> Typed:
        """What a measure computes; raises InvalidRequest for a function that its type does not allow."""
        kept = None if measure.filter is None else condition(measure.filter, self)
        if measure.value is None:
            if measure.function != "count":
                raise InvalidRequest(f"{measure.function} requires a value (measure {measure.alias})")
            return Typed(sa.func.count() if kept is None else sa.func.count(sa.case((kept, 1))), NUMBER)
        value, name = self.value(measure.value, measure.value_type), measure.function
        if name == "list":
            return Typed(DistinctList(value.expression), TEXTS_TYPE)
        if name != "total" and name not in AGGREGATIONS[value.type]:
            raise InvalidRequest(f"{name} cannot be computed for values of type {value.type}")
        taken = value.expression if kept is None else sa.case((kept, value.expression))
        if name == "count":
            return Typed(sa.func.count(taken), NUMBER)
        if name == "count_distinct":
            return Typed(sa.func.count(sa.distinct(taken)), NUMBER)
        if name in ("count_true", "count_false"):
            return Typed(sa.func.count(sa.case((taken == (1 if name == "count_true" else 0), 1))), NUMBER)
        if name in ("sum", "avg", "total"):
            added = taken if name == "avg" else value.summed if kept is None else sa.case((kept, value.summed))
            # As floating point: sums of whole numbers would fail beyond 64 bits.
            added = sa.cast(added, sa.Float())
            total = Sum(added, is_mean=name == "avg")
            return Typed(sa.func.coalesce(total, 0) if name == "total" else total, NUMBER)
        return Typed(getattr(sa.func, name)(taken), value.type)

    def having(self, filters: Sequence[GroupFilter]) -> list[Expression]:
        """The conditions that group filters put on groups; raises InvalidRequest for bounds of another type."""
        tests: list[Expression] = []
        for item in filters:
            found = self.measure(item.measure)
            if item.is_instant != (found.type == DATETIME):
                raise InvalidRequest(f"The bounds of {item.measure.alias} must have its type, {found.type}")
            if item.low is not None:
                tests.append(found.expression >= item.low)
            if item.high is not None:
                tests.append(found.expression <= item.high)
        return tests

    def _field(self, name: str) -> Typed:
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
            raise InvalidField(f"Field {name[:200]} cannot be used in a query; use /agents/search to search messages")
        raise InvalidField(f"Unknown field: {name[:200]}")

    @staticmethod
    def _custom(source: str, key: str) -> Typed:
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
        raise InvalidField(f"Unknown derived value: {name[:200]}; expected one of {', '.join(DERIVED)}")

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
        count, paid = {
            "input_cost_usd": (uncached, "prompt_token_cost"),
            "output_cost_usd": (sa.func.coalesce(_c.output_tokens, 0), "completion_token_cost"),
            "cache_read_cost_usd": (read, "cache_read_input_token_cost"),
            "cache_creation_cost_usd": (created, "cache_creation_input_token_cost"),
        }[name]
        branches: list[Any] = [
            (_applies(price, since), sa.literal(getattr(price, paid), sa.Float())) for since, price in self._prices
        ]
        return count * sa.case(*branches) if branches else sa.cast(sa.null(), sa.Float())


def _applies(price: PriceRow, since: int | None) -> Expression:
    is_model = sa.literal(price.llm_id, sa.Text()) == MODEL
    return is_model if since is None else sa.and_(is_model, _c.started_at >= since)


@dataclass(frozen=True, slots=True)
class Targets:
    """Spans that stand out by what was said about them, their turn (trace) or their conversation."""

    span_ids: Sequence[str] = ()
    trace_ids: Sequence[str] = ()
    conversation_ids: Sequence[str] = ()

    def condition(self) -> Expression:
        """The spans as a condition."""
        c = agent_spans.c
        named = ((c.span_id, self.span_ids), (c.trace_id, self.trace_ids), (c.conversation_id, self.conversation_ids))
        tests = [Listed(column, items) for column, items in named if items]
        return sa.or_(*tests) if tests else sa.false()


@dataclass(frozen=True, slots=True)
class SpanFilter:
    """Which spans of a project: started in `[after, before)` microseconds, matching a query and all targets."""

    project: str
    after: int | None = None
    before: int | None = None
    query: Operation | None = None
    targets: Sequence[Targets] = ()
    conditions: Sequence[Expression] = field(default=())

    def compile(self, fields: Fields) -> Expression:
        """The filter as one condition."""
        c = agent_spans.c
        tests: list[Expression] = [c.project == self.project, SHOWN]
        if self.after is not None:
            tests.append(c.started_at >= self.after)
        if self.before is not None:
            tests.append(c.started_at < self.before)
        if self.query is not None:
            tests.append(condition(self.query, fields))
        tests += [target.condition() for target in self.targets]
        return sa.and_(*tests, *self.conditions)


def condition(query: Operation, fields: Fields) -> Expression:
    """A query as a condition; raises InvalidField for a name that means nothing, InvalidRequest for bad constants."""
    resolved = _typed(query, None)
    assert not isinstance(resolved, (Literal, Field, Convert, Size))
    return QueryCondition(resolved, fields.operand)


def _typed(operand: Operand, beside: type | None) -> Operand:
    """The operand with every name resolved; `beside` is the type of the constant that it stands beside."""
    match operand:
        case Search():
            raise InvalidRequest("Only calls can be searched with $search")
        case Field(path):
            return Field(_path(path, beside))
        case Literal():
            return operand
        case Convert(inner, to):
            return Convert(_typed(inner, _READ_AS[to]), to)
        case Size(inner):
            return Size(_typed(inner, None))
        case And(operands):
            return And(tuple(_typed(item, None) for item in operands))
        case Or(operands):
            return Or(tuple(_typed(item, None) for item in operands))
        case Not(inner):
            return Not(_typed(inner, None))
        case Compare(op, left, right):
            return _compared(Compare(op, left, right))
        case In(left, items):
            return In(_typed(left, _common(items)), tuple(_typed(item, None) for item in items))
        case Contains(whole, part, folded):
            return Contains(_typed(whole, str), _typed(part, None), folded)


def _compared(test: Compare) -> Operand:
    for value, other in ((test.left, test.right), (test.right, test.left)):
        if isinstance(other, Literal) and other.value is None:
            if test.op != "eq":
                raise InvalidRequest(f"${test.op} cannot compare with null")
            return _missing(value)
    return Compare(test.op, _typed(test.left, _kind(test.right)), _typed(test.right, _kind(test.left)))


def _missing(value: Operand) -> Operand:
    """A condition that holds where nothing is said."""
    named = _typed(value, None)
    if isinstance(named, Field) and Fields().operand(named.path).kind is Kind.TEXT and "." not in named.path:
        return Compare("eq", named, Literal(""))
    return Compare("eq", Convert(named, "exists"), Literal(0))


def _path(path: str, beside: type | None) -> str:
    column = column_name(path)
    if column in _FIELDS or column in _COMPUTED:
        return column
    source, dot, key = path.partition(".")
    if source in CUSTOM_TYPES:
        if not (dot and key):
            raise InvalidField(f"{source} requires a key: {source}.<key>")
        return path
    if column in UNREAD:
        return column
    if beside is None:
        raise InvalidField(
            f"Unknown field: {path[:200]}; compare a custom attribute with a constant or name it with its type: "
            f"{', '.join(f'{name}.<key>' for name in CUSTOM_TYPES)}"
        )
    return f"{_MAPS[beside]}.{path}"


def _kind(operand: Operand) -> type | None:
    if isinstance(operand, Literal):
        return None if operand.value is None else type(operand.value)
    return _READ_AS[operand.to] if isinstance(operand, Convert) else None


def _common(items: Sequence[Operand]) -> type | None:
    kinds = {kind for item in items if (kind := _kind(item)) is not None}
    if kinds == {int, float}:
        return float
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidRequest(f"The constants of an $in list must have the same type, got {names}")
    return kinds.pop() if kinds else None
