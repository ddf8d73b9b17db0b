"""The chat completion request: every field of the interface, with its type and the range that the interface states.

What a type or a stated range forbids is refused here (422); what depends on the model, on other fields or on a
library is refused where it acts (400). Fields at null or at their default are never refused.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from heddle.errors import InvalidRequest, ValidationFailed
from heddle.failures import details
from heddle.inference.prompt.messages import ChatMessage
from heddle.inference.structured import ResponseFormat, StructuredOutputs
from heddle.inference.tools.request import Tool, ToolChoice
from heddle.request_body import MOST_ERRORS, invalid

LARGEST = 9_223_372_036_854_776_000
"""The bound that the interface gives for 64-bit integers: what JSON numbers of 53 bits make of 2**63."""


def _whole(value: Any) -> Any:
    """A JSON number such as 3.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, Field(allow_inf_nan=False)]
ExtraValue = str | Integer | Number | list[str | Integer | Number]


class Part(BaseModel):
    """A nested object of the request; keys that it does not know are ignored and named in a response header."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class StreamOptions(Part):
    """What a stream says beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = False


class RepetitionDetection(Part):
    """When to end an output that repeats itself; both sizes 0 is off."""

    max_pattern_size: Integer = 0
    min_pattern_size: Integer = 0
    min_count: Integer = 0


class ChatRequest(Part):
    """The body of `POST /v1/chat/completions` (interface, section 2.1)."""

    messages: list[ChatMessage]
    model: str | None = None
    frequency_penalty: Number | None = 0.0
    logit_bias: dict[str, Number] | None = None
    logprobs: bool | None = False
    top_logprobs: Integer | None = 0
    max_tokens: Integer | None = None
    max_completion_tokens: Integer | None = None
    n: Integer | None = 1
    presence_penalty: Number | None = 0.0
    response_format: ResponseFormat | None = None
    seed: Annotated[Integer, Field(ge=-LARGEST, le=LARGEST)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = True
    parallel_tool_calls: bool | None = True
    user: str | None = None
    top_k: Integer | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    length_penalty: Number | None = 1.0
    stop_token_ids: list[Integer] | None = None
    include_stop_str_in_output: bool | None = False
    ignore_eos: bool | None = False
    min_tokens: Integer | None = 0
    skip_special_tokens: bool | None = True
    spaces_between_special_tokens: bool | None = True
    truncate_prompt_tokens: Annotated[Integer, Field(ge=-1, le=LARGEST)] | None = None
    prompt_logprobs: Integer | None = None
    allowed_token_ids: list[Integer] | None = None
    bad_words: list[str] | None = None
    echo: bool | None = False
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    add_special_tokens: bool | None = False
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    priority: Integer | None = 0
    request_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    engine_xargs: dict[str, ExtraValue] | None = None
    vllm_xargs: dict[str, ExtraValue] | None = None
    repetition_detection: RepetitionDetection | None = None

    @property
    def choices(self) -> int:
        """How many answers are wanted."""
        return 1 if self.n is None else self.n

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def xargs(self) -> dict[str, ExtraValue] | None:
        """The extra arguments under either spelling of their name."""
        return self.engine_xargs or self.vllm_xargs

    @property
    def wants_reasoning(self) -> bool:
        """True unless the request hides the reasoning."""
        return self.include_reasoning is not False


_ADAPTER: TypeAdapter[ChatRequest] = TypeAdapter(ChatRequest)
_NESTED: dict[str, type[BaseModel]] = {
    "stream_options": StreamOptions,
    "repetition_detection": RepetitionDetection,
    "structured_outputs": StructuredOutputs,
    "response_format": ResponseFormat,
}


def parse(body: Any) -> ChatRequest:
    """The typed request; raises ValidationFailed naming each place that is wrong."""
    try:
        request = _ADAPTER.validate_python(body)
    except ValidationError as error:
        if error.error_count() > MOST_ERRORS:
            raise invalid(error, ["body"]) from None
        items = error.errors(include_url=False, include_context=False, include_input=False)
        found = {(_place(body, item["loc"], item["type"]), item["msg"]): item["type"] for item in items}
        places = ({"loc": ("body", *place), "msg": message, "type": kind} for (place, message), kind in found.items())
        raise ValidationFailed(details(places)) from None
    if request.engine_xargs and request.vllm_xargs and request.engine_xargs != request.vllm_xargs:
        raise InvalidRequest("engine_xargs and vllm_xargs are one field and differ", param="engine_xargs")
    return request


def _place(body: Any, location: tuple[int | str, ...], kind: str) -> tuple[int | str, ...]:
    """Where in the body an error is: without the names of types that were tried there."""
    place: list[int | str] = []
    for part in location:
        is_item = isinstance(body, list) and isinstance(part, int) and part < len(body)
        if is_item or (isinstance(body, dict) and part in body):
            body = body[part]
        elif kind != "missing" or part != location[-1]:
            continue
        place.append(part)
    return tuple(place)


def ignored_keys(body: dict[str, Any]) -> list[str]:
    """The keys of a request that the interface does not know, nested ones as `outer.inner`."""
    found = [str(key) for key in body if key not in ChatRequest.model_fields]
    for name, model in _NESTED.items():
        value = body.get(name)
        if isinstance(value, dict):
            known = {alias for key, field in model.model_fields.items() for alias in (key, field.alias or key)}
            found += [f"{name}.{key}" for key in value if key not in known]
    return found
