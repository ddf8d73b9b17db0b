"""Requests of the agents reads, the parts that several of them share, and what the store is asked for them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from heddle.http.routing import ProjectReq, RequestModel
from heddle.store.control.agents.aggregates import COST_SUMS, LISTS, SUMS
from heddle.store.control.agents.fields import AGGREGATIONS, CUSTOM_TYPES, DERIVED, NUMBER, GroupFilter, column_name
from heddle.store.control.row_queries import Sort
from heddle.trace.agents.responses import AgentSpanStatsColumn
from heddle.wire import times
from heddle.wire.aggregates import Key, Measure, Value
from heddle.wire.buckets import MAX_METRICS, MAX_PERCENTILES, percentile_name
from heddle.wire.calls import MAX_SORT_TERMS
from heddle.wire.query import QueryBody

Source = Literal[
    "field", "derived", "custom_attrs_string", "custom_attrs_int", "custom_attrs_float", "custom_attrs_bool"
]
GroupSource = Literal[
    "field", "column", "custom_attrs_string", "custom_attrs_int", "custom_attrs_float", "custom_attrs_bool"
]
ValueType = Literal["datetime", "number", "boolean", "string"]
Aggregation = Literal["sum", "avg", "min", "max", "count", "count_distinct", "count_true", "count_false"]
Role = Literal["", "user", "assistant", "system", "tool", "tool_call", "tool_result"]
Alias = Annotated[str, Field(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]
MAX_LIMIT = 10_000
MAX_OFFSET = 2**63 - 1
Limit = Annotated[int, Field(ge=0, le=MAX_LIMIT)]
Offset = Annotated[int, Field(ge=0, le=MAX_OFFSET)]
_RESERVED = frozenset(item.alias for item in (*SUMS, *LISTS, *COST_SUMS))
"""Names of a group row that no measure may take."""


class AgentSortBy(RequestModel):
    """One term of an order."""

    field: str
    direction: Literal["asc", "desc"] = "desc"


class AgentSpanValueRef(RequestModel):
    """A value of a span."""

    source: Source = "field"
    key: str

    @model_validator(mode="after")
    def _known(self) -> "AgentSpanValueRef":
        if self.source == "derived" and self.key not in DERIVED:
            raise ValueError(f"unknown derived span value: {self.key[:200]!r}; expected one of {', '.join(DERIVED)}")
        return self

    def value(self) -> Value:
        """What the store is asked for."""
        return Value(self.key, self.source)

    @property
    def is_cost(self) -> bool:
        """True for what needs prices."""
        return self.source == "derived" and self.key.endswith("_cost_usd")


class AgentGroupByRef(RequestModel):
    """What spans are grouped by; `column` is the older word for `field`."""

    source: GroupSource = "field"
    key: str
    alias: str | None = None

    def group(self) -> Key:
        """What the store groups by; without an alias a field is named as its column."""
        name = column_name(self.key) if self.source in ("field", "column") else self.key
        return Key(self.key, self.source, name if self.alias is None else self.alias)


class AgentSpanMeasureSpec(RequestModel):
    """One figure of a group."""

    alias: Alias
    aggregation: Aggregation
    value: AgentSpanValueRef | None = None
    value_type: ValueType | None = None
    filter: QueryBody | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "AgentSpanMeasureSpec":
        if self.value is None and self.aggregation != "count":
            raise ValueError("only count measures may omit value")
        if self.value_type is not None:
            _check_type(self.value, self.value_type)
            if self.aggregation not in AGGREGATIONS[self.value_type]:
                raise ValueError(f"aggregation {self.aggregation!r} is not valid for value_type {self.value_type!r}")
        return self

    def measure(self) -> Measure:
        """What the store computes."""
        value = None if self.value is None else self.value.value()
        return Measure(self.alias, self.aggregation, value, self.value_type, self.filter)


class AgentSpanGroupFilter(RequestModel):
    """Keeps the groups whose figure lies between two bounds, both included."""

    group_by: list[AgentGroupByRef] = Field(default_factory=list)
    measure: AgentSpanMeasureSpec
    min: float | datetime | None = None
    max: float | datetime | None = None

    @model_validator(mode="after")
    def _bounded(self) -> "AgentSpanGroupFilter":
        bounds = [bound for bound in (self.min, self.max) if bound is not None]
        if not bounds:
            raise ValueError("group filter must set min or max")
        if len({isinstance(bound, datetime) for bound in bounds}) > 1:
            raise ValueError("group filter min and max must use the same type")
        return self

    def filter(self, default: tuple[Key, ...]) -> GroupFilter:
        """What the store filters by; without groups of its own it looks at the default ones."""
        low, high = (times.to_micros(bound) if isinstance(bound, datetime) else bound for bound in (self.min, self.max))
        is_instant = isinstance(self.min if self.min is not None else self.max, datetime)
        return GroupFilter(groups(self.group_by) or default, self.measure.measure(), low, high, is_instant)


class RatingCondition(RequestModel):
    """A condition on one rating."""

    scorer_key: str
    op: Literal["gte", "gt", "lte", "lt", "eq"]
    value: float


class AgentSignalFilter(RequestModel):
    """Spans by what scorers and people said of them, of their turn or of their conversation.

    One of the tags must have been given, and every rating condition must hold for one rating.
    """

    tags: list[str] = Field(default_factory=list)
    ratings: list[RatingCondition] = Field(default_factory=list)


class AgentSpanGroupDistributionSpec(RequestModel):
    """A custom attribute whose values are counted in every group."""

    alias: Alias
    value: AgentSpanValueRef
    bins: int = Field(default=12, ge=1, le=50)
    top_n: int = Field(default=5, ge=1, le=20)

    @model_validator(mode="after")
    def _custom(self) -> "AgentSpanGroupDistributionSpec":
        if self.value.source not in CUSTOM_TYPES:
            raise ValueError("distribution specs must reference custom attr sources")
        return self


class InsightFilter(RequestModel):
    """A filter over extracted insights, which heddle does not have; refused where one is sent."""

    field: str
    values: list[str]
    exclude: bool = False


class AgentsQueryFilters(RequestModel):
    """Which agents."""

    agent_name: str | None = None


class _PageReq(ProjectReq):
    sort_by: list[AgentSortBy] | None = Field(default=None, max_length=MAX_SORT_TERMS)
    limit: Limit = 100
    offset: Offset = 0
    include_costs: bool = False


class _StartedReq(ProjectReq):
    started_after: datetime | None = None
    started_before: datetime | None = None


class AgentsQueryReq(_PageReq):
    """Body of /agents/query."""

    filters: AgentsQueryFilters | None = None


class AgentVersionsQueryReq(_PageReq):
    """Body of /agents/agent-versions/query."""

    agent_name: str


class AgentSpansQueryReq(_PageReq, _StartedReq):
    """Body of /agents/spans/query."""

    query: QueryBody | None = None
    group_by: list[AgentGroupByRef] | None = None
    measures: list[AgentSpanMeasureSpec] = Field(default_factory=list)
    group_filters: list[AgentSpanGroupFilter] = Field(default_factory=list)
    group_distributions: list[AgentSpanGroupDistributionSpec] = Field(default_factory=list, max_length=20)
    custom_attr_columns: list[AgentSpanValueRef] = Field(default_factory=list)
    include_details: bool = False
    signal_filters: AgentSignalFilter | None = None
    insight_filters: list[InsightFilter] = Field(default_factory=list)

    @model_validator(mode="after")
    def _consistent(self) -> "AgentSpansQueryReq":
        grouped = self.measures or self.group_filters or self.group_distributions
        if grouped and not self.group_by:
            raise ValueError("grouped measures, distributions, and filters require group_by")
        if self.group_distributions and len(self.group_by or ()) != 1:
            raise ValueError("group_distributions currently support one group_by ref")
        if self.group_by and self.custom_attr_columns:
            raise ValueError("custom_attr_columns are only supported for ungrouped spans")
        if self.group_by and self.include_details:
            raise ValueError("include_details is only supported for ungrouped spans")
        if any(column.source not in CUSTOM_TYPES for column in self.custom_attr_columns):
            raise ValueError("custom_attr_columns must reference custom attr sources")
        if any(item.group_by and item.group_by != self.group_by for item in self.group_filters):
            raise ValueError("group_filters must use the same group_by as the query")
        aliases = [ref.alias or ref.key for ref in self.group_by or ()] + [item.alias for item in self.measures]
        check_unique(aliases, "group_by and measure aliases")
        check_unique([item.alias for item in self.group_distributions], "distribution aliases")
        if taken := sorted({item.alias for item in self.measures} & _RESERVED):
            raise ValueError(f"measure aliases collide with grouped row fields: {taken}")
        return self


class AgentCustomAttrsSchemaReq(_StartedReq):
    """Body of /agents/spans/custom-attrs/schema."""

    query: QueryBody | None = None

    limit: int = Field(default=200, ge=1, le=2000)
    offset: Offset = 0


class AgentSearchReq(_StartedReq):
    """Body of /agents/search."""

    query: str = ""
    trace_id: str | None = None
    roles: list[Role] | None = None
    conversation_id: str | None = None
    agent_name: str | None = None
    provider_name: str | None = None
    request_model: str | None = None
    truncate_content: bool = True

    limit: int = Field(default=20, ge=0, le=1000)
    offset: Offset = 0


class AgentChatReq(ProjectReq):
    """What a chat view shows beside the messages."""

    include_feedback: bool = False
    include_model_tool_calls: bool = False


class AgentTraceChatReq(AgentChatReq):
    """Body of /agents/traces/chat."""

    trace_id: str


class AgentConversationChatReq(AgentChatReq):
    """Body of /agents/conversations/chat; `offset` counts from the newest turn."""

    conversation_id: str
    limit: int = Field(default=50, ge=0, le=50)
    offset: Offset = 0


class AgentConversationSpansReq(_StartedReq):
    """Body of /agents/conversations/spans."""

    conversation_ids: list[str] = Field(default_factory=list, max_length=10_000)


class AgentSpanStatsMetricSpec(RequestModel):
    """A value of spans, and what to compute over it."""

    alias: Alias
    value_type: ValueType
    aggregations: list[Aggregation] = Field(default_factory=list)
    percentiles: list[float] = Field(default_factory=list, max_length=MAX_PERCENTILES)
    value: AgentSpanValueRef

    @model_validator(mode="after")
    def _consistent(self) -> "AgentSpanStatsMetricSpec":
        if self.value.source == "derived" and DERIVED[self.value.key] != self.value_type:
            raise ValueError(
                f"derived metric {self.value.key!r} has value_type {DERIVED[self.value.key]!r}, got {self.value_type!r}"
            )
        if invalid := [item for item in self.aggregations if item not in AGGREGATIONS[self.value_type]]:
            raise ValueError(f"aggregations {invalid} are not valid for value_type {self.value_type!r}")
        check_unique(list(self.aggregations), "metric aggregations")
        if self.percentiles and self.value_type != NUMBER:
            raise ValueError("percentiles are only valid for number metrics")
        if any(not 0 <= percentile <= 100 for percentile in self.percentiles):
            raise ValueError(f"percentiles must be between 0 and 100, got {self.percentiles}")
        return self

    def measures(self) -> list[Measure]:
        """What is computed, named as the columns are."""
        value = self.value.value()
        found = [Measure(f"{kind}_{self.alias}", kind, value, self.value_type) for kind in self.aggregations]
        for percentile in self.percentiles:
            found.append(Measure(f"{_label(percentile)}_{self.alias}", "percentile", value, rank=percentile))
        return found

    def columns(self) -> list[AgentSpanStatsColumn]:
        """The columns of what is computed."""
        shown: list[tuple[str, str]] = [
            (kind, self.value_type if kind in ("min", "max") else NUMBER) for kind in self.aggregations
        ]
        shown += [(_label(percentile), NUMBER) for percentile in self.percentiles]
        return [column(f"{kind}_{self.alias}", "metric", kind_of, self.alias, kind) for kind, kind_of in shown]


class AgentSpanStatsTimeBucketSpec(RequestModel):
    """Rows by the time at which spans started."""

    type: Literal["time"] = "time"


class AgentSpanStatsNumericBucketSpec(RequestModel):
    """Rows by ranges of a number: of a value of spans, or of a figure of groups."""

    type: Literal["number"] = "number"
    alias: Alias = "value"
    bins: int = Field(default=24, ge=1, le=200)
    min: float | None = None
    max: float | None = None
    value: AgentSpanValueRef | None = None
    group_by: list[AgentGroupByRef] = Field(default_factory=list)
    measure: AgentSpanMeasureSpec | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "AgentSpanStatsNumericBucketSpec":
        if bool(self.group_by) != (self.measure is not None):
            raise ValueError("numeric group bucket must set both group_by and measure")
        if (self.value is not None) == (self.measure is not None):
            raise ValueError("exactly one of value or group_by/measure must be set")
        if self.value is not None and self.value.source in CUSTOM_TYPES and CUSTOM_TYPES[self.value.source] != NUMBER:
            raise ValueError("numeric bucket value must be numeric")
        if self.min is not None and self.max is not None and self.max < self.min:
            raise ValueError("numeric bucket max must be greater than or equal to min")
        return self


BucketSpec = Annotated[AgentSpanStatsTimeBucketSpec | AgentSpanStatsNumericBucketSpec, Field(discriminator="type")]


class AgentSpanStatsReq(ProjectReq):
    """Body of /agents/spans/stats."""

    query: QueryBody | None = None
    start: datetime
    end: datetime | None = None
    granularity: int | None = Field(default=None, gt=0, le=2**40)
    timezone: str = "UTC"
    group_by: list[AgentGroupByRef] = Field(default_factory=list)
    metrics: list[AgentSpanStatsMetricSpec] = Field(default_factory=list, max_length=MAX_METRICS)
    group_limit: int = Field(default=50, ge=1, le=1000)
    bucket_by: BucketSpec | None = None
    group_filters: list[AgentSpanGroupFilter] = Field(default_factory=list)
    signal_filters: AgentSignalFilter | None = None
    insight_filters: list[InsightFilter] = Field(default_factory=list)

    @property
    def numeric(self) -> AgentSpanStatsNumericBucketSpec | None:
        """The numeric bucket, None for rows over time."""
        return self.bucket_by if isinstance(self.bucket_by, AgentSpanStatsNumericBucketSpec) else None

    @model_validator(mode="after")
    def _consistent(self) -> "AgentSpanStatsReq":
        numeric = self.numeric
        if numeric is None and not any(metric.aggregations or metric.percentiles for metric in self.metrics):
            raise ValueError("at least one metric with an aggregation or a percentile is required")
        names = [column.name for metric in self.metrics for column in metric.columns()]
        check_unique([*names, *(ref.alias or ref.key for ref in self.group_by)], "output columns")
        if numeric is not None and self.group_by:
            raise ValueError("numeric bucket stats do not support group_by")
        if numeric is not None and numeric.group_by and self.metrics:
            raise ValueError("grouped numeric bucket stats do not support explicit metrics")
        if self.group_filters and self.group_by:
            raise ValueError("group_filters do not support group_by")
        if self.group_filters and numeric is not None and not numeric.group_by:
            raise ValueError("group_filters are only supported for time stats or grouped numeric bucket stats")
        return self


def sort_of(sort_by: Sequence[AgentSortBy] | None) -> list[Sort]:
    """The typed order."""
    return [Sort(term.field, term.direction == "desc") for term in sort_by or ()]


def groups(given: Iterable[AgentGroupByRef] | None) -> tuple[Key, ...]:
    """What the store groups by."""
    return tuple(ref.group() for ref in given or ())


def column(
    name: str, role: Any, value_type: Any, metric: str | None = None, aggregation: str | None = None
) -> AgentSpanStatsColumn:
    """A column of a chart."""
    return AgentSpanStatsColumn(name=name, role=role, value_type=value_type, metric=metric, aggregation=aggregation)


def _label(percentile: float) -> str:
    return percentile_name(percentile).replace(".", "_")


def check_unique(names: list[str], what: str) -> None:
    """Raise ValueError when a name occurs twice."""
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ValueError(f"duplicate {what}: {repeated}")


def _check_type(value: AgentSpanValueRef | None, value_type: str) -> None:
    if value is not None and value.source == "derived" and DERIVED[value.key] != value_type:
        raise ValueError(f"derived value {value.key!r} has value_type {DERIVED[value.key]!r}, got {value_type!r}")
