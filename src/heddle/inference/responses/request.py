"""The body of `POST /v1/responses`: its fields, those that cannot be done, and the chat request that it stands for."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from heddle.errors import InvalidRequest, ValidationFailed
from heddle.inference.chat.fields import Integer, Part, unknown_fields
from heddle.inference.chat.request import ChatRequest, SamplingFields, parse_body
from heddle.inference.prompt.messages import ChatMessage
from heddle.inference.responses.items import InputItem, check_types
from heddle.inference.structured.constraints import ResponseFormat
from heddle.inference.tools.formats import make_tool
from heddle.wire.jsontypes import Json

INCLUDABLE = (
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""The last ones tell more of items that never occur here, so nothing is missing without them."""
ENCRYPTED, LOGPROBS = INCLUDABLE[:2]
_METADATA_PAIRS, _METADATA_KEY, _METADATA_VALUE = 16, 64, 512


class FunctionTool(Part):
    """A function that the model may call."""

    type: Literal["function"]
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(Part):
    """Exactly this function must be called."""

    type: Literal["function"]
    name: str


class AllowedTools(Part):
    """Only these of the tools may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"] = "auto"
    tools: list[FunctionChoice] = Field(min_length=1)


class TextFormat(Part):
    """The form of the text."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=(), populate_by_name=True)
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(Part):
    """What the text is like."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Part):
    """How much the model thinks, and whether its thoughts are given as a summary, which is all of them."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(Part):
    """What a stream has beside the events."""

    include_obfuscation: bool | None = None


class ConversationReference(Part):
    """A conversation by its id."""

    id: str


class ResponsesRequest(SamplingFields):
    """The body of `POST /v1/responses`."""

    model: str | None = None
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | AllowedTools | None = None
    parallel_tool_calls: bool | None = True
    max_tool_calls: Annotated[Integer, Field(ge=1, le=2**31)] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    max_output_tokens: Integer | None = None
    top_logprobs: Integer | None = None
    include: list[str] | None = None
    store: bool | None = True
    background: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    truncation: Literal["auto", "disabled"] | None = "disabled"
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None
    prompt: dict[str, Any] | None = None
    context_management: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation that it belongs to."""
        named = self.conversation
        return named.id if isinstance(named, ConversationReference) else named

    @property
    def is_stored(self) -> bool:
        """True unless the request says otherwise."""
        return self.store is not False

    @property
    def summary(self) -> str | None:
        """The summary that is asked for, under either name."""
        reasoning = self.reasoning
        return None if reasoning is None else reasoning.summary or reasoning.generate_summary

    @property
    def wants_logprobs(self) -> bool:
        """True where the text comes with log-probabilities."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    def includes(self, name: str) -> bool:
        """True for what `include` names."""
        return name in (self.include or ())


def parse_request(body: Any) -> ResponsesRequest:
    """The typed request; raises ValidationFailed or InvalidRequest naming the field."""
    if isinstance(body, dict):
        check_types(body.get("input"))
        if spared := _spared_tools(body):
            body = {**body, "tools": [tool for number, tool in enumerate(body["tools"]) if number not in spared]}
        _check_tools(body)
    try:
        request = parse_body(ResponsesRequest, body, status=400)
    except ValidationFailed as error:
        is_list = isinstance(body, dict) and isinstance(body.get("input"), list)
        # That a list of items is no text need not be told.
        deeper = [item for item in error.detail if not is_list or list(item["loc"]) != ["body", "input"]]
        raise ValidationFailed(deeper or error.detail, status=400) from None
    _check_fields(request)
    return request


def ignored_fields(request: ResponsesRequest, body: dict[str, Any]) -> list[str]:
    """Fields of the body that have no effect here."""
    spared = [f"tools.{number}" for number in _spared_tools(body)]
    found = [
        name for name in unknown_fields(ResponsesRequest, body) if not name.startswith(tuple(f"{n}." for n in spared))
    ]
    if request.text is not None and request.text.verbosity not in (None, "medium"):
        found.append("text.verbosity")
    if request.service_tier not in (None, "auto", "default"):
        found.append("service_tier")
    if request.stream_options is not None and request.stream_options.include_obfuscation:
        found.append("stream_options.include_obfuscation")
    if request.prompt_cache_retention is not None:
        found.append("prompt_cache_retention")
    return [*found, *spared]


def _refuse(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param)


_SPARED = frozenset({"image_generation", "namespace", "tool_search", "web_search"})
"""Tools of OpenAI's servers that Codex offers beside its functions, whoever serves the model."""


def _spared_tools(body: dict[str, Any]) -> list[int]:
    """The numbers of tools that the model does without: functions are offered too, and none of these is chosen."""
    tools = body.get("tools")
    if not isinstance(tools, list) or body.get("tool_choice") not in (None, "auto", "none"):
        return []
    kinds = [tool.get("type") if isinstance(tool, dict) else None for tool in tools]
    return [number for number, kind in enumerate(kinds) if kind in _SPARED] if "function" in kinds else []


def _check_tools(body: dict[str, Any]) -> None:
    """Refuse tools that run on servers of others, by their type."""
    tools = body.get("tools")
    for number, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind != "function":
            place = f"tools.{number}.type"
            raise _refuse(
                f"{place}: the tool '{kind[:100]}' is not supported; this server only supports tools of type "
                "'function'",
                place,
            )
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(kind, str) and kind not in ("function", "allowed_tools"):
        raise _refuse(f"tool_choice: the tool '{kind[:100]}' is not supported", "tool_choice")


def _check_fields(request: ResponsesRequest) -> None:
    if request.prompt is not None:
        raise _refuse("prompt: templates stored with OpenAI are not available; use instructions", "prompt")
    if request.context_management:
        raise _refuse("context_management: this server does not compact conversations", "context_management")
    if request.previous_response_id is not None and request.conversation is not None:
        raise _refuse("previous_response_id and conversation cannot be used together", "previous_response_id")
    if request.input is None and request.previous_response_id is None and request.conversation is None:
        raise _refuse("input is missing: send a string or a list of items", "input")
    if request.background and not request.is_stored:
        raise _refuse("background requires store, as a response that is not stored cannot be retrieved", "background")
    strange = [name for name in request.include or () if name not in INCLUDABLE]
    if strange:
        raise _refuse(f"include: '{strange[0][:100]}' is unknown; expected one of {', '.join(INCLUDABLE)}", "include")
    if request.summary == "concise":
        raise _refuse(
            "reasoning.summary: summaries are not supported; 'auto' and 'detailed' return the full reasoning",
            "reasoning.summary",
        )
    if request.stream_options is not None and not request.stream:
        raise _refuse("stream_options requires stream", "stream_options")
    check_metadata(request.metadata)


def check_metadata(metadata: dict[str, str] | None) -> None:
    """Raise InvalidRequest for more metadata than a response or a conversation may have."""
    if metadata is None:
        return
    if len(metadata) > _METADATA_PAIRS:
        raise _refuse(f"metadata has {len(metadata)} pairs; at most {_METADATA_PAIRS} are allowed", "metadata")
    for key, value in metadata.items():
        if len(key) > _METADATA_KEY or len(value) > _METADATA_VALUE:
            raise _refuse(
                f"metadata: keys can have at most {_METADATA_KEY} characters and values {_METADATA_VALUE}", "metadata"
            )


def chat_request(request: ResponsesRequest, messages: list[ChatMessage]) -> ChatRequest:
    """The same as a chat completion of some messages."""
    fields: Json = {
        **request.sampling_fields(),
        "model": request.model,
        "messages": messages,
        "stream": bool(request.stream),
        "max_completion_tokens": request.max_output_tokens,
        "logprobs": request.wants_logprobs,
        "top_logprobs": request.top_logprobs or 0,
        "parallel_tool_calls": request.parallel_tool_calls,
        "reasoning_effort": request.reasoning.effort if request.reasoning is not None else None,
        "chat_template": request.chat_template,
        "chat_template_kwargs": request.chat_template_kwargs,
        "user": request.user if request.user is not None else request.safety_identifier,
    }
    if request.tools:
        given = ((tool.name, tool.description, tool.parameters, tool.strict) for tool in request.tools)
        fields["tools"] = [make_tool(*parts) for parts in given]
        fields["tool_choice"] = _chat_choice(request)
    elif request.tool_choice not in (None, "none", "auto"):
        raise _refuse("tool_choice requires tools", "tool_choice")
    form = request.text.format if request.text is not None else None
    if form is not None and form.type != "text":
        fields["response_format"] = _chat_format(form)
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _refuse(f"{place}: {first['msg']}", place) from None


def _chat_choice(request: ResponsesRequest) -> Any:
    choice = request.tool_choice
    if isinstance(choice, FunctionChoice):
        return {"type": "function", "function": {"name": choice.name}}
    if isinstance(choice, AllowedTools):
        named = [{"type": "function", "function": {"name": tool.name}} for tool in choice.tools]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": named}}
    return choice


def _chat_format(form: TextFormat) -> ResponseFormat:
    if form.type == "json_object":
        return ResponseFormat(type="json_object")
    if form.name is None or form.json_schema is None:
        missing = "name" if form.name is None else "schema"
        raise _refuse(f"text.format.{missing} is missing", f"text.format.{missing}")
    given = {"name": form.name, "schema": form.json_schema, "strict": form.strict, "description": form.description}
    return ResponseFormat.model_validate({"type": "json_schema", "json_schema": given})
