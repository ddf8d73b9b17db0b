"""POST /v1/chat/completions: one answer, or a stream of server-sent events."""

from fastapi import Request, Response

from heddle.http.routing import BearerWriter, body_schema, group
from heddle.inference.api.respond import read_body, respond
from heddle.inference.chat.request import ChatRequest
from heddle.inference.chat.response import CHAT
from heddle.inference.service import InferenceDep

router = group("Inference")


@router.post("/v1/chat/completions/", response_model=None, include_in_schema=False)
@router.post("/v1/chat/completions", response_model=None, openapi_extra=body_schema(ChatRequest))
async def create_chat_completion(request: Request, caller: BearerWriter, inference: InferenceDep) -> Response:
    """Create a chat completion."""
    return await respond(request, caller, inference, CHAT, await read_body(request))
