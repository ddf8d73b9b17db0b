"""Stored objects as an evaluation reads them, with one caller's rights: datasets, prompts, models."""

import re
import string
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

import orjson

from heddle.auth import Caller
from heddle.errors import Forbidden, InvalidRequest, NotFound
from heddle.store.base import Store
from heddle.text_cache import cache_texts
from heddle.wire import jsontext, refs
from heddle.wire.batched import batched
from heddle.wire.jsontypes import Json, is_index
from heddle.wire.records import Call, Records
from heddle.wire.training import Sampling

Message = Json
"""A chat message."""
ChatRequest = Json
"""The inputs of a completion, as /completions/create takes them."""
ChatAnswer = Json
"""A `chat.completion`."""
CLASS_NAME = "LLMStructuredCompletionModel"
DEEPEST_ANSWER = jsontext.MAX_DEPTH - 20
"""Levels of JSON in an answer: it is stored inside the bodies of calls, which have a depth of their own."""
_PROMPTS = ("prompt", "input", "question")
_PASSED_ON = ("temperature", "top_p", "max_tokens", "presence_penalty", "frequency_penalty", "stop", "functions")
_KNOWN = frozenset((*_PASSED_ON, "messages_template", "prompt", "n_times", "response_format"))
_FORMATS = ("text", "json_object")
PAGE = 200
CALLS_AT_ONCE = 500
_PLACE = re.compile(r"(\w+)((?:\[[^\[\]]+\])*)")
_LAYOUT = re.compile(r"(?:.?[<>=^])?[-+ ]?z?#?0?\d{0,3}[,_]?(?:\.\d{1,2})?[bcdeEfFgGnosxX%]?", re.DOTALL)
_CONVERSIONS: Mapping[str, Callable[[Any], str]] = {"r": repr, "s": str, "a": ascii}
_KEPT = ("role", "type")
_QUOTED = 100
LONGEST_TEXT = 8_000_000
"""Characters that all places of a template may come to."""

Part = tuple[str, str | None, tuple[str, ...], str, str | None]
"""Text before a place; the place's name (None: no place), keys, layout, conversion."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that was read."""

    target: refs.Ref
    """Its version is a digest."""
    value: Json

    @property
    def ref(self) -> str:
        """Internal."""
        return refs.object_ref(self.target.project, "object", self.target.name, self.target.version)

    @property
    def class_name(self) -> str:
        """As the SDKs name it; empty for a plain object."""
        return str(self.value.get("_class_name") or self.value.get("_type") or "")

    def is_a(self, class_name: str) -> bool:
        """True for an object of this very class: what a derived one does is in its code, which is not run."""
        return class_name in (self.value.get("_class_name"), self.value.get("_type"))


class ObjectReader:
    """Reads objects with one caller's rights."""

    def __init__(self, store: Store, caller: Caller) -> None:
        self.store = store
        self._caller = caller

    async def read(self, ref: str, what: str) -> StoredObject:
        """The object behind a ref in either form; `what` names it in texts. Raises HeddleError."""
        target = self.target(ref, what)
        if target.kind != "object" or target.edges:
            raise InvalidRequest(f"{what} {external_text(ref)!r} is not a ref of an object")
        found = await self.store.objects.read(target.project, target.name, target.version)
        if found is None or found.deleted_at is not None:
            raise NotFound(f"{what} {external_text(ref)} was not found")
        value = orjson.loads(found.val or "null")
        if not isinstance(value, dict):
            raise InvalidRequest(f"{what} {target.name} is not an object")
        return StoredObject(refs.Ref(target.project, target.kind, target.name, found.digest), value)

    def target(self, ref: str, what: str) -> refs.Ref:
        """The parts of a ref in either form; raises InvalidRequest for none, Forbidden beyond the caller's reach."""
        target = refs.parse(refs.to_internal(ref) if ref.startswith(refs.EXTERNAL) else ref)
        project = refs.external_project(target.project)
        if project is None:
            raise InvalidRequest(f"{what} {external_text(ref)!r} is not a ref of an object")
        if not self._caller.may_read(project):
            raise Forbidden(
                f"The key of user '{self._caller.user}' does not have permission to read objects of '{project}'"
            )
        return target

    async def followed(self, value: Any, what: str) -> Any:
        """The object that a value refers to, or the value itself."""
        return (await self.read(value, what)).value if is_ref(value) else value


async def find_calls(
    records: Records, caller: Caller, project_id: str, call_ids: Iterable[str], columns: list[str], **more: Any
) -> dict[str, Call]:
    """Those of some calls that are there, by id; `more` has further fields of /calls/stream_query."""
    found: dict[str, Call] = {}
    for part in batched(dict.fromkeys(call_ids), CALLS_AT_ONCE):
        slices = records.read_calls(caller, project_id, filter={"call_ids": list(part)}, columns=columns, **more)
        found |= {call.id: call async for calls in slices for call in calls}
    return found


def is_ref(value: Any) -> TypeGuard[str]:
    """True for a text that begins as a ref does, in either form."""
    return isinstance(value, str) and value.startswith((refs.INTERNAL, refs.EXTERNAL))


def external_text(ref: str) -> str:
    """The ref as people write it."""
    return (refs.to_external(ref) if ref.startswith(refs.INTERNAL) else ref)[:300]


@dataclass(frozen=True, slots=True)
class Row:
    """One row."""

    place: int
    example: Any
    """Its internal ref, or the row itself where it is stored inside the evaluation."""
    value: Json


class Dataset:
    """Rows of a stored table, or rows that are stored inside an object."""

    def __init__(self, reader: ObjectReader, name: str, count: int, table: refs.Ref | None, ref: str, rows: Any):
        self._reader = reader
        self._name = name
        self.count = count
        self._table, self._ref, self._rows = table, ref, rows

    async def rows(self) -> AsyncIterator[Row]:
        """Every row in order; raises InvalidRequest for one that is no object, and for rows that are gone meanwhile."""
        if self._table is None:
            for place, value in enumerate(self._rows):
                yield self._row(place, value, value)
            return
        for start in range(0, self.count, PAGE):
            found = await self._reader.store.tables.query(
                self._table.project, self._table.name, limit=PAGE, offset=start
            )
            if len(found) < min(PAGE, self.count - start):
                raise InvalidRequest(f"Rows of the dataset of {self._name} were removed while they were being read")
            for place, row in enumerate(found, start):
                value = orjson.loads(row.val)
                yield self._row(place, f"{self._ref}{refs.ROWS}{row.digest}" if self._ref else value, value)

    def _row(self, place: int, example: Any, value: Any) -> Row:
        if not isinstance(value, dict):
            raise InvalidRequest(f"Row {place} of the dataset of {self._name} is not an object")
        return Row(place, example, value)


async def read_dataset(reader: ObjectReader, dataset: Any, name: str) -> Dataset:
    """The dataset of the evaluation `name`: a ref, or its value; raises HeddleError when it cannot be read."""
    ref, value = "", dataset
    if is_ref(dataset) and reader.target(dataset, "The dataset").kind == "object":
        found = await reader.read(dataset, "The dataset")
        ref, value = found.ref, found.value
    listed = value.get("rows") if isinstance(value, dict) else value
    if is_ref(listed):
        target = reader.target(listed, "The dataset")
        if target.kind != "table":
            raise InvalidRequest("The rows of the dataset are not a table")
        count = await reader.store.tables.count(target.project, target.name)
        found_rows = Dataset(reader, name, count or 0, target, ref, None)
    else:
        rows = listed if isinstance(listed, list) else []
        found_rows = Dataset(reader, name, len(rows), None, "", rows)
    if not found_rows.count:
        raise InvalidRequest(f"The dataset of the evaluation {name} has no rows")
    return found_rows


@cache_texts(64, longest=10_000)
def parse_template(template: str) -> tuple[Part, ...]:
    """The parts of a template; raises ValueError for a place that is more than it may be."""
    made: list[Part] = []
    for text, place, layout, conversion in string.Formatter().parse(template):
        if place is None:
            made.append((text, None, (), "", None))
            continue
        found = _PLACE.fullmatch(place)
        if found is None:
            raise ValueError(f"{{{place[:_QUOTED]}}} is not a column name")
        if layout and _LAYOUT.fullmatch(layout) is None:
            raise ValueError(f"{{{place[:_QUOTED]}}} has an unsupported format: {layout[:_QUOTED]!r}")
        if conversion and conversion not in _CONVERSIONS:
            raise ValueError(f"{{{place[:_QUOTED]}}} has an unknown conversion {conversion[:_QUOTED]!r}")
        keys = tuple(re.findall(r"\[([^\[\]]+)\]", found[2]))
        made.append((text, found[1], keys, layout or "", conversion or None))
    return tuple(made)


def template_names(template: Any) -> set[str]:
    """The names that the texts of a template use; raises ValueError for a place that is more than it may be."""
    if isinstance(template, str):
        return {name for _, name, *_ in parse_template(template) if name is not None}
    if isinstance(template, Mapping):
        return {name for key, item in template.items() if key not in _KEPT for name in template_names(item)}
    if isinstance(template, Sequence):
        return {name for item in template for name in template_names(item)}
    return set()


def fill_template(template: Any, values: Mapping[str, Any]) -> Any:
    """The template with every text in it filled; roles and types stay. Raises InvalidRequest for what is not there."""
    left = LONGEST_TEXT

    def fill(part: Any) -> Any:
        if isinstance(part, str):
            return fill_text(part)
        if isinstance(part, Mapping):
            return {key: item if key in _KEPT else fill(item) for key, item in part.items()}
        return [fill(item) for item in part] if isinstance(part, list) else part

    def fill_text(text: str) -> str:
        nonlocal left
        try:
            parts = parse_template(text)
        except ValueError as error:
            raise InvalidRequest(f"The template cannot be rendered: {error}") from None
        made = []
        for before, name, keys, layout, conversion in parts:
            made.append(before)
            if name is not None:
                made.append(_format_value(_follow_keys(values, (name, *keys)), layout, conversion))
                left -= len(made[-1])
            # Many places, each with all of a large row, are more than memory has.
            if left < 0:
                raise InvalidRequest(f"The rendered template exceeds {LONGEST_TEXT} characters")
        return "".join(made)

    return fill(template)


def _follow_keys(value: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and is_index(key) and int(key) < len(value):
            value = value[int(key)]
        else:
            raise InvalidRequest(f"The template uses [{key[:_QUOTED]}], which is missing in the row")
    return value


def _format_value(value: Any, layout: str, conversion: str | None) -> str:
    value = _CONVERSIONS[conversion](value) if conversion else value
    if not layout:
        return value if isinstance(value, str) else str(value)
    plain = value if isinstance(value, str | int | float) else str(value)
    try:
        return format(plain, layout)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(
            f"The format {layout[:_QUOTED]!r} in the template does not match its value: {error}"
        ) from None


@dataclass(frozen=True, slots=True)
class Model(ABC):
    """Answers rows."""

    op_name: ClassVar[str]
    """The name of the op that a prediction is, as the SDKs have it."""
    ref: str
    """What calls show as the model: its internal ref, or the name of a chat model."""

    @abstractmethod
    def inputs(self, row: Json, trial: int) -> ChatRequest:
        """The completion that answers a row; raises InvalidRequest when the row asks for none."""

    @abstractmethod
    def output(self, answer: ChatAnswer, row: Json) -> Any:
        """What an answer says; raises InvalidRequest when it says nothing that can be used."""


@dataclass(frozen=True, slots=True)
class ChatModel(Model):
    """A model by the name under which it is served; rows are chats or prompts."""

    op_name = "Model.predict"
    sampling: Sampling | None = None
    """None leaves it to the model, and answers are drawn anew in each run."""

    def inputs(self, row: Json, trial: int) -> ChatRequest:
        """The chat of a row, its tools, and the trial as the seed."""
        messages = read_chat(row)
        if messages is None:
            raise InvalidRequest(
                f"The row has no prompt: it needs `messages` (a list of chat messages), or a string in one of "
                f"{', '.join(_PROMPTS)}"
            )
        tools = row.get("tools")
        if tools is not None and not isinstance(tools, list):
            raise InvalidRequest("The row's tools must be a list")
        made: ChatRequest = {"model": self.ref, "messages": messages, "seed": trial}
        if self.sampling is not None:
            made["temperature"] = self.sampling.temperature
            if self.sampling.max_tokens is not None:
                made["max_tokens"] = self.sampling.max_tokens
        return {**made, "tools": tools} if tools else made

    def output(self, answer: ChatAnswer, _row: Json) -> str:
        """The text of the answer, empty where it has none."""
        return str(_read_content(answer) or "")


def read_chat(row: Mapping[str, Any]) -> list[Message] | None:
    """What a row asks: its `messages`, or the text of its prompt; None when it asks nothing."""
    messages = row.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(item, dict) and "role" in item for item in messages):
        return messages
    text = next((row[key] for key in _PROMPTS if isinstance(row.get(key), str)), None)
    return None if messages is not None or text is None else [{"role": "user", "content": text}]


@dataclass(frozen=True, slots=True)
class StructuredModel(Model):
    """A stored model that is nothing but settings."""

    op_name = f"{CLASS_NAME}.predict"
    model_id: str
    parameters: Json
    """`default_params`, without what is null."""
    prompt: Sequence[Message] | None
    """The messages of the stored prompt that it names."""

    def inputs(self, row: Json, _trial: int) -> ChatRequest:
        """The template filled from the row, then its `user_input`; `config` of the row overrides the parameters."""
        value = row.get("user_input")
        listed = [] if value is None else value if isinstance(value, list) else [value]
        made = [{"role": "user", "content": item} if isinstance(item, str) else item for item in listed]
        fitting = all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in made)
        user_input = [without_nulls(item) for item in made] if fitting else None
        config = row.get("config")
        if user_input is None or not isinstance(config, dict | None):
            raise InvalidRequest("The row's user_input must be a message, and its config an object")
        messages = self.messages(row)
        if not messages and not user_input:
            user_input = read_chat(row) or []
        return self.request([*messages, *user_input], config)

    def messages(self, values: Mapping[str, Any] | None) -> list[Message]:
        """The messages of its prompt or template, filled with values; with None as they are stored."""
        stored = self.prompt if self.prompt is not None else self.parameters.get("messages_template") or []
        return [
            without_nulls(message) for message in (stored if values is None else fill_template(list(stored), values))
        ]

    def request(self, messages: Sequence[Message], config: Json | None = None) -> ChatRequest:
        """The completion of some messages; raises InvalidRequest for a parameter that there is not."""
        given = {**self.parameters, **without_nulls(config or {})}
        unknown = sorted(given.keys() - _KNOWN)
        if unknown:
            raise InvalidRequest(f"{CLASS_NAME} has no parameter {unknown[0][:100]!r}")
        made = {name: given[name] for name in _PASSED_ON if given.get(name) not in (None, [])}
        if given.get("n_times") is not None:
            made["n"] = given["n_times"]
        return {
            **made,
            "model": self.model_id,
            "messages": list(messages),
            "response_format": {"type": self._format(given)},
        }

    def output(self, answer: ChatAnswer, row: Json) -> Any:
        """A text, or the value of a JSON answer."""
        config = row.get("config")
        return self.read(answer, config if isinstance(config, dict) else None)

    def read(self, answer: ChatAnswer, config: Json | None = None) -> Any:
        """What an answer says in the format that was asked for; raises InvalidRequest."""
        content = _read_content(answer)
        if self._format({**self.parameters, **without_nulls(config or {})}) == "text":
            if content is None:
                raise InvalidRequest("The model did not return text")
            return content
        if not isinstance(content, str) or not content.strip():
            raise InvalidRequest("The model returned an empty answer instead of JSON")
        try:
            value = jsontext.loads_text(content)
        except ValueError:
            raise InvalidRequest(f"The model did not return valid JSON: {content[:200]!r}") from None
        if jsontext.depth(value) > DEEPEST_ANSWER:
            raise InvalidRequest(f"The model's answer is nested deeper than {DEEPEST_ANSWER} levels")
        return value

    @staticmethod
    def _format(parameters: Json) -> str:
        wanted = parameters.get("response_format")
        wanted = wanted.get("type") if isinstance(wanted, dict) else wanted
        if wanted not in _FORMATS:
            raise InvalidRequest(f"The model's response_format must be {' or '.join(_FORMATS)}, got {wanted!r}")
        return str(wanted)


async def read_model(reader: ObjectReader, ref: str) -> Model:
    """The model of an evaluation: a ref, or the name of a chat model; raises HeddleError when it cannot be asked."""
    if not is_ref(ref):
        return ChatModel(ref)
    return await read_structured(reader, await reader.read(ref, "The model"))


async def read_structured(reader: ObjectReader, found: StoredObject) -> StructuredModel:
    """The model that an object describes; raises InvalidRequest for an object of another class."""
    value = found.value
    if value.get("_class_name", value.get("_type")) != CLASS_NAME:
        raise InvalidRequest(
            f"The model {found.target.name} is not an {CLASS_NAME} but {found.class_name or 'a plain value'}"
        )
    model_id, parameters = value.get("llm_model_id"), value.get("default_params") or {}
    if not isinstance(model_id, str) or not isinstance(parameters, dict):
        raise InvalidRequest(
            f"The model {found.target.name} has no llm_model_id, or its default_params is not an object"
        )
    given = without_nulls(parameters)
    prompt = given.pop("prompt", None)
    messages = None if prompt is None else prompt_messages(await reader.followed(prompt, "The prompt of a model"))
    listed = given.get("messages_template")
    is_listed = listed is None or (isinstance(listed, list) and all(isinstance(item, dict) for item in listed))
    if (prompt is not None and messages is None) or not is_listed:
        raise InvalidRequest(f"The model {found.target.name} has a prompt or messages_template without messages")
    for message in messages or listed or ():
        try:
            template_names(message)
        except ValueError as error:
            raise InvalidRequest(f"The template of the model {found.target.name} cannot be rendered: {error}") from None
    return StructuredModel(found.ref, model_id, given, messages)


def prompt_messages(prompt: Any) -> list[Message] | None:
    """The messages of a stored prompt (a MessagesPrompt, a StringPrompt) or of a text; None for anything else."""
    if isinstance(prompt, dict) and isinstance(prompt.get("content"), str) and "messages" not in prompt:
        prompt = prompt["content"]
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    listed = prompt.get("messages") if isinstance(prompt, dict) else None
    messages = [without_nulls(item) for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    fitting = all(
        isinstance(item.get("role"), str) and isinstance(item.get("content"), str | list) for item in messages
    )
    return messages if messages and fitting else None


def without_nulls(value: Mapping[str, Any]) -> Json:
    """An object without the SDK's own keys and without nulls."""
    return {key: item for key, item in value.items() if not key.startswith("_") and item is not None}


def _read_content(answer: ChatAnswer) -> Any:
    """The content of the first choice; raises InvalidRequest for an answer without one."""
    choices = answer.get("choices")
    message = choices[0].get("message") if isinstance(choices, list) and choices and isinstance(choices[0], dict) else 0
    if not isinstance(message, dict):
        raise InvalidRequest("The answer has no message")
    return message.get("content")
