"""Costs: the token prices that a project sets for itself."""

from datetime import datetime
from typing import Annotated

from fastapi import Response
from pydantic import Field

from heddle.http.routing import (
    Admin,
    Empty,
    ProjectReq,
    Reader,
    RequestModel,
    ResponseModel,
    SettingsDep,
    StoreDep,
    Writer,
    answer,
    group,
)
from heddle.store.control.costs import PriceRow
from heddle.trace.rows import PurgeReq, RowQueryReq, answer_rows, purge_ids
from heddle.wire import refs, times

router = group("Costs")

TokenCost = Annotated[float, Field(ge=0, le=1e6)]
"""More would make sums that no number holds."""
PURGE_MESSAGE = "Can only purge costs by specifying one or more cost ids"


class CostCreateInput(RequestModel):
    """The price of one model's tokens, in units per single token."""

    prompt_token_cost: TokenCost
    completion_token_cost: TokenCost
    cache_read_input_token_cost: TokenCost = 0
    cache_creation_input_token_cost: TokenCost = 0
    prompt_token_cost_unit: str | None = "USD"
    completion_token_cost_unit: str | None = "USD"
    effective_date: datetime | None = None
    provider_id: str | None = None


class CostCreateReq(ProjectReq):
    """Prices to add, by model."""

    costs: dict[str, CostCreateInput]
    wb_user_id: str | None = None


class CostCreateRes(ResponseModel):
    """`[price id, model]` for each, in input order."""

    ids: list[tuple[str, str]]


class CostQueryReq(RowQueryReq):
    """A selection of the project's prices."""


class CostQueryOutput(ResponseModel):
    """One price; fields that were not asked for are null."""

    id: str | None = None
    llm_id: str | None = None
    prompt_token_cost: float | None = None
    completion_token_cost: float | None = None
    cache_read_input_token_cost: float | None = None
    cache_creation_input_token_cost: float | None = None
    prompt_token_cost_unit: str | None = None
    completion_token_cost_unit: str | None = None
    effective_date: datetime | None = None
    provider_id: str | None = None


class CostQueryRes(ResponseModel):
    """The selected prices."""

    results: list[CostQueryOutput]


class CostPurgeReq(PurgeReq):
    """Prices to delete, named by their ids."""


_PRICES = tuple(name for name in CostCreateInput.model_fields if name.endswith("_token_cost"))
_SHOWN: tuple[str, ...] = tuple(CostQueryOutput.model_fields)


@router.post("/cost/create", response_model=CostCreateRes)
async def cost_create(body: CostCreateReq, caller: Writer, store: StoreDep) -> Response:
    """Add prices; every call adds rows, none replaces another."""
    project = caller.open(body.project_id)
    for llm_id, cost in body.costs.items():
        refs.check_id("costs: the model", llm_id)
        refs.check_id("provider_id", cost.provider_id)
    at = times.now()
    rows = [_price(llm_id, cost, caller.user, at) for llm_id, cost in body.costs.items()]
    await store.costs.create(project, rows)
    return answer({"ids": [[row.id, row.llm_id] for row in rows]})


def _price(llm_id: str, cost: CostCreateInput, user: str, at: int) -> PriceRow:
    return PriceRow(
        id=times.uuid7(),
        llm_id=llm_id,
        provider_id=cost.provider_id or "default",
        effective_date=at if cost.effective_date is None else times.to_micros(cost.effective_date),
        **{name: getattr(cost, name) for name in _PRICES},
        prompt_token_cost_unit=cost.prompt_token_cost_unit or "USD",
        completion_token_cost_unit=cost.completion_token_cost_unit or "USD",
        created_by=user,
        created_at=at,
    )


@router.post("/cost/query", response_model=CostQueryRes)
async def cost_query(body: CostQueryReq, caller: Reader, settings: SettingsDep, store: StoreDep) -> Response:
    """The project's own prices; default prices are not among them."""
    project = caller.open(body.project_id)
    selected = await store.costs.query(project, body.selection(settings, body.fields or _SHOWN))
    return answer_rows("results", selected, lambda row: {name: row.get(name) for name in _SHOWN})


@router.post("/cost/purge", response_model=Empty)
async def cost_purge(body: CostPurgeReq, caller: Admin, store: StoreDep) -> Response:
    """Delete prices of this project by their ids."""
    project = caller.open(body.project_id)
    await store.costs.purge(project, purge_ids(body.query, PURGE_MESSAGE, lists=True), caller.user)
    return answer({})
