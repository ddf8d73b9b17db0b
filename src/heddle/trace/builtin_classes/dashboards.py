"""Dashboards of agents (known to clients since 0.54)."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from heddle.trace.builtin_classes.base import BaseObject

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


class KpiPanelSettings(DashboardConfigModel):
    """Settings of a panel with one number."""

    query: KpiPanelQueryConfig
    title: str | None = None


class TimelinePanelSettings(DashboardConfigModel):
    """Settings of a panel over time."""

    query: TimelinePanelQueryConfig
    title: str | None = None


class BreakdownPanelSettings(DashboardConfigModel):
    """Settings of a panel by group."""

    query: BreakdownPanelQueryConfig
    title: str | None = None


class DashboardPanelBase(DashboardConfigModel):
    """What every panel has."""

    id: str = Field(min_length=1)
    layout: PanelGridLayout


class KpiDashboardPanel(DashboardPanelBase):
    """A panel with one number."""

    panel_type: Literal["kpi"]
    settings: KpiPanelSettings


class TimelineDashboardPanel(DashboardPanelBase):
    """A panel over time."""

    panel_type: Literal["timeline"]
    settings: TimelinePanelSettings


class BreakdownDashboardPanel(DashboardPanelBase):
    """A panel by group."""

    panel_type: Literal["breakdown"]
    settings: BreakdownPanelSettings


class AgentDashboardDefinition(DashboardConfigModel):
    """The panels."""

    panels: list[KpiDashboardPanel | TimelineDashboardPanel | BreakdownDashboardPanel]


class AgentDashboard(BaseObject):
    """A dashboard that somebody saved."""

    label: str
    definition: AgentDashboardDefinition
