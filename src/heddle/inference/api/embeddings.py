"""POST /v1/embeddings: vectors of texts."""

from dataclasses import replace

import orjson
from fastapi import Request, Response

from heddle.http.routing import BearerWriter, body_schema, group, off_loop
from heddle.inference.api.respond import describe_run, read_arrival, read_body, run_while_connected
from heddle.inference.embeddings import EmbeddingRequest, create_embeddings
from heddle.inference.service import InferenceDep

router = group("Inference")


@router.post("/v1/embeddings/", response_model=None, include_in_schema=False)
@router.post("/v1/embeddings", response_model=None, openapi_extra=body_schema(EmbeddingRequest))
async def create_embedding(request: Request, caller: BearerWriter, inference: InferenceDep) -> Response:
    """The vector of one text or of several: the model's state at the last token, of length 1."""
    body = await read_body(request)
    arrival = replace(read_arrival(request, caller), size=len(await request.body()))
    made = await run_while_connected(request.receive, create_embeddings(inference, body, arrival))
    headers = describe_run(made.policy, made.ticket, made.ignored)
    text = await off_loop(made.size, lambda: orjson.dumps(made.body))
    return Response(text, headers=headers, media_type="application/json")
