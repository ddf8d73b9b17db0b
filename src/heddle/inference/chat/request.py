"""The chat completion request: every field of the interface, and the sampling that it asks for."""

import math
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, ValidationError, model_validator

from heddle.errors import InvalidRequest, ValidationFailed
from heddle.http.failures import details
from heddle.http.routing import MOST_ERRORS, validation_failure
from heddle.inference.chat.fields import LARGEST, ExtraValue, Integer, Number, Part, RepetitionDetection, StreamOptions
from heddle.inference.engine.base import EngineInfo, RepetitionRule, Sampling
from heddle.inference.prompt.messages import ChatMessage
from heddle.inference.prompt.template import context_exceeded
from heddle.inference.served_model import Defaults
from heddle.inference.structured.constraints import ResponseFormat, StructuredOutputs
from heddle.inference.tokenizer import Tokenizer
from heddle.inference.tools.formats import FunctionDefinition, FunctionName, NamedToolChoice, Tool, ToolChoice
from heddle.wire.lazy_model import LazyModel

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
    "structural_tag": "structural_tag",
}
_SWITCHES = {
    "no-fallback": "disable_fallback",
    "disable-any-whitespace": "disable_any_whitespace",
    "no-additional-properties": "disable_additional_properties",
}


_SWITCH = "chat_template_kwargs.enable_thinking"


class ConstraintFields(Part):
    """Constraints on the output: `structured_outputs`, and its older names."""

    structured_outputs: StructuredOutputs | None = None
    guided_json: StrictStr | dict[str, Any] | StrictBool | None = Field(default=None, deprecated=True)
    guided_regex: str | None = Field(default=None, deprecated=True)
    guided_choice: list[str] | None = Field(default=None, deprecated=True)
    guided_grammar: str | None = Field(default=None, deprecated=True)
    guided_whitespace_pattern: str | None = Field(default=None, deprecated=True)
    guided_decoding_backend: str | None = Field(default=None, deprecated=True)
    structural_tag: StrictStr | dict[str, Any] | None = Field(default=None, deprecated=True)

    @model_validator(mode="after")
    def _read_guided_fields(self) -> Self:
        values = self.__dict__
        given = {name: target for name, target in _GUIDED.items() if values[name] is not None}
        backend = values["guided_decoding_backend"]
        if not given:
            return self
        outputs = self.structured_outputs
        wanted = outputs.model_dump(by_alias=True, exclude_none=True) if outputs is not None else {}
        for name, target in given.items():
            if wanted.get(target) not in (None, values[name]):
                raise InvalidRequest(
                    f"{name} and structured_outputs.{target} are the same field but have different values", param=name
                )
            wanted[target] = values[name]
            self._older_names[f"structured_outputs.{target}"] = name
        if backend is not None:
            # `name:switch,switch`: the name was a wish, not a condition.
            wish, _, switches = backend.partition(":")
            known = {_SWITCHES[switch]: True for switch in switches.split(",") if switch in _SWITCHES}
            wanted = {"_backend": wish, "_backend_was_auto": True, **known} | wanted
        self.structured_outputs = StructuredOutputs.model_validate(wanted)
        return self


class ReasoningOptions(Part):
    """How much the model thinks, as routers of several providers ask for it."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class ThinkingOptions(Part):
    """Whether the model thinks."""

    type: Literal["enabled", "disabled", "auto", "adaptive"]


class FunctionChoice(LazyModel):
    """The function that must be called."""

    model_config = ConfigDict(extra="allow")
    name: str


class OlderChatFields(Part):
    """Tools, reasoning and variables of the template, and their older names."""

    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool | None = True
    chat_template_kwargs: dict[str, Any] | None = None
    functions: list[FunctionDefinition] | None = Field(default=None, deprecated=True)
    function_call: Literal["none", "auto"] | FunctionChoice | None = Field(default=None, deprecated=True)
    enable_thinking: bool | None = Field(default=None, deprecated=True)
    reasoning: ReasoningOptions | None = Field(default=None, deprecated=True)
    thinking: ThinkingOptions | None = Field(default=None, deprecated=True)

    @property
    def answers_with_function(self) -> bool:
        """True when the request asked for functions and not for tools: its answer has `function_call`."""
        return self.__dict__["functions"] is not None

    @model_validator(mode="after")
    def _read_functions(self) -> Self:
        functions, choice = self.__dict__["functions"], self.__dict__["function_call"]
        if functions is None:
            if choice not in (None, "none"):
                raise InvalidRequest("when function_call is used, functions must be set", param="function_call")
            return self
        if self.tools is not None or self.tool_choice is not None:
            raise InvalidRequest("functions and tools are the same field; send only tools", param="functions")
        self.tools = [Tool(type="function", function=function) for function in functions]
        self.parallel_tool_calls = False
        if isinstance(choice, FunctionChoice):
            self.tool_choice = NamedToolChoice(type="function", function=FunctionName(name=choice.name))
        else:
            self.tool_choice = choice
        return self

    @model_validator(mode="after")
    def _read_reasoning(self) -> Self:
        values = self.__dict__
        reasoning, thinking, switch = values["reasoning"], values["thinking"], values["enable_thinking"]
        if thinking is not None and thinking.type in ("enabled", "disabled"):
            switch = thinking.type == "enabled" if switch is None else switch
            self._older_names[_SWITCH] = "thinking"
        if reasoning is not None:
            if reasoning.exclude is not None:
                self.include_reasoning = not reasoning.exclude
            if reasoning.effort is not None and self.reasoning_effort is None:
                self.reasoning_effort = reasoning.effort
                self._older_names["reasoning_effort"] = "reasoning.effort"
            if reasoning.enabled is not None and switch is None:
                switch, self._older_names[_SWITCH] = reasoning.enabled, "reasoning.enabled"
        if values["enable_thinking"] is not None:
            self._older_names[_SWITCH] = "enable_thinking"
        if switch is not None:
            self.chat_template_kwargs = {"enable_thinking": switch} | (self.chat_template_kwargs or {})
        return self


class SamplingFields(ConstraintFields):
    """The fields that every interface for completions has, as far as it names none of its own."""

    frequency_penalty: Number | None = 0.0
    logit_bias: dict[str, Number] | None = None
    presence_penalty: Number | None = 0.0
    seed: Annotated[Integer, Field(ge=-LARGEST, le=LARGEST)] | None = None
    stop: str | list[str] | None = None
    temperature: Number | None = None
    top_p: Number | None = None
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
    allowed_token_ids: list[Integer] | None = None
    bad_words: list[str] | None = None
    priority: Integer | None = 0
    request_id: str | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    engine_xargs: dict[str, ExtraValue] | None = None
    vllm_xargs: dict[str, ExtraValue] | None = None
    repetition_detection: RepetitionDetection | None = None

    def sampling_fields(self) -> dict[str, Any]:
        """Those of these fields that the request has, for a `ChatRequest`."""
        return {name: getattr(self, name) for name in SamplingFields.model_fields if name in self.model_fields_set}


class ChatRequest(SamplingFields, OlderChatFields):
    """The body of `POST /v1/chat/completions` (interface, section 2.1)."""

    messages: list[ChatMessage]
    model: str | None = None
    logprobs: bool | None = False
    top_logprobs: Integer | None = 0
    max_tokens: Integer | None = None
    max_completion_tokens: Integer | None = None
    n: Integer | None = 1
    response_format: ResponseFormat | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    prompt_logprobs: Integer | None = None
    echo: bool | None = False
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    add_special_tokens: bool | None = False
    documents: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None

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


B = TypeVar("B", bound=BaseModel)
R = TypeVar("R", bound=SamplingFields)


def parse_request(body: Any) -> ChatRequest:
    """The typed request; raises ValidationFailed naming each place that is wrong."""
    return parse_body(ChatRequest, body)


def parse_body(model: type[R], body: Any, status: int = 422) -> R:
    """The typed request of any interface for completions; raises ValidationFailed naming each place that is wrong."""
    request = parse_fields(model, body, status)
    if request.engine_xargs and request.vllm_xargs and request.engine_xargs != request.vllm_xargs:
        raise InvalidRequest(
            "engine_xargs and vllm_xargs are the same field but have different values", param="engine_xargs"
        )
    return request


def parse_fields(model: type[B], body: Any, status: int = 422) -> B:
    """The typed body of a request; raises ValidationFailed naming each place that is wrong."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        # A local variable with what is raised would be a circle, which keeps the body until it is collected.
        raise _describe_failure(error, body, status) from None


def _describe_failure(error: ValidationError, body: Any, status: int) -> ValidationFailed:
    if error.error_count() > MOST_ERRORS:
        return ValidationFailed(validation_failure(error, ["body"]).detail, status)
    items = error.errors(include_url=False, include_context=False, include_input=False)
    found = {(_locate(body, item["loc"], item["type"]), item["msg"]): item["type"] for item in items}
    places = ({"loc": ("body", *at), "msg": message, "type": kind} for (at, message), kind in found.items())
    return ValidationFailed(details(places), status)


def _locate(body: Any, location: tuple[int | str, ...], kind: str) -> tuple[int | str, ...]:
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


MOST_STOPS = 1000
MOST_LOGPROBS = 20
MOST_CHOICES = 128
_INT64_MAX = 2**63 - 1
_MASK64 = 2**64 - 1
_GREEDY_BELOW = 1e-5
_LOWEST_TEMPERATURE = 0.01
_TOKEN_ID = re.compile(r"-?[0-9]{1,18}")
_LEAST_PENALTY = 1e-6
"""Smaller factors would take logits out of the range of float32."""


_RANGES = (
    ("n", 1, MOST_CHOICES, f"at least 1 and at most {MOST_CHOICES}"),
    ("temperature", 0, math.inf, "non-negative"),
    ("top_p", 0, 1, "in (0, 1]"),
    ("top_k", -1, math.inf, "-1 or 0 (off), or at least 1"),
    ("min_p", 0, 1, "in [0, 1]"),
    ("frequency_penalty", -2, 2, "in [-2, 2]"),
    ("presence_penalty", -2, 2, "in [-2, 2]"),
    ("repetition_penalty", 0, math.inf, "greater than zero"),
    ("min_tokens", 0, math.inf, "non-negative"),
)
"""What sampling itself can take: the field, its bounds, and how they are told."""


def read_sampling(
    request: ChatRequest, prompt_length: int, defaults: Defaults, tokenizer: Tokenizer, info: EngineInfo
) -> Sampling:
    """The sampling of the first choice; raises InvalidRequest naming the field that cannot be done."""
    if request.length_penalty not in (None, 1.0):
        raise _invalid(
            "length_penalty only applies to beam search, which is not supported; omit it or set it to 1",
            "length_penalty",
        )
    if request.mm_processor_kwargs:
        raise _invalid(
            "mm_processor_kwargs requires a multimodal model; the served model only accepts text", "mm_processor_kwargs"
        )
    if request.stream_options is not None and not request.stream:
        raise _invalid("Stream options can only be defined when `stream=True`.", "stream_options")
    _check_ranges(request)
    temperature = _or_default(request.temperature, defaults.temperature)
    if request.choices > 1 and is_greedy(temperature):
        raise _invalid(f"n must be 1 when using greedy sampling, got {request.choices}.", "n")
    most = _max_tokens(request, prompt_length, info)
    if request.allowed_token_ids is not None and not request.allowed_token_ids:
        raise _invalid("allowed_token_ids must not be empty.", "allowed_token_ids")
    if any(tokenizer.exceeds(word, info.max_model_len) for word in request.bad_words or ()):
        raise _invalid(f"bad_words: a word has more than {info.max_model_len} tokens.", "bad_words")
    return Sampling(
        max_tokens=most,
        seed=_seed(request.seed),
        is_seeded=request.seed is not None,
        temperature=temperature,
        top_p=_or_default(request.top_p, defaults.top_p),
        top_k=max(0, _or_default(request.top_k, defaults.top_k)),
        min_p=_or_default(request.min_p, defaults.min_p),
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        repetition_penalty=_or_default(request.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_bias(request.logit_bias or {}, info.vocab_size),
        allowed_token_ids=(
            None
            if request.allowed_token_ids is None
            else known_ids("allowed_token_ids", request.allowed_token_ids, info.vocab_size)
        ),
        bad_words=tuple(sequence for word in request.bad_words or () for sequence in tokenizer.bad_word_ids(word)),
        min_tokens=request.min_tokens or 0,
        stop_token_ids=known_ids("stop_token_ids", request.stop_token_ids or (), info.vocab_size),
        ignore_eos=bool(request.ignore_eos),
        repetition=_repetition(request),
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=_prompt_logprobs(request),
    )


def is_greedy(temperature: float) -> bool:
    """True when the best token is taken."""
    return temperature < _GREEDY_BELOW


def temperature_of(temperature: float) -> float:
    """The temperature that acts: a lower one than 0.01 is raised to it."""
    return max(temperature, _LOWEST_TEMPERATURE)


def seed_of_choice(seed: int, index: int) -> int:
    """A stream of its own for each choice of one seed; choice 0 has the seed itself."""
    return (seed + index * 0x9E3779B97F4A7C15) & _MASK64


def _or_default(value: Any, default: Any) -> Any:
    return default if value is None else value


def _invalid(message: str, param: str) -> InvalidRequest:
    return InvalidRequest(message, param=param)


def _check_ranges(request: ChatRequest) -> None:
    """The ranges that sampling itself sets."""
    for name, low, high, rule in _RANGES:
        value = getattr(request, name)
        if value is not None and not low <= value <= high:
            raise _invalid(f"{name} must be {rule}, got {value}.", name)
    if request.top_p is not None and request.top_p == 0:
        raise _invalid("top_p must be in (0, 1], got 0.", "top_p")
    if request.repetition_penalty is not None and request.repetition_penalty < _LEAST_PENALTY:
        raise _invalid(
            f"repetition_penalty must be greater than zero (at least {_LEAST_PENALTY:g}), got "
            f"{request.repetition_penalty}.",
            "repetition_penalty",
        )
    if any(not word for word in request.bad_words or ()):
        raise _invalid("bad_words cannot contain an empty string.", "bad_words")
    if len(request.stops) > MOST_STOPS:
        raise _invalid(f"stop has {len(request.stops)} strings, at most {MOST_STOPS} are allowed.", "stop")
    if any(not stop for stop in request.stops):
        raise _invalid("stop cannot contain an empty string.", "stop")
    top = request.top_logprobs or 0
    if top and not request.logprobs:
        raise _invalid("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    if not 0 <= top <= MOST_LOGPROBS:
        raise _invalid(f"top_logprobs must be from 0 to {MOST_LOGPROBS}, got {top}.", "top_logprobs")


def _max_tokens(request: ChatRequest, prompt_length: int, info: EngineInfo) -> int:
    name = "max_tokens" if request.max_completion_tokens is None else "max_completion_tokens"
    asked = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    limit = info.max_model_len
    if asked is not None and asked < 1:
        raise _invalid(f"{name} must be at least 1, got {asked}. Omit it to get as many as fit.", name)
    if asked is not None and asked > limit:
        raise _invalid(
            f"{name}={asked} cannot be greater than max_model_len={limit}. Please request fewer output tokens.", name
        )
    if prompt_length >= limit:
        raise context_exceeded(limit, prompt_length)
    least = request.min_tokens or 0
    most = limit - prompt_length if asked is None else min(asked, limit - prompt_length)
    if least > (most if asked is None else asked):
        raise _invalid(f"min_tokens must be less than or equal to {name}={asked or most}, got {least}.", "min_tokens")
    return most


def _seed(seed: int | None) -> int:
    if seed is None:
        return secrets.randbits(64)
    return max(-_INT64_MAX - 1, min(_INT64_MAX, seed)) & _MASK64


def _prompt_logprobs(request: ChatRequest) -> int | None:
    count = request.prompt_logprobs
    if count is None:
        return (request.top_logprobs or 0) if request.echo else None
    if request.stream and count != 0:
        raise _invalid("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
    if not 0 <= count <= MOST_LOGPROBS:
        raise _invalid(f"prompt_logprobs must be from 0 to {MOST_LOGPROBS}, got {count}.", "prompt_logprobs")
    return count


def _repetition(request: ChatRequest) -> RepetitionRule | None:
    rule = request.repetition_detection
    if rule is None:
        return None
    if rule.min_pattern_size < 0 or rule.max_pattern_size < rule.min_pattern_size:
        raise _invalid(
            "max_pattern_size and min_pattern_size must be at least 0, with min_pattern_size <= "
            "max_pattern_size; set both to 0 to disable it.",
            "repetition_detection",
        )
    if rule.max_pattern_size == 0:
        return None
    if rule.min_count < 2:
        raise _invalid("min_count must be at least 2; set max_pattern_size to 0 to disable it.", "repetition_detection")
    return RepetitionRule(rule.max_pattern_size, rule.min_pattern_size, rule.min_count)


def known_ids(name: str, ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """The ids; raises InvalidRequest for those that the model does not have."""
    strange = [token for token in ids if not 0 <= token < vocab_size]
    if strange:
        raise _invalid(
            f"token_id(s) {strange[:10]} in {name} contain out-of-vocab token ids. Vocabulary size: {vocab_size}", name
        )
    return tuple(ids)


def _bias(bias: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    """What is added to logits, clamped to [-100, 100]."""
    strange = [key for key in bias if not _TOKEN_ID.fullmatch(key)]
    if strange:
        raise _invalid(
            f"logit_bias contains key(s) that cannot be converted to integer token IDs: {strange[:10]}", "logit_bias"
        )
    ids = known_ids("logit_bias", [int(key) for key in bias], vocab_size)
    if len(set(ids)) < len(ids):
        twice = next(token for token, count in Counter(ids).items() if count > 1)
        raise _invalid(f"logit_bias contains the token {twice} twice", "logit_bias")
    return {int(key): max(-100.0, min(100.0, value)) for key, value in bias.items()}
