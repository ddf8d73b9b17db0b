"""POST /tokenize and /detokenize: texts and conversations as token ids of the served model, and back."""

from fastapi import Request, Response

from heddle.auth import Caller
from heddle.errors import InvalidRequest
from heddle.http.description import body_schema
from heddle.http.routing import BearerReader, answer, group, off_loop
from heddle.inference.api.respond import describe_ignored, read_arrival, read_body
from heddle.inference.chat.fields import Integer, Part, refuse_ignored, unknown_fields
from heddle.inference.chat.plan import plan_tools, render_messages
from heddle.inference.chat.request import ChatRequest, known_ids, parse_body, parse_fields
from heddle.inference.prompt.template import SHARED_PROCESSES, ContextExceeded
from heddle.inference.served_model import ServedModel
from heddle.inference.service import Inference, InferenceDep
from heddle.wire.jsontypes import Json

router = group("Inference")

_MOST_TOKENS = 1 << 20


class TokenizeText(Part):
    """A text to tokenize."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = True
    return_token_strs: bool | None = False


class TokenizeChat(ChatRequest):
    """A conversation to tokenize, as a chat completion with these fields would read it."""

    return_token_strs: bool | None = False


class DetokenizeRequest(Part):
    """Token ids to make a text of."""

    tokens: list[Integer]
    model: str | None = None


@router.post("/tokenize", response_model=None, openapi_extra=body_schema(TokenizeText))
async def tokenize(request: Request, caller: BearerReader, inference: InferenceDep) -> Response:
    """The token ids of `prompt`, or of `messages` through the chat template."""
    body, size = await read_body(request), len(await request.body())
    if isinstance(body, dict) and "messages" in body:
        chat = await off_loop(size, lambda: parse_body(TokenizeChat, body))
        model, headers = await _open(request, caller, inference, chat.model, unknown_fields(TokenizeChat, body), body)
        # A template of the request is rendered by a process; this waits until one is free.
        tokens = await SHARED_PROCESSES.run(_render, chat, model)
        return _answer(_describe_tokens(tokens, model, bool(chat.return_token_strs)), headers)
    text = await off_loop(size, lambda: parse_fields(TokenizeText, body))
    model, headers = await _open(request, caller, inference, text.model, unknown_fields(TokenizeText, body), body)
    tokens = await off_loop(size, lambda: _encode(text, model))
    return _answer(_describe_tokens(tokens, model, bool(text.return_token_strs)), headers)


@router.post("/detokenize", response_model=None, openapi_extra=body_schema(DetokenizeRequest))
async def detokenize(request: Request, caller: BearerReader, inference: InferenceDep) -> Response:
    """The text of token ids, special tokens included."""
    body, size = await read_body(request), len(await request.body())
    wanted = await off_loop(size, lambda: parse_fields(DetokenizeRequest, body))
    unknown = unknown_fields(DetokenizeRequest, body)
    model, headers = await _open(request, caller, inference, wanted.model, unknown, body)
    if len(wanted.tokens) > _MOST_TOKENS:
        raise _too_many("tokens")
    ids = known_ids("tokens", wanted.tokens, model.info.vocab_size)
    text = await off_loop(size, lambda: model.tokenizer.decode(ids, skip_special_tokens=False))
    return _answer({"prompt": text}, headers)


async def _open(
    request: Request, caller: Caller, inference: Inference, name: str | None, unknown: list[str], body: Json
) -> tuple[ServedModel, dict[str, str]]:
    """The model of that name, and the headers of the answer; raises HeddleError."""
    arrival = read_arrival(request, caller)
    if inference.is_strict(arrival):
        refuse_ignored(unknown, body)
    return (await inference.resolve(name, arrival)).model, describe_ignored(unknown)


def _answer(body: Json, headers: dict[str, str]) -> Response:
    told = answer(body)
    told.headers.update(headers)
    return told


def _encode(text: TokenizeText, model: ServedModel) -> list[int]:
    if model.tokenizer.exceeds(text.prompt, _MOST_TOKENS):
        raise _too_many("prompt")
    return model.tokenizer.encode(text.prompt, text.add_special_tokens is not False)


def _render(chat: ChatRequest, model: ServedModel) -> list[int]:
    try:
        return list(render_messages(chat, model, plan_tools(chat, model), _MOST_TOKENS).token_ids)
    except ContextExceeded:
        raise _too_many("messages") from None


def _too_many(field: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: at most {_MOST_TOKENS} tokens are read at once", param=field)


def _describe_tokens(tokens: list[int], model: ServedModel, with_pieces: bool) -> Json:
    pieces = [model.tokenizer.piece(token) or "" for token in tokens] if with_pieces else None
    return {
        "count": len(tokens),
        "max_model_len": model.info.max_model_len,
        "tokens": tokens,
        "token_strs": pieces,
    }
