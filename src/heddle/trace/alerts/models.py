"""Requests and answers of the alert routes."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from heddle.http import RequestModel, ResponseModel
from heddle.trace.calls.models import CallsFilter
from heddle.wire.query import parse_query

Metric = Literal["count", "error_share", "cost", "p95_latency_ms", "score"]
Operator = Literal[">", ">=", "<", "<="]
Text = Annotated[str, Field(min_length=1, max_length=200)]
MOST_SECONDS = 31 * 86_400


class AlertRule(RequestModel):
    """What is watched: a figure of the calls that a filter chooses, over the last `window_seconds`."""

    metric: Metric
    operator: Operator
    threshold: float = Field(allow_inf_nan=False)
    window_seconds: int = Field(default=3600, ge=60, le=MOST_SECONDS)
    filter: CallsFilter | None = None
    query: dict[str, Any] | None = None
    """A query as /calls/stream_query takes it."""
    scorer: Text | None = None
    """For `score`: the name of the scorer, as in feedback of type `wandb.runnable.<name>`."""
    score_path: str | None = Field(default=None, max_length=1000)
    """For `score`: dotted path of the number in the scorer's output; the whole output without."""
    minimum_calls: int | None = Field(default=None, ge=1, le=1_000_000_000)
    """With fewer calls (or scores) in the window nothing is decided; 1 unless given, and not for `count`."""
    webhook_url: Annotated[str, Field(min_length=1, max_length=2000)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.metric == "score") != (self.scorer is not None):
            raise ValueError("scorer is needed for the metric score, and for no other")
        if self.score_path is not None and self.scorer is None:
            raise ValueError("score_path needs a scorer")
        if self.metric == "count" and self.minimum_calls is not None:
            raise ValueError("minimum_calls is of no use for the metric count")
        if self.query is not None:
            parse_query(self.query)
        return self


class AlertCreateReq(AlertRule):
    """Body of /alerts/create."""

    project_id: str
    name: Text
    enabled: bool = True


class AlertUpdateReq(AlertCreateReq):
    """Body of /alerts/update: the whole rule anew."""

    id: str


class AlertReq(RequestModel):
    """Names one rule."""

    project_id: str
    id: str


class AlertsQueryReq(RequestModel):
    """Body of /alerts/query."""

    project_id: str


class AlertDeliveriesReq(RequestModel):
    """Body of /alerts/deliveries/query."""

    project_id: str
    id: str | None = None
    limit: int = Field(default=100, ge=0, le=1000)
    offset: int = Field(default=0, ge=0)


class AlertSchema(ResponseModel):
    """A rule and what it found last; instants are ISO 8601."""

    id: str
    project_id: str
    name: str
    enabled: bool
    rule: dict[str, Any]
    state: Literal["quiet", "firing"]
    value: float | None
    problem: str | None
    checked_at: str | None
    changed_at: str | None
    created_at: str
    created_by: str


class AlertCreateRes(ResponseModel):
    """The new rule, and once only the secret that its messages are signed with."""

    alert: AlertSchema
    secret: str


class AlertRes(ResponseModel):
    """One rule."""

    alert: AlertSchema


class AlertsQueryRes(ResponseModel):
    """The rules of a project."""

    alerts: list[AlertSchema]


class AlertDeliverySchema(ResponseModel):
    """One message and how sending it went."""

    id: str
    alert_id: str
    event: Literal["alert.firing", "alert.resolved", "alert.test"]
    state: Literal["pending", "delivered", "failed"]
    attempts: int
    next_at: str | None
    error: str | None
    created_at: str
    ended_at: str | None
    body: dict[str, Any]


class AlertDeliveriesRes(ResponseModel):
    """Messages, newest first."""

    deliveries: list[AlertDeliverySchema]


class AlertTestRes(ResponseModel):
    """The message that was put into the queue."""

    delivery_id: str
