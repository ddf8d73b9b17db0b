"""`POST /graphql`: the few account questions that SDKs ask at start; there is no account service behind it."""

from typing import Annotated, Any

from fastapi import Depends, Request, Response
from pydantic import Field as ModelField

from heddle.auth import Caller, public_address
from heddle.http.routing import RequestModel, ResponseModel, SettingsDep, StoreDep, answer, caller_of, group
from heddle.wire.jsontypes import Json

router = group("Compatibility")


class GraphQLReq(RequestModel):
    """A GraphQL request."""

    query: str
    variables: Json | None = None
    operation_name: str | None = ModelField(default=None, alias="operationName")


class GraphQLRes(ResponseModel):
    """What was asked for, or what is wrong with the question."""

    data: Json | None = None
    errors: list[Any] = ModelField(default_factory=list)


@router.post("/graphql", response_model=GraphQLRes)
async def graphql(
    body: GraphQLReq,
    request: Request,
    caller: Annotated[Caller, Depends(caller_of)],
    store: StoreDep,
    settings: SettingsDep,
) -> Response:
    """Answer one operation; failures come as a list of errors with status 200."""
    from heddle.compat.account_queries import AccountQueries

    queries = AccountQueries(store, caller, public_address(settings, str(request.base_url)).rstrip("/"))
    return answer(await queries.answer(body.query, body.operation_name, body.variables or {}))
