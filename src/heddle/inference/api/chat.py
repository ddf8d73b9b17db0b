"""POST /v1/chat/completions, /v1/completions, /v1/messages: an answer or a stream of events; and /v1/embeddings."""

from dataclasses import replace

import orjson
from fastapi import Request, Response

from heddle.http.routing import BearerWriter, answer, body_schema, group, off_loop
from heddle.inference.api.respond import describe_run, read_arrival, read_body, respond, run_while_connected
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
    return await respond(request, caller, inference, CHAT, await read_body(request))


@router.post("/v1/completions/", response_model=None, include_in_schema=False)
@router.post("/v1/completions", response_model=None, openapi_extra=body_schema(TextCompletionRequest))
async def create_completion(request: Request, caller: BearerWriter, inference: InferenceDep) -> Response:
    """Continue one prompt or several."""
    return await respond(request, caller, inference, TEXT, await read_body(request))


@router.post("/v1/messages", response_model=None, openapi_extra=body_schema(MessagesRequest))
async def create_message(request: Request, caller: BearerWriter, inference: InferenceDep) -> Response:
    """Create a message."""
    return await respond(request, caller, inference, MESSAGES, await read_body(request))


@router.post("/v1/messages/count_tokens", response_model=None, openapi_extra=body_schema(CountRequest))
async def count_message_tokens(request: Request, caller: BearerWriter, inference: InferenceDep) -> Response:
    """Count the tokens of what the model would read; nothing runs, and nothing is counted for usage."""
    body = await read_body(request)
    work = inference.count_prompt(COUNTED, body, read_arrival(request, caller))
    return answer({"input_tokens": await run_while_connected(request.receive, work)})


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
