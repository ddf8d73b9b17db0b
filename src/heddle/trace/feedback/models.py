"""Feedback as it comes in and goes out, and what each feedback type accepts (contract: trace-core, section 9)."""

import json
import re
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any
from typing import Literal as OneOf

import orjson
from pydantic import Field, model_validator

from heddle.errors import InvalidRequest
from heddle.http.routing import ProjectReq, RequestModel, ResponseModel
from heddle.ipc import json_schemas
from heddle.ipc.bounded import TooMuchWork
from heddle.store.control.feedback import STRUCTURES, Window
from heddle.text_cache import cache_texts
from heddle.trace.rows import PurgeReq, RowQueryReq, TimeRangeRes
from heddle.wire import jsontext, refs, times
from heddle.wire.buckets import MAX_METRICS, MAX_PERCENTILES, MAX_RANGE_DAYS, AggregationType

ValueType = OneOf["numeric", "boolean", "categorical"]
GroupBy = OneOf["scorer_id", "span_agent_name", "span_agent_version", "span_status_code"]
SpanType = OneOf["agent_turn", "agent_conversation"]

MAX_AGGREGATE_BUCKETS = 256
DEFAULT_SAMPLE = 2000
MAX_SAMPLE = 5000

_DEFAULT_AGGREGATIONS = {
    "numeric": [AggregationType.AVG, AggregationType.MIN, AggregationType.MAX],
    "boolean": [AggregationType.COUNT_TRUE, AggregationType.COUNT_FALSE],
    "categorical": [AggregationType.COUNT],
}


class FeedbackCreateReq(RequestModel):
    """One feedback row to store."""

    id: str | None = None
    project_id: str
    weave_ref: str
    creator: str | None = None
    feedback_type: str
    payload: dict[str, Any]
    annotation_ref: str | None = None
    runnable_ref: str | None = None
    call_ref: str | None = None
    trigger_ref: str | None = None
    queue_id: str | None = None
    scorer_tags: list[str] = Field(default_factory=list)
    scorer_tag_reasons: dict[str, str] = Field(default_factory=dict)
    scorer_tag_confidences: dict[str, float] = Field(default_factory=dict)
    scorer_ratings: dict[str, float] = Field(default_factory=dict)
    scorer_rating_reasons: dict[str, str] = Field(default_factory=dict)
    scorer_rating_confidences: dict[str, float] = Field(default_factory=dict)
    span_agent_name: str = ""
    span_agent_version: str = ""
    span_status_code: str = "UNSET"
    span_trace_id: str = ""
    span_conversation_id: str = ""
    scorer_trace_id: str = ""
    wb_user_id: str | None = None


class FeedbackCreateRes(ResponseModel):
    """What was stored; the payload of reactions has more than what was sent."""

    id: str
    created_at: datetime
    wb_user_id: str
    payload: dict[str, Any]


class FeedbackBatchCreateReq(RequestModel):
    """Rows to store, all or none."""

    batch: list[FeedbackCreateReq]


class FeedbackBatchCreateRes(ResponseModel):
    """What was stored, in order."""

    res: list[FeedbackCreateRes]


class FeedbackReplaceReq(FeedbackCreateReq):
    """A row to store in place of another."""

    feedback_id: str


class FeedbackQueryReq(RowQueryReq):
    """A selection of feedback rows."""


class FeedbackQueryRes(ResponseModel):
    """The selected rows, and how many match before limit and offset."""

    result: list[dict[str, Any]]
    total_count: int


class FeedbackPurgeReq(PurgeReq):
    """Feedback rows to delete, named by their ids."""


class FeedbackWindowReq(ProjectReq):
    """The rows of a time range of at most 31 days."""

    start: datetime
    end: datetime | None = None
    feedback_type: str | None = None
    trigger_ref: str | None = None

    @model_validator(mode="after")
    def _bounded(self) -> "FeedbackWindowReq":
        start, end = _aware(self.start), _aware(self.end or datetime.now(UTC))
        if end < start:
            raise ValueError("Feedback request end must be after start")
        if end - start > timedelta(days=MAX_RANGE_DAYS):
            raise ValueError(f"Feedback request date range cannot exceed {MAX_RANGE_DAYS} days")
        return self

    def window(self) -> Window:
        """The range in the store's terms; it ends now when no end is given."""
        end = times.now() if self.end is None else times.to_micros(self.end)
        return Window(times.to_micros(self.start), end, self.feedback_type, self.trigger_ref)


def _aware(instant: datetime) -> datetime:
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


class FeedbackMetricSpec(RequestModel):
    """A value inside the payload, and what to compute over it."""

    json_path: str
    value_type: ValueType = "numeric"
    aggregations: list[AggregationType] = Field(default_factory=list)
    percentiles: list[float] = Field(default_factory=list, max_length=MAX_PERCENTILES)

    @model_validator(mode="after")
    def _with_defaults(self) -> "FeedbackMetricSpec":
        if not self.aggregations:
            self.aggregations = list(_DEFAULT_AGGREGATIONS[self.value_type])
        return self


class FeedbackStatsReq(FeedbackWindowReq):
    """Figures over payload values, per time bucket and over the whole range."""

    granularity: int | None = None
    timezone: str = "UTC"
    metrics: list[FeedbackMetricSpec] = Field(default_factory=list, max_length=MAX_METRICS)


class FeedbackStatsRes(TimeRangeRes):
    """Buckets `{timestamp, count, <agg>_<slug>, p<N>_<slug>}`, and `{slug: {agg: figure}}` for the whole range."""

    buckets: list[dict[str, Any]]
    window_stats: dict[str, dict[str, float | None]] | None = None


class FeedbackPayloadSchemaReq(FeedbackWindowReq):
    """Which values the payloads of a range hold."""

    sample_limit: int = Field(default=DEFAULT_SAMPLE, ge=1, le=MAX_SAMPLE)


class FeedbackPayloadPath(ResponseModel):
    """A value that payloads hold, and its type."""

    json_path: str
    value_type: ValueType = "numeric"


class FeedbackPayloadSchemaRes(ResponseModel):
    """The values found, sorted by path."""

    paths: list[FeedbackPayloadPath]


class FeedbackAggregateReq(ProjectReq):
    """Scores rolled up by time and dimension; times in milliseconds since 1970."""

    after_ms: int = Field(ge=0)
    before_ms: int = Field(ge=0)
    time_bucket_seconds: int | None = Field(default=None, gt=0)
    feedback_types: list[str] = Field(default_factory=list)
    tags: list[str] = Field(default_factory=list)
    rating_min: float | None = Field(default=None, ge=0, le=1)
    rating_max: float | None = Field(default=None, ge=0, le=1)
    monitor_ids: list[str] = Field(default_factory=list)
    scorer_ids: list[str] = Field(default_factory=list)
    span_agent_names: list[str] = Field(default_factory=list)
    span_types: list[SpanType] = Field(default_factory=list)
    group_by: list[GroupBy] = Field(default_factory=list)

    @model_validator(mode="after")
    def _bounded(self) -> "FeedbackAggregateReq":
        span = self.before_ms - self.after_ms
        if span <= 0:
            raise ValueError("before_ms must be greater than after_ms")
        if span > MAX_RANGE_DAYS * 86_400_000 and (self.time_bucket_seconds or self.group_by or self.is_filtered):
            raise ValueError(
                f"Feedback requests over {MAX_RANGE_DAYS} days must be a project-wide total: "
                "no time_bucket_seconds, no group_by, and no filters."
            )
        if self.time_bucket_seconds is not None and span / 1000 / self.time_bucket_seconds > MAX_AGGREGATE_BUCKETS:
            raise ValueError(f"Feedback request range cannot exceed {MAX_AGGREGATE_BUCKETS} buckets")
        return self

    @property
    def is_filtered(self) -> bool:
        """True when anything but the time range restricts the rows."""
        lists = (self.feedback_types, self.tags, self.monitor_ids, self.scorer_ids, self.span_agent_names)
        return any(lists) or bool(self.span_types) or self.rating_min is not None or self.rating_max is not None


class FeedbackAggregateBucket(ResponseModel):
    """One time bucket and group; counts and sums by tag and rating name."""

    time_bucket_start_ms: int | None = None
    group: dict[str, str]
    total_count: int
    scored_count: int
    tag_counts: dict[str, int]
    rating_counts: dict[str, int]
    rating_sums: dict[str, float]


class FeedbackAggregateRes(ResponseModel):
    """The buckets that hold rows, oldest first."""

    time_bucket_seconds: int | None = None
    after_ms: int
    before_ms: int
    buckets: list[FeedbackAggregateBucket]


REACTION = "wandb.reaction.1"
NOTE = "wandb.note.1"
ANNOTATION = "wandb.annotation"
RUNNABLE = "wandb.runnable"
AGENT_MONITOR = "wandb.agent_monitor"
AGENT_USER_FEEDBACK = "wandb.agent_user_feedback"

MAX_NOTE = 1024
MAX_REACTION = 1000
MAX_PAYLOAD = 1024 * 1024

_REFS = {"runnable_ref": ("object", "op"), "call_ref": ("call",), "trigger_ref": ("object",)}
"""Refs of scorers, and the kinds that they may have."""
_IDS = (
    *("id", "feedback_type", "queue_id", "span_agent_name", "span_agent_version", "span_trace_id"),
    *("span_conversation_id", "scorer_trace_id"),
)
_TONE = re.compile("_(?:medium-light|medium-dark|medium|light|dark)_skin_tone")


def check_feedback(row: FeedbackCreateReq, project: str) -> None:
    """Raise InvalidRequest where a row breaks the rules of its type; what needs the store is not looked at.

    `project` is the internal id; refs are internal.
    """
    for name in _IDS:
        refs.check_id(name, getattr(row, name))
    for name in ("weave_ref", "annotation_ref", *_REFS):
        refs.check_id(name, getattr(row, name), refs.MAX_REF_BYTES)
    kind = row.feedback_type
    if kind == REACTION:
        _check_reaction(row)
    elif kind == NOTE:
        _check_note(row)
    if kind.startswith(ANNOTATION):
        _check_annotation(row, project)
    elif row.annotation_ref:
        raise InvalidRequest("annotation_ref is not allowed for non-annotation feedback")
    elif kind.startswith(RUNNABLE):
        _check_runnable(row)
    elif kind == AGENT_MONITOR:
        _require(row, ("runnable_ref", "call_ref", "trigger_ref"), "agent monitor feedback")
    else:
        for name in ("runnable_ref", "call_ref", "trigger_ref"):
            if getattr(row, name):
                raise InvalidRequest(f"{name} is not allowed for non-runnable feedback")
    _check_scorer_fields(row)
    for name, kinds in _REFS.items():
        if getattr(row, name):
            _ref(row, name, kinds)


def _check_reaction(row: FeedbackCreateReq) -> None:
    shown = row.payload.get("emoji")
    if not isinstance(shown, str):
        raise InvalidRequest(f"Invalid payload for feedback_type {REACTION}: emoji must be a string")
    if len(shown) > MAX_REACTION or _emoji().emoji_count(shown) != 1:
        raise InvalidRequest("Value of emoji key in payload must be exactly one emoji")


@cache
def _emoji() -> Any:
    """The library, which is loaded with the first reaction: it brings every emoji in every language."""
    import emoji

    return emoji


def _check_note(row: FeedbackCreateReq) -> None:
    note = row.payload.get("note")
    if not isinstance(note, str) or not 1 <= len(note) <= MAX_NOTE:
        raise InvalidRequest(
            f"Invalid payload for feedback_type {NOTE}: note must be a string of 1 to {MAX_NOTE} characters"
        )


def _check_annotation(row: FeedbackCreateReq, project: str) -> None:
    ref = _target(row, ANNOTATION, ("object",), "value")
    if ref.project != project:
        raise InvalidRequest("annotation_ref does not belong to the project of the feedback")


def _check_runnable(row: FeedbackCreateReq) -> None:
    if _target(row, RUNNABLE, ("object", "op"), "output").kind == "op" and not row.call_ref:
        raise InvalidRequest("call_ref is required for runnable feedback on ops")


def _target(row: FeedbackCreateReq, family: str, kinds: tuple[str, ...], needed: str) -> refs.Ref:
    """The object that feedback of a family names in its type and by a ref; `needed` is what its payload has."""
    word, kind = family.rpartition(".")[2], row.feedback_type
    if not kind.startswith(family + "."):
        raise InvalidRequest(f"Invalid {word} feedback type: {kind[:200]}")
    _require(row, (f"{word}_ref",), f"{word} feedback")
    ref, name = _ref(row, f"{word}_ref", kinds), kind[len(family) + 1 :]
    if ref.name != name:
        raise InvalidRequest(f"{word}_ref must point to an object with name {name}")
    if needed not in row.payload:
        raise InvalidRequest(f"Invalid payload for feedback_type {kind}: {needed} is required")
    return ref


def _require(row: FeedbackCreateReq, names: tuple[str, ...], what: str) -> None:
    for name in names:
        if not getattr(row, name):
            raise InvalidRequest(f"{name} is required for {what}")


def _check_scorer_fields(row: FeedbackCreateReq) -> None:
    kind = row.feedback_type
    scored = kind.startswith(RUNNABLE) or kind in (AGENT_MONITOR, AGENT_USER_FEEDBACK)
    if not scored and any(getattr(row, name) for name in STRUCTURES):
        *others, last = STRUCTURES
        raise InvalidRequest(
            f"{', '.join(others)}, and {last} are only allowed on {AGENT_MONITOR}, "
            f"{AGENT_USER_FEEDBACK}, or {RUNNABLE} feedback"
        )
    if kind == AGENT_USER_FEEDBACK and not row.scorer_tags:
        raise InvalidRequest("scorer_tags is required for agent user feedback")


def _ref(row: FeedbackCreateReq, name: str, kinds: tuple[str, ...]) -> refs.Ref:
    text: str = getattr(row, name)
    ref = refs.parse(text)
    if ref.kind not in kinds:
        raise InvalidRequest(
            f"Invalid ref: {refs.to_external(text)[:500]}, {name} must be a ref of kind {' or '.join(kinds)}"
        )
    return ref


def dump_payload(row: FeedbackCreateReq) -> str:
    """The payload as it is stored, JSON text; reactions get their aliases. Raises InvalidRequest over 1 MiB."""
    payload = complete_reaction(row.payload) if row.feedback_type == REACTION else row.payload
    text = jsontext.dumps(payload)
    # The limit counts the characters of ASCII JSON with blanks: at most six for a character here.
    if len(text) * 6 > MAX_PAYLOAD and len(json.dumps(orjson.loads(text))) > MAX_PAYLOAD:
        raise InvalidRequest("Feedback payload too large")
    return text


def complete_reaction(payload: dict[str, Any]) -> dict[str, Any]:
    """The payload of a reaction with `alias`, `detoned` and `detoned_alias` of its emoji."""
    alias, detoned, detoned_alias = _aliases(payload["emoji"])
    return {**payload, "alias": alias, "detoned": detoned, "detoned_alias": detoned_alias}


@cache_texts()
def _aliases(shown: str) -> tuple[str, str, str]:
    detoned = remove_tone(shown)
    return _emoji().demojize(shown), detoned, _emoji().demojize(detoned)


def remove_tone(text: str) -> str:
    """The text with every emoji in its form without skin tones."""
    return str(_emoji().replace_emoji(text, lambda found, _: _emoji().emojize(_TONE.sub("", _emoji().demojize(found)))))


async def check_annotation_value(row: FeedbackCreateReq, spec_text: str | None) -> None:
    """Raise InvalidRequest when the value of an annotation does not satisfy its AnnotationSpec (JSON text)."""
    shown = refs.to_external(row.annotation_ref or "")
    if spec_text is None:
        raise InvalidRequest(f"Annotation ref {shown} not found")
    spec = orjson.loads(spec_text)
    if not isinstance(spec, dict) or not all(isinstance(spec.get(name), kind) for name, kind in _SPEC_FIELDS.items()):
        raise InvalidRequest(f"Annotation ref {shown} is not a valid annotation spec")
    try:
        valid = await json_schemas.is_valid(row.payload["value"], spec.get("field_schema", {}))
    except json_schemas.BadSchema:
        raise InvalidRequest(f"Annotation ref {shown} is not a valid annotation spec") from None
    except TooMuchWork as error:
        raise InvalidRequest(f"payload.value: to check it by the field_schema of {shown} {error}") from None
    if not valid:
        raise InvalidRequest("Feedback payload does not match annotation spec")


_SPEC_FIELDS: dict[str, Any] = {
    "name": str | None,
    "description": str | None,
    "field_schema": dict | None,
    "unique_among_creators": bool | None,
    "op_scope": list | None,
}
