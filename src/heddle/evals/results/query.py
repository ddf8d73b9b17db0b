"""Answering one eval_results query: the summary first, then the rows of the page, so many at a time."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import orjson
from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import Field, TypeAdapter, WithJsonSchema, model_validator

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.evals.results.trials import EvalResultsScorerStats, Sums, TrialView, call_about, cost_of, sum_trials
from heddle.http.parameters import not_negative, page_limit
from heddle.http.routing import PricesDep, Reader, RequestModel, ResponseModel, SettingsDep, StoreDep, group
from heddle.settings import Settings
from heddle.store.base import Store
from heddle.wire import jsontext, refs
from heddle.wire.calls import CallsQuery, CostOf, Filter, OrderTerm
from heddle.wire.inference import PricesOf
from heddle.wire.jsontypes import Json
from heddle.wire.query import QueryBody, parse_query
from heddle.wire.trials import TrialFilter, TrialSort, TrialsPage, TrialsQuery, referenced_row

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


router = group("Evaluation results")
_SLICE, _FIRST_SLICE = 100, 10
"""Rows whose calls are in memory at the same time, and how many before it is known how large they are."""
_SLICE_BYTES = 4 * 1024 * 1024
"""What a slice of the answer should not be larger than."""
UNRESOLVED = "Failed to resolve dataset row refs; raw_data_row may contain refs"
_SORTABLE = ("scores.", "inputs.", "output.")
_MAX_PATH = 2000


class ResultsQuery:
    """One request; `project` is the internal id."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        prices: PricesOf,
        caller: Caller,
        project: str,
        body: EvalResultsQueryBody,
    ) -> None:
        self._store = store
        self._prices_of = prices
        self._caller = caller
        self._project = project
        self._body = body
        self._warnings: list[str] = []
        self._prices: CostOf | None = None
        self._query = TrialsQuery(
            project,
            body.evaluations,
            intersection=body.require_intersection,
            filters=tuple(
                TrialFilter(parse_query(item.query, ("body", "filters", index, "query")), item.evaluation_call_id)
                for index, item in enumerate(body.filters or ())
            ),
            any_filter=body.filter_logic_operator == "or",
            sort=_sort(body),
            limit=page_limit(settings, not_negative(body.limit, "limit")),
            offset=not_negative(body.offset, "offset") or 0,
        )

    async def answer(self) -> AsyncIterator[bytes]:
        """The JSON answer in pieces; what can be refused is refused before the first of them."""
        if self._body.include_costs:
            self._prices = await self._prices_of(self._project)
        if self._body.include_summary or any(term.path.startswith("scores.") for term in self._query.sort):
            self._query = replace(self._query, values=await self._values_in_scores())
        page, sums = await asyncio.gather(self._page(), self._sums())
        summary = await self._summary(page, sums) if self._body.include_summary else None
        separator = b'{"rows":['
        start, count = 0, _FIRST_SLICE
        while start < len(page.row_digests):
            text = await self._rows(page.row_digests[start : start + count])
            yield separator + text
            separator = b","
            start += count
            count = max(1, min(_SLICE, count * _SLICE_BYTES // len(text)))
        end = {"total_rows": page.total, "summary": summary, "warnings": self._warnings}
        opened = b'{"rows":[' if not page.row_digests else b""
        yield opened + b"]," + refs.convert_out(jsontext.dumps_bytes(end))[1:]

    async def _values_in_scores(self) -> dict[str, str]:
        """The JSON texts behind the refs that scores hold in the place of values; of what may be read."""
        found = await self._store.trials.refs_in_scores(self._project, self._query.evaluations)
        by_project: dict[str, set[str]] = {}
        for ref in found:
            by_project.setdefault(ref[len(refs.INTERNAL) :].partition("/")[0], set()).add(ref)
        values: dict[str, str] = {}
        for project, wanted in by_project.items():
            if self._may_read(project):
                stored = await self._store.objects.values(project, wanted)
                values.update({ref: text for ref, text in stored.items() if text is not None})
                cells = {ref: cell for ref in wanted if (cell := _cell(ref)) is not None}
                rows = await self._store.tables.row_values(project, {digest for digest, _ in cells.values()})
                for ref, (digest, path) in cells.items():
                    if digest in rows:
                        values[ref] = jsontext.dumps(_inside(orjson.loads(rows[digest]), path))
        return values

    def _may_read(self, project: str) -> bool:
        external = refs.external_project(project)
        return external is not None and self._caller.may_read(external)

    async def _page(self) -> TrialsPage:
        return await self._store.trials.page(self._query) if self._body.include_rows else TrialsPage([], 0)

    @property
    def _summed(self) -> TrialsQuery:
        """The query of the summary: the same rows save for its own setting of intersection, and all of them."""
        own = self._body.summary_require_intersection
        intersection = self._query.intersection if own is None else own
        return replace(self._query, intersection=intersection, sort=(), limit=0, offset=0)

    async def _sums(self) -> list[Sums]:
        if not self._body.include_summary:
            return []
        with_children = self._body.include_predict_and_score_children
        fold = sum_trials(self._prices)
        return await self._store.trials.fold(self._summed, with_children, self._prices is not None, fold)

    async def _summary(self, page: TrialsPage, sums: Sequence[Sums]) -> Json:
        counted = self._body.include_rows and self._summed.intersection == self._query.intersection
        count = page.total if counted else (await self._store.trials.page(self._summed)).total
        about: dict[str, Json] = {}
        chosen = Filter(call_ids=tuple(item.evaluation for item in sums))
        roots = CallsQuery(self._project, chosen, columns=frozenset({"inputs"}))
        if sums:
            async for rows in self._store.calls.stream(roots):
                about.update({row.id: call_about(row) for row in rows})
        return {"row_count": count, "evaluations": [item.as_fields(about.get(item.evaluation, {})) for item in sums]}

    async def _rows(self, row_digests: Sequence[str]) -> bytes:
        """Rows of the answer as JSON text, with commas between them."""
        with_children = self._body.include_predict_and_score_children
        trials = await self._store.trials.of_rows(self._project, self._query.evaluations, row_digests, with_children)
        views = await asyncio.to_thread(lambda: [TrialView(trial) for trial in trials])
        await self._match_scorers([view for view in views if view.unmatched])
        await self._find_spans([view for view in views if view.spans is None])
        examples = await self._examples(views) if self._body.include_raw_data_rows else {}
        return await asyncio.to_thread(self._render, row_digests, views, examples)

    async def _match_scorers(self, views: Sequence[TrialView]) -> None:
        """Find the calls of scores that no name tells, with one look at the feedback of all of them."""
        if not views:
            return
        targets = {
            view.trial.call.id: refs.call_ref(self._project, view.trial.predict.id)
            for view in views
            if view.trial.predict is not None
        }
        found = await self._store.feedback.for_refs(self._project, list(targets.values()))
        for view in views:
            view.match(found.get(targets.get(view.trial.call.id, ""), []))

    async def _find_spans(self, views: Sequence[TrialView]) -> None:
        """Name the spans of agents that say themselves to which trial they belong."""
        ids = [view.trial.call.id for view in views]
        found = await self._store.agent_spans.of_evaluated(self._project, ids) if ids else {}
        for view in views:
            spans = found.get(view.trial.call.id)
            view.spans = [{"trace_id": trace, "span_id": span} for trace, span in spans] if spans else None

    async def _examples(self, views: Sequence[TrialView]) -> Json:
        """The data by row digest: inline as it is, a dataset's row as its ref or, where asked for, as its value."""
        examples: Json = {}
        for view in views:
            if examples.get(view.trial.row_digest) is None:
                examples[view.trial.row_digest] = view.example
        if not self._body.resolve_row_refs:
            return examples
        by_project: dict[str, list[str]] = {}
        for digest, example in examples.items():
            if referenced_row(example) is not None and example.startswith(refs.INTERNAL):
                by_project.setdefault(example[len(refs.INTERNAL) :].partition("/")[0], []).append(digest)
        for project, digests in by_project.items():
            if self._may_read(project):
                rows = await self._store.tables.row_values(project, digests)
                examples.update({digest: orjson.Fragment(text) for digest, text in rows.items()})
        if UNRESOLVED not in self._warnings and any(isinstance(example, str) for example in examples.values()):
            self._warnings.append(UNRESOLVED)
        return examples

    def _render(self, row_digests: Sequence[str], views: Sequence[TrialView], examples: Json) -> bytes:
        rows: dict[str, dict[str, list[Json]]] = {digest: {} for digest in row_digests}
        for view in views:
            trial = view.trial
            priced = trial.predict or trial.call
            shown = view.as_fields(cost_of(trial.usage, priced.started_at, self._prices))
            rows[trial.row_digest].setdefault(trial.evaluation, []).append(shown)
        listed = [
            {
                "row_digest": digest,
                "raw_data_row": examples.get(digest),
                "evaluations": [{"evaluation_call_id": key, "trials": trials} for key, trials in found.items()],
            }
            for digest, found in rows.items()
        ]
        return refs.convert_out(jsontext.dumps_bytes(listed))[1:-1]


def _sort(body: EvalResultsQueryBody) -> tuple[TrialSort, ...]:
    """The order; raises InvalidRequest for a field that rows cannot be ordered by."""
    for term in body.sort_by or ():
        if not term.field.startswith(_SORTABLE) or len(term.field) > _MAX_PATH:
            raise InvalidRequest(
                f"Unsupported sort field: '{term.field[:200]}'. Supported: scores.*, inputs.*, output.*."
            )
        if term.mode == "difference" and not term.field.startswith("scores."):
            raise InvalidRequest(
                f"mode='difference' only supports numeric fields (scores.*), got '{term.field[:200]}'."
            )
    return tuple(
        TrialSort(term.field, term.direction == "desc", term.evaluation_call_id, term.mode)
        for term in body.sort_by or ()
    )


def _cell(ref: str) -> tuple[str, tuple[refs.Edge, ...]] | None:
    """Row digest and the path inside the row, of a ref into a dataset's row."""
    try:
        edges = refs.parse(ref).edges
    except InvalidRequest:
        return None
    if len(edges) < 2 or edges[0] != ("attr", "rows") or edges[1][0] != "id":
        return None
    return edges[1][1], edges[2:]


def _inside(value: Any, path: tuple[refs.Edge, ...]) -> Any:
    for edge, part in path:
        value = refs.follow_edge(value, edge, part)
    return value


@router.post("/v2/{entity}/{project}/eval_results/query", response_model=EvalResultsQueryRes)
async def eval_results_query(
    entity: str,
    project: str,
    body: EvalResultsQueryBody,
    caller: Reader,
    settings: SettingsDep,
    store: StoreDep,
    prices: PricesDep,
) -> Response:
    """Rows of one or more evaluations side by side, and sums over them."""
    pieces = ResultsQuery(settings, store, prices, caller, caller.open(f"{entity}/{project}"), body).answer()
    first, second = await anext(pieces), await anext(pieces, b"")
    third = await anext(pieces, None)
    if third is None:
        return Response(first + second, media_type="application/json")
    return StreamingResponse(_from(first + second + third, pieces), media_type="application/json")


async def _from(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
