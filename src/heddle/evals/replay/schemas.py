"""Bodies of the replay routes."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from heddle.http.own_bodies import OwnCallsFilter, OwnReq
from heddle.http.routing import ResponseModel
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LazyModel
from heddle.wire.query import parse_query

MOST_CALLS = 10_000
Outcome = Literal["replayed", "failed", "skipped"]
State = Literal["queued", "running", "succeeded", "failed", "cancelled"]


def _checked(value: Any) -> Any:
    """A query as it came, once it is known to be one: the job keeps its text."""
    parse_query(value)
    return value


Query = Annotated[
    Json, BeforeValidator(_checked), WithJsonSchema({"title": "Query", "type": "object", "required": ["$expr"]})
]


class ReplayParams(LazyModel):
    """Parameters of the replayed requests, each over the recorded one; any other name is refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    stop: str | list[str] | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    response_format: Json | None = None
    reasoning_effort: Literal["low", "medium", "high"] | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None


class ReplayCreateReq(OwnReq):
    """Which calls, the newest first, and what is changed: nothing means that the same requests are sent again."""

    filter: OwnCallsFilter | None = None
    query: Query | None = None
    limit: int = Field(default=100, ge=1, le=MOST_CALLS)
    model: str | None = Field(default=None, min_length=1, max_length=1024)
    """What is served, `provider/model`, an adapter step, or the ref of a stored model with its own prompt."""
    prompt: str | None = Field(default=None, min_length=1)
    """The ref of a stored prompt, which stands in the place of the recorded system messages."""
    params: ReplayParams | None = None
    scorer_refs: list[str] = Field(default_factory=list, max_length=50)
    """What scores the originals and the replayed answers."""
    name: str | None = Field(default=None, max_length=1024)

    @property
    def chosen(self) -> Json:
        """The conditions as fields of /calls/stream_query."""
        return self.model_dump(include={"filter", "query"}, exclude_none=True)

    @property
    def changed_params(self) -> Json:
        """The parameters that are given."""
        return self.params.model_dump(exclude_none=True) if self.params else {}


class ReplayCreateRes(ResponseModel):
    """The replay; it is also the id of the call that the replayed ones lie under."""

    id: str


class ReplayReq(OwnReq):
    """One replay."""

    id: str


class ReplayQueryReq(OwnReq):
    """The replays of a project, newest first."""

    states: list[State] | None = None
    limit: int | None = Field(default=None, ge=0)
    offset: int = Field(default=0, ge=0)


class ReplayCounts(ResponseModel):
    """How many calls; `selected` of them all, `waiting` have no outcome yet."""

    selected: int
    replayed: int
    failed: int
    skipped: int
    waiting: int


class ReplaySchema(ResponseModel):
    """A replay."""

    id: str
    project_id: str
    name: str | None
    state: State
    error: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    request: Json
    counts: ReplayCounts
    scoring_job_id: str | None
    scoring_state: State | None
    """None before that job is made, and once it is forgotten."""
    scoring_problem: str | None
    """Why scores are missing."""


class ReplayRes(ResponseModel):
    """One replay."""

    replay: ReplaySchema


class ReplayQueryRes(ResponseModel):
    """The replays of a page."""

    replays: list[ReplaySchema]


class ReplayResultsReq(OwnReq):
    """A page of results, in the order in which the calls were chosen."""

    id: str
    outcomes: list[Outcome] | None = None
    limit: int = Field(default=100, ge=0, le=1000)
    offset: int = Field(default=0, ge=0)


class ReplaySide(ResponseModel):
    """One answer: of the original call, or of the replayed one. `answer` is its text."""

    call_id: str
    trace_id: str | None
    op_name: str | None
    model: str | None
    status: str | None
    answer: str | None
    output: Any
    exception: str | None
    latency_ms: int | None
    total_tokens: int | None
    total_cost: float | None
    scores: Json


class ReplayRow(ResponseModel):
    """One call and its replay; no replay where it was skipped or is still to come, `reason` says why."""

    place: int
    outcome: Outcome | None
    reason: str | None
    original: ReplaySide
    replay: ReplaySide | None


class ReplayResultsRes(ResponseModel):
    """Rows of the outcomes that were asked for, and how many there are."""

    rows: list[ReplayRow]
    total: int


class ReplayDatasetReq(OwnReq):
    """Make a dataset of the calls that have these outcomes."""

    id: str
    name: str = Field(min_length=1, max_length=128, pattern=r"^[\w.-]+$")
    description: str | None = None
    outcomes: list[Outcome] = Field(default=["replayed"], min_length=1)


class ReplayDatasetRes(ResponseModel):
    """The version that was made."""

    object_id: str
    digest: str
    version_index: int
    ref: str
    rows: int
