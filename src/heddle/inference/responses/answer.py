"""The Responses interface as one of those for completions, and what its clients receive: a response, or its events."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from heddle.errors import HeddleError, InvalidRequest
from heddle.http import failures
from heddle.inference.accounts import ClientGone
from heddle.inference.chat.generation import Choice, Delta, Facts
from heddle.inference.chat.wire import Answer, Keep, ParsedRequest, Shape, Wire, count_tokens
from heddle.inference.prompt.messages import ChatMessage
from heddle.inference.prompt.opaque_reasoning import encode_reasoning
from heddle.inference.responses.items import InputItem, MessageBuilder, output_id
from heddle.inference.responses.request import (
    ENCRYPTED,
    AllowedTools,
    FunctionChoice,
    ResponsesRequest,
    chat_request,
    ignored_fields,
)
from heddle.inference.tools.parser import CallArguments, CallStart, ContentDelta, Piece
from heddle.wire import times
from heddle.wire.jsontypes import Json

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
_CODES = {429: "rate_limit_exceeded"}


def response_error(error: HeddleError) -> Json:
    """The `error` of a response that failed."""
    code = "server_error" if error.status >= 500 else _CODES.get(error.status, "invalid_prompt")
    return {"code": code, "message": error.reason}


class ResponsesAnswer(Answer):
    """A `response`, or its events; items come in the order in which the model wrote them."""

    def __init__(
        self, request: ResponsesRequest, key: str, shape: Shape, facts: Sequence[Facts], choices: Sequence[Choice]
    ) -> None:
        """`key`: what the ids of the response and of its items have in common."""
        super().__init__(shape, facts, choices)
        (self._choice,) = choices
        self._request = request
        self._key = key
        self._numbers = 0
        """The events so far."""
        self._at = -1
        """The section that is being told, and whether it has not ended."""
        self._is_open = False
        self._open_id = ""
        self._logprobs_seen = 0
        """Those of the tokens so far (the choice itself may be some tokens ahead), and which was told last."""
        self._logprobs_told = 0
        self._ended: Json | None = None

    def queued(self) -> Json:
        """The response before the engine has begun with it."""
        return self._response("queued")

    def body(self) -> Json:
        """The response as it ended."""
        if self._ended is None:
            self._ended = self._response(self._end_status())
        return self._ended

    def opening(self) -> list[Json]:
        """The response is there, and at work."""
        started = self._response("in_progress")
        first = ["response.queued"] if self._request.background else []
        kinds = ["response.created", *first, "response.in_progress"]
        created = self._response("queued") if first else started
        return [self._event(kind, response=started if kind == "response.in_progress" else created) for kind in kinds]

    def delta(self, index: int, delta: Delta) -> list[Json]:  # noqa: ARG002
        """What a token adds."""
        self._logprobs_seen += len(delta.logprobs)
        return [event for piece in delta.pieces for event in self._tell(piece)]

    def closing(self) -> list[Json]:
        """The rest of the last item, and the end of the response."""
        events = self._open() if self._at < 0 and self._choice.sections else []
        events += self._close()
        return [*events, self._event(f"response.{self._end_status()}", response=self.body())]

    def failure(self, error: HeddleError) -> list[Json]:
        """The error, and the response that failed with it."""
        self.error, self._ended = error, None
        told = failures.responses_body(error)["error"]
        return [
            self._event("error", code=told["code"], message=told["message"], param=told["param"], error=told),
            self._event("response.failed", response=self.body()),
        ]

    # The response

    def _end_status(self) -> Status:
        if self.error is not None:
            return "cancelled" if isinstance(self.error, ClientGone) else "failed"
        return "completed" if self._choice.finish_reason in ("stop", "tool_calls") else "incomplete"

    def _response(self, status: Status) -> Json:
        request, shape = self._request, self.shape
        has_ended = status not in ("queued", "in_progress")
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        error = response_error(self.error) if status == "failed" and self.error is not None else None
        reasoning = request.reasoning
        sampling = shape.sampling
        response: Json = {
            "id": shape.id,
            "object": "response",
            "created_at": shape.created,
            "completed_at": times.now() // 1_000_000 if status == "completed" else None,
            "status": status,
            "background": bool(request.background),
            "error": error,
            "incomplete_details": incomplete,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": request.max_tool_calls,
            "model": shape.model,
            "output": [self._item(number) for number in range(len(self._choice.sections))] if has_ended else [],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "prompt_cache_key": request.prompt_cache_key,
            "prompt_cache_retention": request.prompt_cache_retention,
            "reasoning": {
                "effort": reasoning.effort if reasoning is not None else None,
                "summary": request.summary,
            },
            "safety_identifier": request.safety_identifier,
            "service_tier": "default",
            "store": request.is_stored,
            "temperature": sampling.temperature,
            "text": {
                "format": _text_format(request),
                "verbosity": "medium",
            },
            "tool_choice": _tool_choice(request),
            "tools": [{**tool.model_dump(), "strict": bool(tool.strict)} for tool in request.tools or ()],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "truncation": request.truncation or "disabled",
            "usage": self._usage() if has_ended else None,
            "user": request.user,
            "metadata": request.metadata or {},
        }
        if request.conversation_id is not None:
            response["conversation"] = {"id": request.conversation_id}
        return response

    def _usage(self) -> Json:
        counts = count_tokens(self.facts, self.choices)
        return {
            "input_tokens": counts.prompt,
            "input_tokens_details": {"cached_tokens": counts.cached},
            "output_tokens": counts.output,
            "output_tokens_details": {"reasoning_tokens": counts.reasoning},
            "total_tokens": counts.prompt + counts.output,
        }

    # Items

    def _item(self, number: int, *, is_new: bool = False) -> Json:
        """An output item: as it is when it begins, else as it ended."""
        section = self._choice.sections[number]
        is_cut = number == len(self._choice.sections) - 1 and self._end_status() != "completed"
        status = "in_progress" if is_new else "incomplete" if is_cut else "completed"
        if section.kind == "call":
            call = self._choice.calls[section.start]
            return {
                "id": self._item_id(number),
                "type": "function_call",
                "status": status,
                "arguments": "" if is_new else call.arguments,
                "call_id": call.id,
                "name": call.name,
            }
        if section.kind == "content":
            content = [] if is_new else [self._text_part(number)]
            named = {"id": self._item_id(number), "type": "message", "status": status}
            return {**named, "role": "assistant", "content": content}
        return self._reasoning_item(number, status, is_new)

    def _reasoning_item(self, number: int, status: str, is_new: bool) -> Json:
        item: Json = {"id": self._item_id(number), "type": "reasoning", "status": status, "summary": []}
        text = "" if is_new else self._choice.text_of(number)
        if self._request.summary is None:
            item["content"] = [] if is_new else [{"type": "reasoning_text", "text": text}]
        elif not is_new:
            item["summary"] = [{"type": "summary_text", "text": text}]
        if self._request.includes(ENCRYPTED):
            item["encrypted_content"] = encode_reasoning(text) if not is_new else ""
        return item

    def _item_id(self, number: int) -> str:
        kind = self._choice.sections[number].kind
        prefix = "fc" if kind == "call" else "msg" if kind == "content" else "rs"
        return output_id(prefix, self._key, number)

    def _text_part(self, number: int, *, is_new: bool = False) -> Json:
        text, logprobs = ("", []) if is_new else (self._choice.text_of(number), self._logprobs(number))
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _logprobs(self, number: int) -> list[Json]:
        """Those of the tokens of a section."""
        sections = self._choice.sections
        end = sections[number + 1].token if number + 1 < len(sections) else None
        return self._describe_logprobs(sections[number].token, end)

    def _describe_logprobs(self, first: int, end: int | None) -> list[Json]:
        return self.shape.describe_logprobs(self._choice.logprobs[first:end]) if self._request.wants_logprobs else []

    # Events

    def _event(self, kind: str, **fields: object) -> Json:
        event: Json = {"type": kind, "sequence_number": self._numbers, **fields}
        self._numbers += 1
        return event

    def _tell(self, piece: Piece) -> list[Json]:
        """The events of what the model wrote next, which ends the section before where it is of another kind."""
        match piece:
            case CallStart():
                return [*self._close(), *self._open()]
            case CallArguments(_, text):
                return [self._item_event("response.function_call_arguments.delta", delta=text)]
        kind = "content" if isinstance(piece, ContentDelta) else "reasoning"
        is_same = self._is_open and self._choice.sections[self._at].kind == kind
        events = [] if is_same else [*self._close(), *self._open()]
        if kind == "reasoning":
            return [*events, self._reasoning_event("delta", delta=piece.text)]
        following = self._choice.sections[self._at + 1 : self._at + 2]
        end = min([self._logprobs_seen, *(section.token for section in following)])
        logprobs = self._describe_logprobs(self._logprobs_told, end)
        self._logprobs_told = end
        told = self._part_event("response.output_text.delta", "content_index", delta=piece.text, logprobs=logprobs)
        return [*events, told]

    def _open(self) -> list[Json]:
        self._at += 1
        section = self._choice.sections[self._at]
        self._is_open, self._logprobs_told = True, section.token
        self._open_id = self._item_id(self._at)
        item = self._item(self._at, is_new=True)
        events = [self._event("response.output_item.added", output_index=self._at, item=item)]
        if section.kind == "content":
            part = self._text_part(self._at, is_new=True)
            events.append(self._part_event("response.content_part.added", "content_index", part=part))
        elif section.kind == "reasoning":
            events.append(self._reasoning_part_event("added", ""))
        return events

    def _close(self) -> list[Json]:
        if not self._is_open:
            return []
        number, section = self._at, self._choice.sections[self._at]
        events: list[Json]
        if section.kind == "call":
            call = self._choice.calls[section.start]
            done = "response.function_call_arguments.done"
            events = [self._item_event(done, name=call.name, arguments=call.arguments)]
        elif section.kind == "content":
            part = self._text_part(number)
            told = {"text": part["text"], "logprobs": part["logprobs"]}
            events = [
                self._part_event("response.output_text.done", "content_index", **told),
                self._part_event("response.content_part.done", "content_index", part=part),
            ]
        else:
            text = self._choice.text_of(number)
            events = [self._reasoning_event("done", text=text), self._reasoning_part_event("done", text)]
        self._is_open = False
        return [*events, self._event("response.output_item.done", output_index=number, item=self._item(number))]

    def _item_event(self, kind: str, **fields: object) -> Json:
        return self._event(kind, item_id=self._open_id, output_index=self._at, **fields)

    def _part_event(self, kind: str, index: str, **fields: object) -> Json:
        return self._item_event(kind, **{index: 0}, **fields)

    def _reasoning_event(self, kind: str, **fields: object) -> Json:
        if self._request.summary is None:
            return self._part_event(f"response.reasoning_text.{kind}", "content_index", **fields)
        return self._part_event(f"response.reasoning_summary_text.{kind}", "summary_index", **fields)

    def _reasoning_part_event(self, kind: str, text: str) -> Json:
        if self._request.summary is None:
            part = {"type": "reasoning_text", "text": text}
            return self._part_event(f"response.content_part.{kind}", "content_index", part=part)
        part = {"type": "summary_text", "text": text}
        return self._part_event(f"response.reasoning_summary_part.{kind}", "summary_index", part=part)


def _text_format(request: ResponsesRequest) -> Json:
    form = request.text.format if request.text is not None else None
    if form is None or form.type != "json_schema":
        return {"type": "text" if form is None else form.type}
    return {**form.model_dump(by_alias=True), "strict": bool(form.strict)}


def _tool_choice(request: ResponsesRequest) -> str | Json:
    choice = request.tool_choice
    if isinstance(choice, FunctionChoice | AllowedTools):
        return choice.model_dump()
    return choice or "auto"


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
            raise InvalidRequest("input is empty: send a string or at least one item", param="input")
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
