"""Trajectories and chat rows as clients send them (interface, section 2.4; contract training.md, section 2).

What a type, a range or a missing field forbids is refused here with its place (422). Defects that the field tolerates
(a choice without logprobs, an empty group) pass, and are counted when the job runs.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from heddle.errors import InvalidRequest
from heddle.http.routing import RequestModel
from heddle.training.calls import choose_exchanges
from heddle.wire.jsontypes import Json
from heddle.wire.lazy_model import LAZY, LazyModel
from heddle.wire.means import mean

Place = tuple[str | int, ...]
Problem = tuple[Place, str, str]
"""Where in the item, which kind, what."""

_MOST_PROBLEMS = 20
LARGEST = 2**53
"""The largest integer that every reader of JSON keeps."""
MOST_METRICS, LONGEST_NAME = 1000, 200


def check_item(item: Json) -> Json:
    """The item itself, for pydantic; raises ValidationError with up to twenty places that are wrong."""
    found = [problem for _, problem in zip(range(_MOST_PROBLEMS), find_problems(item), strict=False)]
    if not found:
        return item
    errors: list[InitErrorDetails] = [
        {"type": PydanticCustomError(kind, "{text}", {"text": text}), "loc": place, "input": None}
        for place, kind, text in found
    ]
    raise ValidationError.from_exception_data("item", errors)


def find_problems(item: Json) -> Iterator[Problem]:
    """What is wrong with a message or a choice."""
    if "finish_reason" in item and "message" in item:
        yield from _choice(item)
    elif "role" in item:
        yield from _message(item, ())
    else:
        yield (), "value_error", "Neither a chat message (role) nor a choice (finish_reason and message)"


def _message(message: dict[str, Any], at: Place) -> Iterator[Problem]:
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if not isinstance(role, str) or not role:
        yield (*at, "role"), "string_type", "Input should be a non-empty string"
    if isinstance(content, list):
        for index, part in enumerate(content):
            if not isinstance(part, (dict, str)):
                yield (*at, "content", index), "dict_type", "Input should be an object or a string"
    elif content is not None and not isinstance(content, str):
        yield (*at, "content"), "string_type", "Input should be a string, a list of parts, or null"
    if calls is None:
        return
    if not isinstance(calls, list):
        yield (*at, "tool_calls"), "list_type", "Input should be a list"
        return
    for index, call in enumerate(calls):
        if not isinstance(call, dict):
            yield (*at, "tool_calls", index), "dict_type", "Input should be an object"
        elif not isinstance(function := call.get("function"), dict) or not isinstance(function.get("name"), str):
            yield (*at, "tool_calls", index, "function"), "value_error", "Input should be an object with a name"


def _choice(choice: dict[str, Any]) -> Iterator[Problem]:
    message, reason, logprobs = choice["message"], choice["finish_reason"], choice.get("logprobs")
    if reason is not None and not isinstance(reason, str):
        yield ("finish_reason",), "string_type", "Input should be a text or null"
    if not isinstance(message, dict):
        yield ("message",), "dict_type", "Input should be an object"
    else:
        yield from _message({"role": "assistant", **message}, ("message",))
    for name in ("token_ids", "prompt_token_ids"):
        yield from _token_ids(choice.get(name), name)
    if logprobs is None:
        return
    if not isinstance(logprobs, dict):
        yield ("logprobs",), "dict_type", "Input should be an object or null"
        return
    for name in ("content", "refusal"):
        yield from _entries(logprobs.get(name), ("logprobs", name))


def _token_ids(ids: Any, name: str) -> Iterator[Problem]:
    if ids is None:
        return
    if not isinstance(ids, list):
        yield (name,), "list_type", "Input should be a list of token ids or null"
        return
    for index, token_id in enumerate(ids):
        if type(token_id) is not int or not 0 <= token_id <= LARGEST:
            yield (name, index), "int_type", "Input should be a token id (an integer from 0)"


def _entries(entries: Any, at: Place) -> Iterator[Problem]:
    if entries is None:
        return
    if not isinstance(entries, list):
        yield at, "list_type", "Input should be a list or null"
        return
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            yield (*at, index), "dict_type", "Input should be an object"
            continue
        if not isinstance(entry.get("token"), str):
            yield (*at, index, "token"), "string_type", "Input should be a text such as token_id:17"
        value = entry.get("logprob")
        if value is not None and not (type(value) in (float, int) and abs(value) <= sys.float_info.max):
            yield (*at, index, "logprob"), "finite_number", "Input should be a finite number or null"


Finite = Annotated[float, Field(allow_inf_nan=False)]
AtLeastZero = Annotated[Finite, Field(ge=0)]
AboveZero = Annotated[Finite, Field(gt=0)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Step = Annotated[int, Field(ge=0, le=LARGEST)]
Version = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]


def _figure(value: Any) -> Any:
    """A finite number or a truth; one place for what is wrong, where a union of types would name several."""
    if not isinstance(value, (int, float)):
        raise PydanticCustomError("float_type", "Input should be a number, true or false")
    try:
        is_finite = math.isfinite(value)
    except OverflowError:
        is_finite = False
    if not is_finite:
        raise PydanticCustomError("finite_number", "Input should be a finite number")
    return value


def _mark(value: Any) -> Any:
    """Any JSON, as openpipe-art 0.5.23 has it; its numbers are finite where it is one."""
    return _figure(value) if isinstance(value, (int, float)) else value


def _has_short_names(figures: Any) -> Any:
    """Names of metrics are listed with every step and every log of a model."""
    if isinstance(figures, dict) and any(len(name) > LONGEST_NAME for name in figures if isinstance(name, str)):
        raise PydanticCustomError("value_error", f"a metric name can have at most {LONGEST_NAME} characters")
    return figures


Figure = Annotated[float | bool, PlainValidator(_figure, json_schema_input_type=float | bool)]
Figures = Annotated[dict[str, Figure], BeforeValidator(_has_short_names)]
Marks = dict[str, Annotated[Any, PlainValidator(_mark, json_schema_input_type=Any)]]
Item = Annotated[dict[str, Any], AfterValidator(check_item)]
"""A chat message (`role`) or a sampled choice (`finish_reason` and `message`)."""


class Part(RequestModel):
    """A nested object of a training body; numbers are numbers and texts are texts."""

    model_config = ConfigDict(strict=True)


class ToolFunction(Part):
    """What a tool is called with."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Part):
    """A tool that the model may call."""

    type: str
    function: ToolFunction


class History(Part):
    """One conversation of a trajectory."""

    messages_and_choices: list[Item]
    tools: list[Tool] | None = None


class ExceptionInfo(Part):
    """A rollout that failed; no member of the group."""

    type: str = ""
    message: str = ""
    traceback: str | None = None


class ChatRequest(LazyModel):
    """What a model had read; what else clients sent and got is theirs, here and below."""

    messages: list[Item]


class ChatResponse(LazyModel):
    """What it answered."""

    choices: list[Item]


class ChatExchange(LazyModel):
    """One chat completion."""

    request: ChatRequest
    response: ChatResponse


class OtherExchange(LazyModel):
    """A request by another protocol."""

    request: dict[str, Any]


class Exchanges(RequestModel):
    """All requests of a rollout; those to other models than the trained one are no part of its conversations."""

    chat_completions: list[ChatExchange] = Field(default_factory=list)
    completions: list[OtherExchange] = Field(default_factory=list)
    responses: list[OtherExchange] = Field(default_factory=list)
    messages: list[OtherExchange] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _has_one_model(cls, data: Any) -> Any:
        if isinstance(data, dict):
            choose_exchanges(data)
        return data


class Trajectory(Part):
    """One rollout with its reward; nothing is required."""

    exchanges: Exchanges | None = None
    """In place of messages, tools and histories."""

    messages_and_choices: list[Item] = Field(default_factory=list)
    tools: list[Tool] | None = None
    additional_histories: list[History] = Field(default_factory=list)
    reward: Finite = 0.0
    initial_policy_version: Version | None = None
    final_policy_version: Version | None = None
    metrics: Figures = Field(default_factory=dict)
    metadata: Marks = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)
    start_time: str | None = None

    @model_validator(mode="after")
    def _is_told_once(self) -> "Trajectory":
        if self.exchanges is not None and (self.messages_and_choices or self.tools or self.additional_histories):
            raise PydanticCustomError("value_error", "give exchanges, or messages and histories, not both")
        return self


class TrajectoryGroup(Part):
    """Rollouts of one scenario, compared with each other."""

    trajectories: list[Trajectory]
    """May be missing beside others where it would be empty: openpipe-art 0.5.23 leaves defaults out."""
    exceptions: list[ExceptionInfo] = Field(default_factory=list)
    metadata: Marks = Field(default_factory=dict)
    metrics: Figures = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _may_be_empty(cls, data: Any) -> Any:
        """A key that nobody knows is a misspelt `trajectories` more likely than nothing to train; `{}` is refused."""
        if isinstance(data, dict) and data and "trajectories" not in data and data.keys() <= cls.model_fields.keys():
            return {**data, "trajectories": []}
        return data


class LogRequest(Part):
    """The body of the log endpoint (interface, section 2.5)."""

    split: Annotated[str, Field(max_length=LONGEST_NAME)]
    trajectory_groups: list[TrajectoryGroup]

    @field_validator("split")
    @classmethod
    def _is_named(cls, value: str) -> str:
        if not value.strip():
            raise PydanticCustomError("value_error", "split must not be empty")
        return value

    @field_validator("trajectory_groups")
    @classmethod
    def _has_few_metrics(cls, groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
        names = {name for group in groups for one in group.trajectories for name in one.metrics}
        if len(names) + len({name for group in groups for name in group.metrics}) > MOST_METRICS:
            raise PydanticCustomError("value_error", f"a log can have at most {MOST_METRICS} different metrics")
        return groups


def log_metrics(split: str, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Figures named `<split>/<metric>`.

    `reward` and every trajectory metric are means over trajectories, `group_<metric>` over the groups that have some,
    `exception_rate` is the share of rollouts that failed, `reward_std_dev` the mean over groups of two or more of the
    population deviation.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        for name, value in group.metrics.items() if group.trajectories else ():
            values[f"group_{name}"].append(float(value))
        for trajectory in group.trajectories:
            for name, value in trajectory.metrics.items():
                values[name].append(float(value))
    failed = sum(len(group.exceptions) for group in groups)
    rewards = [[trajectory.reward for trajectory in group.trajectories] for group in groups]
    every = [reward for members in rewards for reward in members]
    if every:
        values["reward"] = every
    if failed or every:
        values["exception_rate"] = [failed / (failed + len(every))]
    deviations = []
    for members in rewards:
        mean = _mean(members)
        if len(members) > 1:
            deviations.append(math.sqrt(_mean((value - mean) * (value - mean) for value in members)))
    values["reward_std_dev"] = [_mean(deviations)]
    means = {f"{split}/{name}": _mean(items) for name, items in values.items()}
    return {name: mean for name, mean in means.items() if math.isfinite(mean)}


def _mean(values: Iterable[float]) -> float:
    """0 for none."""
    items = list(values)
    return mean(items) if items else 0.0


FIELD = "training_data_url"
Row = TypeVar("Row")
_MOST_NAMED = 5


class ChatRow(Part):
    """One conversation to learn from."""

    messages: Annotated[list[Item], Field(min_length=1)]
    tools: list[Tool] | None = None


class PairRow(Part):
    """Two answers to the same messages; the better one is `chosen`."""

    prompt: list[Item] = Field(default_factory=list)
    """Messages before both."""
    chosen: Annotated[list[Item], Field(min_length=1)]
    rejected: Annotated[list[Item], Field(min_length=1)]
    tools: list[Tool] | None = None

    @model_validator(mode="after")
    def _differs_in_the_answer(self) -> "PairRow":
        if self.chosen[:-1] != self.rejected[:-1]:
            raise PydanticCustomError("value_error", "chosen and rejected may differ only in the last message")
        for name, chat in (("chosen", self.chosen), ("rejected", self.rejected)):
            if chat[-1].get("role") != "assistant":
                raise PydanticCustomError("value_error", "{name} must end with an assistant message", {"name": name})
        self.chosen, self.rejected = self.prompt + self.chosen, self.prompt + self.rejected
        return self


_CHAT_ROWS: TypeAdapter[list[ChatRow]] = TypeAdapter(list[ChatRow], config=LAZY)
_PAIR_ROWS: TypeAdapter[list[PairRow]] = TypeAdapter(list[PairRow], config=LAZY)


def check_pairs(rows: Sequence[Json]) -> list[Json]:
    """The rows as the job keeps them (whole chats and tools); raises InvalidRequest naming the first that are wrong."""
    return [row.model_dump(exclude_none=True, exclude={"prompt"}) for row in _check(rows, _PAIR_ROWS)]


def check_rows(rows: Sequence[Json]) -> list[Json]:
    """The rows as the job keeps them (messages and tools); raises InvalidRequest naming the first that are wrong."""
    found = _check(rows, _CHAT_ROWS)
    if not any(item.get("role") == "assistant" for row in found for item in row.messages):
        raise InvalidRequest(f"{FIELD}: no row has an assistant message; nothing to train on", param=FIELD)
    return [row.model_dump(exclude_none=True) for row in found]


def _check(rows: Sequence[Json], kind: TypeAdapter[list[Row]]) -> list[Row]:
    if not rows:
        raise InvalidRequest(f"{FIELD}: the file has no rows; nothing to train on", param=FIELD)
    try:
        return kind.validate_python(list(rows))
    except ValidationError as error:
        texts = []
        for item in error.errors(include_url=False, include_context=False, include_input=False)[:_MOST_NAMED]:
            row, *place = item["loc"]
            texts.append(": ".join([f"row {row}", *([".".join(map(str, place))] if place else []), item["msg"]]))
        raise InvalidRequest(f"{FIELD}: {'; '.join(texts)}", param=FIELD) from None
