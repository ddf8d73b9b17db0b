"""Requests of the agents reads, and the parts that several of them share."""

from collections import Counter
from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from heddle.http import RequestModel
from heddle.store.control.agents.fields import CUSTOM_TYPES, DERIVED
from heddle.store.control.agents.groups import RESERVED
from heddle.store.control.agents.measures import AGGREGATIONS
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
Number = Annotated[float, Field(allow_inf_nan=False)]


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
            raise ValueError(f"unknown derived span value: {self.key[:200]!r}; known are {', '.join(DERIVED)}")
        return self


class AgentGroupByRef(RequestModel):
    """What spans are grouped by; `column` is the older word for `field`."""

    source: GroupSource = "field"
    key: str
    alias: str | None = None


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


class AgentSpanGroupFilter(RequestModel):
    """Keeps the groups whose figure lies between two bounds, both included."""

    group_by: list[AgentGroupByRef] = Field(default_factory=list)
    measure: AgentSpanMeasureSpec
    min: Number | datetime | None = None
    max: Number | datetime | None = None

    @model_validator(mode="after")
    def _bounded(self) -> "AgentSpanGroupFilter":
        bounds = [bound for bound in (self.min, self.max) if bound is not None]
        if not bounds:
            raise ValueError("group filter must set min or max")
        if len({isinstance(bound, datetime) for bound in bounds}) > 1:
            raise ValueError("group filter min and max must use the same type")
        return self


class RatingCondition(RequestModel):
    """A condition on one rating."""

    scorer_key: str
    op: Literal["gte", "gt", "lte", "lt", "eq"]
    value: Number


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


class AgentsQueryReq(RequestModel):
    """Body of /agents/query."""

    project_id: str
    filters: AgentsQueryFilters | None = None
    sort_by: list[AgentSortBy] | None = None
    limit: Limit = 100
    offset: Offset = 0
    include_costs: bool = False


class AgentVersionsQueryReq(RequestModel):
    """Body of /agents/agent-versions/query."""

    project_id: str
    agent_name: str
    sort_by: list[AgentSortBy] | None = None
    limit: Limit = 100
    offset: Offset = 0
    include_costs: bool = False


class AgentSpansQueryReq(RequestModel):
    """Body of /agents/spans/query."""

    project_id: str
    query: QueryBody | None = None
    group_by: list[AgentGroupByRef] | None = None
    measures: list[AgentSpanMeasureSpec] = Field(default_factory=list)
    group_filters: list[AgentSpanGroupFilter] = Field(default_factory=list)
    group_distributions: list[AgentSpanGroupDistributionSpec] = Field(default_factory=list, max_length=20)
    custom_attr_columns: list[AgentSpanValueRef] = Field(default_factory=list)
    include_details: bool = False
    include_costs: bool = False
    sort_by: list[AgentSortBy] | None = None
    limit: Limit = 100
    offset: Offset = 0
    started_after: datetime | None = None
    started_before: datetime | None = None
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
        if taken := sorted({item.alias for item in self.measures} & RESERVED):
            raise ValueError(f"measure aliases collide with grouped row fields: {taken}")
        return self


class AgentCustomAttrsSchemaReq(RequestModel):
    """Body of /agents/spans/custom-attrs/schema."""

    project_id: str
    query: QueryBody | None = None
    started_after: datetime | None = None
    started_before: datetime | None = None
    limit: int = Field(default=200, ge=1, le=2000)
    offset: Offset = 0


class AgentSearchReq(RequestModel):
    """Body of /agents/search."""

    project_id: str
    query: str = ""
    trace_id: str | None = None
    roles: list[Role] | None = None
    conversation_id: str | None = None
    agent_name: str | None = None
    provider_name: str | None = None
    request_model: str | None = None
    truncate_content: bool = True
    started_after: datetime | None = None
    started_before: datetime | None = None
    limit: int = Field(default=20, ge=0, le=1000)
    offset: Offset = 0


class AgentTraceChatReq(RequestModel):
    """Body of /agents/traces/chat."""

    project_id: str
    trace_id: str
    include_feedback: bool = False
    include_model_tool_calls: bool = False


class AgentConversationChatReq(RequestModel):
    """Body of /agents/conversations/chat; `offset` counts from the newest turn."""

    project_id: str
    conversation_id: str
    limit: int = Field(default=50, ge=0, le=50)
    offset: Offset = 0
    include_feedback: bool = False
    include_model_tool_calls: bool = False


class AgentConversationSpansReq(RequestModel):
    """Body of /agents/conversations/spans."""

    project_id: str
    conversation_ids: list[str] = Field(default_factory=list, max_length=10_000)
    started_after: datetime | None = None
    started_before: datetime | None = None


def check_unique(names: list[str], what: str) -> None:
    """Raise ValueError when a name occurs twice."""
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ValueError(f"duplicate {what}: {repeated}")


def _check_type(value: AgentSpanValueRef | None, value_type: str) -> None:
    if value is not None and value.source == "derived" and DERIVED[value.key] != value_type:
        raise ValueError(f"derived value {value.key!r} has value_type {DERIVED[value.key]!r}, got {value_type!r}")
