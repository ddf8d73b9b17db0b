"""The route of evaluation results."""

from collections.abc import AsyncIterator

from fastapi import Response
from fastapi.responses import StreamingResponse

from heddle.evals.results.models import EvalResultsQueryBody, EvalResultsQueryRes
from heddle.evals.results.query import ResultsQuery
from heddle.http import PricesDep, Reader, SettingsDep, StoreDep, group

router = group("Evaluation results")


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
