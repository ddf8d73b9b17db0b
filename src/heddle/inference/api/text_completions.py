"""POST /v1/completions: prompts without a template, whole or as a stream."""

from fastapi import Request, Response

from heddle.http.routing import BearerWriter, body_schema, group
from heddle.inference.api.respond import read_body, respond
from heddle.inference.chat.text_completions import TEXT, TextCompletionRequest
from heddle.inference.service import InferenceDep

router = group("Inference")


@router.post("/v1/completions/", response_model=None, include_in_schema=False)
@router.post("/v1/completions", response_model=None, openapi_extra=body_schema(TextCompletionRequest))
async def create_completion(request: Request, caller: BearerWriter, inference: InferenceDep) -> Response:
    """Continue one prompt or several."""
    return await respond(request, caller, inference, TEXT, await read_body(request))
