"""What /v2/.../eval_results/query takes and answers."""

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, WithJsonSchema, model_validator

from heddle.http.routing import RequestModel, ResponseModel
from heddle.wire.calls import OrderTerm
from heddle.wire.query import QueryBody

RawQuery = Annotated[Any, WithJsonSchema(TypeAdapter(QueryBody).json_schema())]
"""A query that is parsed later, where its place in the body is known."""


class EvalResultsSortBy(OrderTerm):
    """One term of the order of rows; `difference` is how far the evaluations lie apart."""

    evaluation_call_id: str | None = None
    mode: Literal["value", "difference"] = "value"


class EvalResultsFilter(RequestModel):
    """A condition on the values of one evaluation, or of all."""

    evaluation_call_id: str | None = None
    query: RawQuery


class EvalResultsQueryBody(RequestModel):
    """Body of /v2/{entity}/{project}/eval_results/query."""

    evaluation_call_ids: list[str] | None = None
    evaluation_run_ids: list[str] | None = None
    require_intersection: bool = False
    include_raw_data_rows: bool = False
    resolve_row_refs: bool = False
    include_rows: bool = True
    include_summary: bool = False
    summary_require_intersection: bool | None = None
    include_predict_and_score_children: bool = True
    include_costs: bool = False
    sort_by: list[EvalResultsSortBy] | None = None
    filters: list[EvalResultsFilter] | None = None
    filter_logic_operator: Literal["and", "or"] = "or"
    limit: int | None = None
    offset: int = 0

    @model_validator(mode="after")
    def _name_an_evaluation(self) -> "EvalResultsQueryBody":
        if not self.evaluations:
            raise ValueError("At least one of evaluation_call_ids or evaluation_run_ids must be provided")
        return self

    @property
    def evaluations(self) -> tuple[str, ...]:
        """The ids of both lists, each once, in order."""
        return tuple(dict.fromkeys([*(self.evaluation_call_ids or ()), *(self.evaluation_run_ids or ())]))


class GenAISpanRef(ResponseModel):
    """A span of an agent that belongs to a trial."""

    trace_id: str
    span_id: str


class EvalResultsTrial(ResponseModel):
    """One answer to one row, and its scores."""

    predict_and_score_call_id: str
    predict_call_id: str | None = None
    model_output: Any = None
    scores: dict[str, Any] = Field(default_factory=dict)
    model_latency_seconds: float | None = None
    total_tokens: int | None = None
    total_cost: float | None = None
    scorer_call_ids: dict[str, str] = Field(default_factory=dict)
    genai_span_ref: list[GenAISpanRef] | None = None


class EvalResultsRowEvaluation(ResponseModel):
    """The trials of one evaluation about one row."""

    evaluation_call_id: str
    trials: list[EvalResultsTrial] = Field(default_factory=list)


class EvalResultsRow(ResponseModel):
    """One row of the data, and what each evaluation made of it."""

    row_digest: str
    raw_data_row: Any = None
    evaluations: list[EvalResultsRowEvaluation] = Field(default_factory=list)


class EvalResultsScorerStats(ResponseModel):
    """One dimension of a scorer: a number, a boolean or a text at one path of its scores."""

    scorer_key: str
    path: str | None = None
    value_type: Literal["binary", "continuous", "text"] | None = None
    trial_count: int = 0
    numeric_count: int = 0
    numeric_mean: float | None = None
    pass_true_count: int = 0
    pass_known_count: int = 0
    pass_rate: float | None = None
    pass_signal_coverage: float | None = None


class EvalResultsEvaluationSummary(ResponseModel):
    """One evaluation, summed over its trials."""

    evaluation_call_id: str
    trial_count: int = 0
    scorer_stats: list[EvalResultsScorerStats] = Field(default_factory=list)
    predict_total_tokens: int | None = None
    predict_total_cost: float | None = None
    evaluation_ref: str | None = None
    model_ref: str | None = None
    display_name: str | None = None
    trace_id: str | None = None
    started_at: str | None = None


class EvalResultsSummaryRes(ResponseModel):
    """All evaluations, summed."""

    row_count: int = 0
    evaluations: list[EvalResultsEvaluationSummary] = Field(default_factory=list)


class EvalResultsQueryRes(ResponseModel):
    """A page of rows, how many there are, and the summary where it is asked for."""

    rows: list[EvalResultsRow]
    total_rows: int
    summary: EvalResultsSummaryRes | None = None
    warnings: list[str] = Field(default_factory=list)
