"""POST /v1/chat/completions, /v1/completions, /v1/messages: an answer or a stream of events; and /v1/embeddings."""

import orjson
from fastapi import Request, Response

from heddle.http.description import body_schema
from heddle.http.routing import BearerWriter, answer, group, off_loop
from heddle.inference.api.respond import describe_run, read_request, respond, run_while_connected
from heddle.inference.chat.request import ChatRequest
from heddle.inference.chat.response import CHAT
from heddle.inference.chat.text_completions import TEXT, TextCompletionRequest
from heddle.inference.embeddings import EmbeddingRequest, create_embeddings
from heddle.inference.messages.request import COUNTED, MESSAGES, CountRequest, MessagesRequest
from heddle.inference.service import InferenceDep

router = group("Inference")


@router.post("/v1/chat/completions/", response_model=None, include_in_schema=False)
@router.post("/v1/chat/completions", response_model=None, openapi_extra=body_schema(ChatRequest))
async def create_chat_completion(request: Request, caller: BearerWriter, inference: InferenceDep) -> Response:
    """Create a chat completion."""
    return await respond(request, inference, CHAT, *await read_request(request, caller))


@router.post("/v1/completions/", response_model=None, include_in_schema=False)
@router.post("/v1/completions", response_model=None, openapi_extra=body_schema(TextCompletionRequest))
async def create_completion(request: Request, caller: BearerWriter, inference: InferenceDep) -> Response:
    """Continue one prompt or several."""
    return await respond(request, inference, TEXT, *await read_request(request, caller))


@router.post("/v1/messages", response_model=None, openapi_extra=body_schema(MessagesRequest))
async def create_message(request: Request, caller: BearerWriter, inference: InferenceDep) -> Response:
    """Create a message."""
    return await respond(request, inference, MESSAGES, *await read_request(request, caller))


@router.post("/v1/messages/count_tokens", response_model=None, openapi_extra=body_schema(CountRequest))
async def count_message_tokens(request: Request, caller: BearerWriter, inference: InferenceDep) -> Response:
    """Count the tokens of what the model would read; nothing runs, and nothing is counted for usage."""
    work = inference.count_prompt(COUNTED, *await read_request(request, caller))
    return answer({"input_tokens": await run_while_connected(request.receive, work)})


@router.post("/v1/embeddings/", response_model=None, include_in_schema=False)
@router.post("/v1/embeddings", response_model=None, openapi_extra=body_schema(EmbeddingRequest))
async def create_embedding(request: Request, caller: BearerWriter, inference: InferenceDep) -> Response:
    """The vector of one text or of several: the model's state at the last token, of length 1."""
    work = create_embeddings(inference, *await read_request(request, caller))
    made = await run_while_connected(request.receive, work)
    headers = describe_run(made.policy, made.ticket, made.ignored)
    text = await off_loop(made.size, lambda: orjson.dumps(made.body))
    return Response(text, headers=headers, media_type="application/json")
