"""Classes that clients publish: their roots, saved views with queries, charts, leaderboards and dashboards."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, ForwardRef, Literal, Self, Union, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    field_validator,
    model_validator,
)

from heddle.errors import HeddleError
from heddle.trace.chart_measure import ChartMeasure, Label, Path
from heddle.wire.aggregates import MODEL
from heddle.wire.call_fields import resolve_field
from heddle.wire.calls import CallConditions, OrderTerm
from heddle.wire.lazy_model import LazyModel
from heddle.wire.query import fields, parse_query


class BaseObject(BaseModel):
    """The root of the classes that the server knows."""

    name: str | None = None
    description: str | None = None


class BaseModelStrict(BaseModel):
    """A part that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid")


class OptionalFields:
    """Mixed into a part whose later fields are written only when they are given, as older clients do not know them."""

    written_when_given: ClassVar[frozenset[str]] = frozenset()


_UNNAMED = (OptionalFields, CallConditions, OrderTerm, LazyModel)
"""Bases that classes of clients do not have."""


def dump(value: Any) -> Any:
    """A model as clients write it: its class, every field by its alias, class again, bases; parts likewise."""
    if isinstance(value, BaseModel):
        cls = type(value)
        bases = [base.__name__ for base in cls.__mro__[1:-1] if base not in _UNNAMED]
        fields = {field.alias or name: dump(getattr(value, name)) for name, field in _written(value)}
        return {"_type": cls.__name__, **fields, "_class_name": cls.__name__, "_bases": bases}
    if isinstance(value, dict):
        return {key: dump(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [dump(item) for item in value]
    return value


def _written(value: BaseModel) -> list[tuple[str, Any]]:
    optional = value.written_when_given if isinstance(value, OptionalFields) else frozenset()
    fields = type(value).model_fields.items()
    return [(name, field) for name, field in fields if name not in optional or name in value.model_fields_set]


class ConvertSpec(BaseModel):
    """An operand and the type to read it as."""

    input: "Operand"
    to: Literal["double", "string", "int", "bool", "exists"]


class ContainsSpec(BaseModel):
    """A text to look in and a text to look for."""

    input: "Operand"
    substr: "Operand"
    case_insensitive: bool | None = False


_CONSTANT = """str | int | float | bool | dict[str, "LiteralOperation"] | list["LiteralOperation"] | None"""
_PAIR = """tuple["Operand", "Operand"]"""
_VALUES = {
    "LiteralOperation": ("literal_", "$literal", _CONSTANT),
    "GetFieldOperator": ("get_field_", "$getField", "str"),
    "ConvertOperation": ("convert_", "$convert", "ConvertSpec"),
    "SizeOperation": ("size_", "$size", "Operand"),
}
_OPERATIONS = {
    "AndOperation": ("and_", "$and", """list["Operand"]"""),
    "OrOperation": ("or_", "$or", """list["Operand"]"""),
    "NotOperation": ("not_", "$not", """tuple["Operand"]"""),
    **{f"{name.capitalize()}Operation": (f"{name}_", f"${name}", _PAIR) for name in ("eq", "gt", "lt", "gte", "lte")},
    "InOperation": ("in_", "$in", """tuple["Operand", list["Operand"]]"""),
    "ContainsOperation": ("contains_", "$contains", "ContainsSpec"),
}
"""Classes of the operands of a query: the name of the only field, its alias and its type."""


def _define(table: dict[str, tuple[str, str, str]]) -> dict[str, type[BaseModel]]:
    config = ConfigDict(populate_by_name=True)
    return {
        name: create_model(name, __config__=config, **cast(Any, {field: (ForwardRef(kind), Field(alias=alias))}))
        for name, (field, alias, kind) in table.items()
    }


_operations, _values = _define(_OPERATIONS), _define(_VALUES)
if TYPE_CHECKING:
    Operation = Any
    Operand = Any
else:
    Operation = Union[*_operations.values()]
    Operand = Union[*_values.values(), Operation]


class Query(BaseModel):
    """One operation at the top."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    expr_: Operation = Field(alias="$expr")


class SortBy(BaseModelStrict, OrderTerm):
    """One term of an order."""


class CallsFilter(BaseModelStrict, CallConditions):
    """Which calls a view shows."""


_types: dict[str, Any] = globals() | _values | _operations
_models: list[type[BaseModel]] = [ConvertSpec, ContainsSpec, *_values.values(), *_operations.values(), Query]
for _model in _models:
    _model.model_rebuild(_types_namespace=_types)


class LeaderboardColumn(BaseModel):
    """One metric of one evaluation."""

    evaluation_object_ref: str
    scorer_name: str
    summary_metric_path: str
    should_minimize: bool | None = None


class Leaderboard(BaseObject):
    """Models ranked by metrics of evaluations."""

    columns: list[LeaderboardColumn]


class Pin(BaseModel):
    """Columns that stay in sight."""

    left: list[str]
    right: list[str]


class Column(BaseModel):
    """One column of a view."""

    path: list[str | int] | None = None
    label: str | None = None


class ChartConfig(BaseModel):
    """One chart of a view; not an object of its own."""

    x_axis: str
    y_axis: str
    plot_type: Literal["scatter", "line", "bar"] | None = None
    bin_count: int | None = None
    aggregation: Literal["average", "sum", "min", "max", "p95", "p99"] | None = None
    group_keys: list[str] | None = None
    custom_name: str | None = None


class ObjectVersionGroup(BaseModel):
    """Versions of an object under one label."""

    label: str
    base_ref: str
    versions: list[str] | Literal["*"]
    show_version_indicator: bool


class ObjectConfig(BaseModel):
    """Which objects appear and under which names."""

    version_groups: list[ObjectVersionGroup] | None = None
    display_name_map: dict[str, str] | None = None
    deselected: list[str] | None = None


class DynamicLeaderboardColumnConfig(BaseModel):
    """One column of a leaderboard that a view computes."""

    evaluation_object_ref: str | None = None
    scorer_name: str | None = None
    display_name: str | None = None
    summary_metric_path: str | None = None
    should_minimize: bool | None = None
    deselected: bool | None = None


class DynamicLeaderboardConfig(BaseModel):
    """The leaderboard that a view computes."""

    model_configuration: ObjectConfig | None = None
    dataset_configuration: ObjectConfig | None = None
    scorer_configuration: ObjectConfig | None = None
    columns_configuration: list[DynamicLeaderboardColumnConfig] | None = None


class SavedViewDefinition(BaseModel):
    """What a view shows, and how."""

    filter: CallsFilter | None = None
    query: Query | None = None
    cols: dict[str, bool] | None = None
    columns: list[Column] | None = None
    column_order: list[str] | None = None
    expand_columns: list[str] | None = None
    header_depth: int | None = None
    pin: Pin | None = None
    sort_by: list[SortBy] | None = None
    page: int | None = None
    page_size: int | None = None
    charts: list[ChartConfig] | None = None
    dataset_selector: str | None = None
    evaluation_selector: str | None = None
    dynamic_leaderboard_config: DynamicLeaderboardConfig | None = None


class SavedView(BaseObject):
    """A view of calls that somebody saved."""

    view_type: str
    label: str
    definition: SavedViewDefinition


class ComparisonViewDefinition(BaseModel, OptionalFields):
    """Which evaluations are compared, by which metrics; clients before 0.54 know no column visibility."""

    written_when_given: ClassVar[frozenset[str]] = frozenset({"column_visibility"})

    evaluation_call_ids: list[str]
    selected_metrics: list[str] | None = None
    column_visibility: dict[str, bool] | None = None


class ComparisonView(BaseObject):
    """A comparison of evaluations that somebody saved."""

    label: str
    definition: ComparisonViewDefinition


GRID_COLUMNS = 24


class DashboardConfigModel(BaseModel):
    """A part that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class PanelGridLayout(DashboardConfigModel):
    """Place and size on the grid."""

    x: int = Field(ge=0, lt=GRID_COLUMNS)
    y: int = Field(ge=0)
    w: int = Field(ge=1, le=GRID_COLUMNS)
    h: int = Field(ge=1)

    @model_validator(mode="after")
    def _is_on_the_grid(self) -> Self:
        if self.x + self.w > GRID_COLUMNS:
            raise ValueError("panel layout extends beyond the dashboard grid")
        return self


class PanelQueryConfig(DashboardConfigModel):
    """What every panel asks."""

    version: int = Field(default=1, ge=1, le=1)
    metric: str = Field(min_length=1)
    filter: str = ""
    format: Literal["number", "percent", "cost", "duration"] | None = None


class KpiPanelQueryConfig(PanelQueryConfig):
    """One number."""


class TimelinePanelQueryConfig(PanelQueryConfig):
    """Numbers over time."""

    group_by: str | None = Field(default=None, alias="groupBy")
    limit: int | None = Field(default=None, ge=1, le=50)


class BreakdownPanelQueryConfig(PanelQueryConfig):
    """Numbers by group."""

    group_by: str = Field(min_length=1, alias="groupBy")
    limit: int = Field(default=6, ge=1, le=50)


class DashboardPanelBase(DashboardConfigModel):
    """What every panel has."""

    id: str = Field(min_length=1)
    layout: PanelGridLayout


def _define_panel(word: str, query: type[PanelQueryConfig]) -> Any:
    """The class of panels of a type, with that of their settings."""
    settings = create_model(
        f"{word}PanelSettings", __base__=DashboardConfigModel, query=(query, ...), title=(str | None, None)
    )
    fields: Any = {"panel_type": (Literal[word.lower()], ...), "settings": (settings, ...)}
    return create_model(f"{word}DashboardPanel", __base__=DashboardPanelBase, **fields)


if TYPE_CHECKING:
    Panel = Any
else:
    _QUERIES = {
        "Kpi": KpiPanelQueryConfig,
        "Timeline": TimelinePanelQueryConfig,
        "Breakdown": BreakdownPanelQueryConfig,
    }
    Panel = Union[*(_define_panel(word, query) for word, query in _QUERIES.items())]


class AgentDashboardDefinition(DashboardConfigModel):
    """The panels."""

    panels: list[Panel]


class AgentDashboard(BaseObject):
    """A dashboard that somebody saved."""

    label: str
    definition: AgentDashboardDefinition


CLASS_KEYS = ("_type", "_class_name", "_bases")
Period = Annotated[str, Field(pattern=r"^(all|[1-9][0-9]{0,3}[hd])$")]
"""All calls, or the last hours or days: `24h`, `30d`."""


def without_classes(value: Any) -> Any:
    """A value as it was before the names of its class were added."""
    return {key: item for key, item in value.items() if key not in CLASS_KEYS} if isinstance(value, dict) else value


def _check_query(value: dict[str, Any] | None) -> dict[str, Any] | None:
    try:
        for path in () if value is None else fields(parse_query(value, ("", "query"))):
            resolve_field(path)
    except HeddleError as error:
        raise ValueError(error.reason) from None
    return value


SelectedCalls = Annotated[CallsFilter | None, BeforeValidator(without_classes)]
SelectingQuery = Annotated[dict[str, Any] | None, AfterValidator(_check_query)]
"""A query as /calls/stream_query takes it."""


class Chart(BaseModelStrict):
    """One chart: figures of the calls that it and its dashboard select."""

    _plain = model_validator(mode="before")(without_classes)

    id: Annotated[str, Field(min_length=1, max_length=100)]
    title: Label = ""
    kind: Literal["line", "bar", "stacked", "number", "table", "histogram"]
    measures: Annotated[list[ChartMeasure], Field(min_length=1, max_length=6)]
    group_by: Path | None = None
    limit: int = Field(default=8, ge=1, le=50)
    """The most groups; all others are one more."""
    filter: SelectedCalls = None
    query: SelectingQuery = None
    period: Period | None = None
    """A time of its own instead of the dashboard's."""
    granularity: int | None = Field(default=None, ge=60, le=31_536_000)
    """Seconds of a bucket; null: by the length of the time."""
    width: int = Field(default=2, ge=1, le=4)
    """Quarters of a row."""
    height: int = Field(default=1, ge=1, le=3)

    @field_validator("group_by")
    @classmethod
    def _check_group(cls, value: str | None) -> str | None:
        try:
            if value not in (None, MODEL):
                resolve_field(value)
        except HeddleError as error:
            raise ValueError(error.reason) from None
        return value


class Dashboard(BaseObject):
    """Charts on one page; keys that it does not know are refused, but for those of classes."""

    model_config = ConfigDict(extra="forbid")
    _plain = model_validator(mode="before")(without_classes)

    filter: SelectedCalls = None
    query: SelectingQuery = None
    period: Period = "7d"
    charts: list[Chart] = Field(default_factory=list, max_length=60)

    @model_validator(mode="after")
    def _have_ids(self) -> Self:
        if len({chart.id for chart in self.charts}) < len(self.charts):
            raise ValueError("charts: the ids must be unique")
        return self
