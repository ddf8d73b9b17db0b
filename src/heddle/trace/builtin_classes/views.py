"""Saved views, charts, comparisons and leaderboards."""

from typing import ClassVar, Literal

from pydantic import BaseModel

from heddle.trace.builtin_classes.base import BaseObject, OptionalFields
from heddle.trace.builtin_classes.query import CallsFilter, Query, SortBy


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
