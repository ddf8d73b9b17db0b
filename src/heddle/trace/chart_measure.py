"""A figure of calls, as charts ask for it and stored dashboards keep it."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from heddle.errors import HeddleError
from heddle.wire.aggregates import check_measure
from heddle.wire.lazy_model import LazyModel

Path = Annotated[str, Field(min_length=1, max_length=2000)]
Label = Annotated[str, Field(max_length=200)]


class ChartMeasure(LazyModel):
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
