"""The body of POST /v1/messages, and the chat request that it stands for."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

from pydantic import ConfigDict, Field

from heddle.errors import InvalidRequest
from heddle.inference.chat.fields import Integer, Part, unknown_fields
from heddle.inference.chat.request import ChatRequest, SamplingFields, parse_body
from heddle.inference.chat.wire import ParsedRequest, Wire
from heddle.inference.messages.answer import MessagesAnswer
from heddle.inference.messages.conversation import ContentBlock, Conversation, InputMessage, read_conversation
from heddle.inference.prompt.template import ContextExceeded
from heddle.inference.structured.constraints import ResponseFormat
from heddle.inference.tools.formats import FunctionName, NamedToolChoice, Tool, ToolChoice, make_tool
from heddle.wire import jsontext, refs
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LazyModel


class InputTool(LazyModel):
    """A tool of the request; those of other types than `custom` have no schema of their own."""

    model_config = ConfigDict(strict=True, extra="allow")
    type: str | None = None
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: Json | None = None
    strict: bool | None = None


class Choice(Part):
    """Which tools may be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Part):
    """Whether the model may think before it answers."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Integer | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Part):
    """The form of the answer."""

    type: Literal["json_schema"]
    json_schema: Json = Field(alias="schema")


class OutputConfig(Part):
    """Effort and form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(Part):
    """Who asks."""

    user_id: str | None = None


class MessagesRequest(SamplingFields):
    """The body of `POST /v1/messages`; sampling fields of the chat interface are taken too."""

    model: str
    max_tokens: Integer
    messages: list[InputMessage]
    system: str | list[ContentBlock] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    tools: list[InputTool] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """The older place of `output_config.format`."""
    metadata: Metadata | None = None
    mcp_servers: list[Json] | None = None
    container: str | Json | None = None
    thread: Json | None = None
    """Conversations that the server holds; there are none here, which clients understand."""


class CountRequest(MessagesRequest):
    """The body of `POST /v1/messages/count_tokens`."""

    max_tokens: Integer = 1


def read_messages(request: MessagesRequest, body: Json) -> ParsedRequest:
    """The chat request; InvalidRequest, with the name of the place, for what this server cannot do."""
    if not request.messages:
        raise InvalidRequest("messages: at least one message is required", param="messages")
    if request.max_tokens < 1:
        raise InvalidRequest(f"max_tokens must be at least 1, got {request.max_tokens}", param="max_tokens")
    if request.thread is not None:
        raise InvalidRequest(
            "thread is not supported: conversations are not stored; send all messages instead",
            param="thread",
            details={"error_code": "thread_unsupported_request", "unsupported": []},
        )
    if request.container is not None:
        raise InvalidRequest(
            "container is not supported: this server does not run programs or skills", param="container"
        )
    if request.mcp_servers:
        raise InvalidRequest(
            "mcp_servers is not supported: this server does not connect to MCP servers", param="mcp_servers"
        )
    conversation = read_conversation(request.messages, request.system)
    user, session = read_user(request.metadata.user_id if request.metadata is not None else None)
    refs.check_id("metadata.user_id: the session", session)
    output = request.output_config or OutputConfig()
    form, schema = None, output.format or request.output_format
    if schema is not None:
        named = {"name": "output", "schema": schema.json_schema}
        form = ResponseFormat.model_validate({"type": "json_schema", "json_schema": named})
    fields = request.sampling_fields()
    if request.stop_sequences is not None:
        fields["stop"] = request.stop_sequences
    thinks = request.thinking is not None and request.thinking.type != "disabled"
    chat = ChatRequest(
        **fields | {"user": user or request.user},
        model=request.model,
        messages=conversation.messages,
        max_tokens=request.max_tokens,
        stream=request.stream,
        tools=[_tool(tool, f"tools.{index}") for index, tool in enumerate(request.tools or ())] or None,
        tool_choice=_tool_choice(request),
        parallel_tool_calls=not (request.tool_choice is not None and request.tool_choice.disable_parallel_tool_use),
        response_format=form,
        reasoning_effort=output.effort,
        include_reasoning=thinks,
        chat_template_kwargs={"enable_thinking": thinks},
        add_generation_prompt=not conversation.is_prefilled,
        continue_final_message=conversation.is_prefilled,
    )
    return ParsedRequest(
        chat,
        partial(
            MessagesAnswer,
            max_tokens=request.max_tokens,
            omits_thoughts=request.thinking is not None and request.thinking.display == "omitted",
            continues=conversation.is_prefilled,
        ),
        ignored=tuple(_ignored(request, body, conversation)),
        thread_id=session,
        places=tuple(conversation.places),
        clamps_max_tokens=True,
    )


def _tool(tool: InputTool, at: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise InvalidRequest(
            f"{at}: a tool of type '{tool.type}' is not supported; describe your own tools with input_schema",
            param=f"{at}.type",
        )
    if tool.input_schema is None:
        raise InvalidRequest(f"{at}.input_schema: Field required", param=f"{at}.input_schema")
    return make_tool(tool.name, tool.description, tool.input_schema, tool.strict)


def _tool_choice(request: MessagesRequest) -> ToolChoice | None:
    choice = request.tool_choice
    if choice is None:
        return None
    if choice.type == "tool":
        if choice.name is None:
            raise InvalidRequest("tool_choice.name: Field required", param="tool_choice.name")
        return NamedToolChoice(type="function", function=FunctionName(name=choice.name))
    words: dict[str, Literal["auto", "required", "none"]] = {"auto": "auto", "any": "required", "none": "none"}
    return words[choice.type]


def _ignored(request: MessagesRequest, body: Json, conversation: Conversation) -> Iterator[str]:
    """The keys without effect; those of messages and tools once each."""
    yield from unknown_fields(MessagesRequest, body)
    if request.thinking is not None and request.thinking.budget_tokens is not None:
        yield "thinking.budget_tokens"
    extra = {key for tool in request.tools or () for key in tool.model_extra or ()}
    yield from (f"tools.{key}" for key in sorted(extra))
    yield from conversation.ignored


_OLDER_USER = re.compile(r"(?P<user>.*)_session_(?P<session>[0-9a-fA-F-]{8,64})")
_NAMES_OF_USER = ("account_uuid", "user_id", "device_id")


def read_user(user_id: str | None) -> tuple[str | None, str | None]:
    """The user and the session in `metadata.user_id`; Claude Code writes both into it, as JSON or joined."""
    if not user_id:
        return None, None
    if user_id.startswith("{"):
        try:
            found = jsontext.loads_text(user_id)
        except ValueError:
            return user_id, None
        session = found.get("session_id")
        names = (found.get(name) for name in _NAMES_OF_USER)
        user = next((name for name in names if isinstance(name, str) and name), user_id)
        return user, session if isinstance(session, str) and session else None
    joined = _OLDER_USER.fullmatch(user_id)
    return (joined["user"], joined["session"]) if joined is not None else (user_id, None)


_FUNCTION_FIELDS = (("function.parameters", "input_schema"), ("function.", ""))


class MessagesWire(Wire):
    """POST /v1/messages; with `counts`, POST /v1/messages/count_tokens."""

    op_name = "heddle.messages"
    id_prefix = "msg_"
    field_names = {  # noqa: RUF012 (declared like this by the base class)
        "stop": "stop_sequences",
        "user": "metadata.user_id",
        "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
        "response_format": "output_config.format",
        "reasoning_effort": "output_config.effort",
        "continue_final_message": "messages",
        "chat_template_kwargs.enable_thinking": "thinking",
    }

    def __init__(self, counts: bool = False) -> None:
        self._counts = counts

    def read(self, body: Any) -> ParsedRequest:
        """The chat request that the messages stand for; a request of a wrong shape is 400 here."""
        return read_messages(parse_body(CountRequest if self._counts else MessagesRequest, body, status=400), body)

    def name_ignored(self, names: Sequence[str], parsed: ParsedRequest) -> list[str]:
        """That a model which cannot think does not think has no need to be told."""
        thinks = (parsed.chat.chat_template_kwargs or {}).get("enable_thinking")
        shown = names if thinks else [name for name in names if name != "chat_template_kwargs.enable_thinking"]
        return super().name_ignored(shown, parsed)

    def rename(self, error: InvalidRequest, parsed: ParsedRequest) -> InvalidRequest:
        """Tools are no functions here; a long prompt is told in the words by which clients begin to compact it."""
        if isinstance(error, ContextExceeded):
            told = f"prompt is too long: {error.count} tokens > {error.limit} maximum"
            return InvalidRequest(told, error.headers, "messages", **error.extra)
        renamed = super().rename(error, parsed)
        if renamed.param is None or not renamed.param.startswith("tools."):
            return renamed
        shown, reason = renamed.param, renamed.reason
        for ours, theirs in _FUNCTION_FIELDS:
            shown, reason = (
                shown.replace(ours, theirs),
                re.sub(rf"(tools\.\d+\.){re.escape(ours)}", rf"\1{theirs}", reason),
            )
        return InvalidRequest(reason, renamed.headers, shown, **renamed.extra)


MESSAGES = MessagesWire()
COUNTED = MessagesWire(counts=True)
