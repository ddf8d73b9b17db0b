"""The Responses interface as one of those for completions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from heddle.errors import InvalidRequest
from heddle.inference.chat.wire import Keep, ParsedRequest, Wire
from heddle.inference.prompt.messages import ChatMessage
from heddle.inference.responses.answer import ResponsesAnswer
from heddle.inference.responses.items import InputItem, MessageBuilder
from heddle.inference.responses.request import ResponsesRequest, chat_request, ignored_fields

_FIELDS = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
_SYSTEM = ("system", "developer")


@dataclass(frozen=True)
class ResponsesWire(Wire):
    """POST /v1/responses; one object for each request, with all that the request refers to."""

    request: ResponsesRequest
    key: str
    """What the ids of the response and of its items have in common."""
    items: Sequence[InputItem]
    """Its own items, with references resolved."""
    history: Sequence[InputItem] = ()
    """The items before them."""
    thread_id: str | None = None
    keep: Keep | None = None

    op_name = "heddle.responses"
    id_prefix = "resp_"
    last_event = b"data: [DONE]\n\n"
    field_names = _FIELDS

    def read(self, body: Any) -> ParsedRequest:
        """The chat completion that the items stand for."""
        request = self.request
        builder = MessageBuilder()
        if request.instructions is not None:
            builder.add_message("system", request.instructions, "instructions")
        named = "conversation" if request.conversation is not None else "previous_response_id"
        builder.add(self.history, named)
        if isinstance(request.input, str):
            builder.add_message("user", request.input, "input")
        else:
            builder.add(self.items, "input")
        if not builder.messages:
            raise InvalidRequest("input is empty: send a text or at least one item", param="input")
        parsed = ParsedRequest(
            chat=chat_request(request, builder.messages),
            make_answer=partial(ResponsesAnswer, request, self.key),
            ignored=tuple(ignored_fields(request, body)),
            answer_id=f"{self.id_prefix}{self.key}",
            thread_id=self.thread_id,
            places=tuple(builder.places),
            keep=self.keep,
        )
        if request.truncation != "auto":
            return parsed
        head = next((n for n, message in enumerate(builder.messages) if message.role not in _SYSTEM), 0)
        most = len(builder.messages) - head - 1
        return replace(parsed, shorten=partial(_shorten, parsed, head), most_dropped=max(0, most))

    def rename(self, error: InvalidRequest, parsed: ParsedRequest) -> InvalidRequest:
        """The fields of tools and of formats lie less deep here."""
        renamed = super().rename(error, parsed)
        param, reason = renamed.param, renamed.reason
        for deep, flat in ((".function.", "."), (".json_schema.", ".")):
            if param is not None and deep in param:
                flatter = param.replace(deep, flat)
                param, reason = flatter, reason.replace(param, flatter)
        return InvalidRequest(reason, renamed.headers, param, **renamed.extra)


def _shorten(parsed: ParsedRequest, head: int, dropped: int) -> ParsedRequest:
    """Without the oldest messages behind those of the system; answers of tools go with their calls."""
    messages: list[ChatMessage] = parsed.chat.messages
    first = head + dropped
    while first < len(messages) - 1 and messages[first].role == "tool":
        first += 1
    kept = [*messages[:head], *messages[first:]]
    places = (*parsed.places[:head], *parsed.places[first:])
    return replace(parsed, chat=parsed.chat.model_copy(update={"messages": kept}), places=places)
