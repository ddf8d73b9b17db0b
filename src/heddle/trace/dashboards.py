"""Dashboards that people put together: charts over calls, stored as objects of the class `Dashboard`."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from heddle.errors import HeddleError
from heddle.trace.builtin_views import BaseModelStrict, BaseObject, CallsFilter
from heddle.wire.aggregates import MODEL, check_measure
from heddle.wire.calls import resolve_field
from heddle.wire.query import fields, parse_query

CLASS_KEYS = ("_type", "_class_name", "_bases")
Path = Annotated[str, Field(min_length=1, max_length=2000)]
Label = Annotated[str, Field(max_length=200)]
Period = Annotated[str, Field(pattern=r"^(all|[1-9][0-9]{0,3}[hd])$")]
"""All calls, or the last hours or days: `24h`, `30d`."""


class ChartMeasure(BaseModel):
    """A figure: one of `calls`, `errors`, `error_share`, `cost`, `latency_ms` and tokens, or any field as a number."""

    field: Path = "calls"
    aggregation: str | None = None
    """sum, avg, min, max, count, count_true, count_false, or p0 to p100; the usual one for null."""
    label: Label | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.aggregation = check_measure(self.field, self.aggregation)
        except HeddleError as error:
            raise ValueError(error.reason) from None
        return self


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
            raise ValueError("charts: each id must be another")
        return self
