"""Models that an evaluation asks: a chat model by its name, or a stored LLMStructuredCompletionModel.

Both give the inputs of a completion (as /completions/create takes them) and read its answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from heddle.errors import HeddleError, InvalidRequest
from heddle.evals import template
from heddle.evals.objects import Found, ObjectReader, is_ref
from heddle.wire import jsontext
from heddle.wire.evaluations import Sampling
from heddle.wire.jsontypes import Json

CLASS_NAME = "LLMStructuredCompletionModel"
DEEPEST_ANSWER = jsontext.MAX_DEPTH - 20
"""Levels of JSON in an answer: it is stored inside the bodies of calls, which have a depth of their own."""
_PROMPTS = ("prompt", "input", "question")
_PASSED_ON = ("temperature", "top_p", "max_tokens", "presence_penalty", "frequency_penalty", "stop", "functions")
_KNOWN = frozenset((*_PASSED_ON, "messages_template", "prompt", "n_times", "response_format"))
_FORMATS = ("text", "json_object")


class Model(Protocol):
    """Answers rows."""

    @property
    def ref(self) -> str:
        """What calls show as the model: its internal ref, or the name of a chat model."""
        ...

    @property
    def op_name(self) -> str:
        """The name of the op that a prediction is."""
        ...

    def inputs(self, row: Json, trial: int) -> Json:
        """The completion that answers a row; raises InvalidRequest when the row asks for none."""
        ...

    def output(self, answer: Json, row: Json) -> Any:
        """What a `chat.completion` says; raises InvalidRequest when it says nothing that can be used."""
        ...


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A model by the name under which it is served; rows are chats or prompts."""

    name: str
    sampling: Sampling | None = None
    """None leaves it to the model, and answers are drawn anew in each run."""

    @property
    def ref(self) -> str:
        """The name."""
        return self.name

    @property
    def op_name(self) -> str:
        """As the SDKs name a model without a class."""
        return "Model.predict"

    def inputs(self, row: Json, trial: int) -> Json:
        """The chat of a row, its tools, and the trial as the seed."""
        messages = chat_of(row)
        if messages is None:
            raise InvalidRequest(
                f"The row gives no prompt: it needs `messages` (a list of chat messages), or a text in one of "
                f"{', '.join(_PROMPTS)}"
            )
        tools = row.get("tools")
        if tools is not None and not isinstance(tools, list):
            raise InvalidRequest("The row's tools is no list")
        made: Json = {"model": self.name, "messages": messages, "seed": trial}
        if self.sampling is not None:
            made["temperature"] = self.sampling.temperature
            if self.sampling.max_tokens is not None:
                made["max_tokens"] = self.sampling.max_tokens
        return {**made, "tools": tools} if tools else made

    def output(self, answer: Json, _row: Json) -> str:
        """The text of the answer, empty where it has none."""
        return str(content_of(answer) or "")


def chat_of(row: Mapping[str, Any]) -> list[Json] | None:
    """What a row asks: its `messages`, or the text of its prompt; None when it asks nothing."""
    messages = row.get("messages")
    if isinstance(messages, list) and messages and all(isinstance(item, dict) and "role" in item for item in messages):
        return messages
    text = next((row[key] for key in _PROMPTS if isinstance(row.get(key), str)), None)
    return None if messages is not None or text is None else [{"role": "user", "content": text}]


@dataclass(frozen=True, slots=True)
class StructuredModel:
    """A stored model that is nothing but settings."""

    ref: str
    model_id: str
    parameters: Json
    """`default_params`, without what is null."""
    prompt: Sequence[Json] | None
    """The messages of the stored prompt that it names."""

    @property
    def op_name(self) -> str:
        """As the SDK names it."""
        return f"{CLASS_NAME}.predict"

    def inputs(self, row: Json, _trial: int) -> Json:
        """The template filled from the row, then its `user_input`; `config` of the row overrides the parameters."""
        user_input = messages_of(row.get("user_input"))
        config = row.get("config")
        if user_input is None or not isinstance(config, dict | None):
            raise InvalidRequest("The row's user_input is no message, or its config is no object")
        messages = self.messages(row)
        if not messages and not user_input:
            user_input = chat_of(row) or []
        return self.request([*messages, *user_input], config)

    def messages(self, values: Mapping[str, Any] | None) -> list[Json]:
        """The messages of its prompt or template, filled with values; with None as they are stored."""
        stored = self.prompt if self.prompt is not None else self.parameters.get("messages_template") or []
        return [plain(message) for message in (stored if values is None else template.filled(list(stored), values))]

    def request(self, messages: Sequence[Json], config: Json | None = None) -> Json:
        """The completion of some messages; raises InvalidRequest for a parameter that there is not."""
        given = {**self.parameters, **plain(config or {})}
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

    def output(self, answer: Json, row: Json) -> Any:
        """A text, or the value of a JSON answer."""
        config = row.get("config")
        return self.read(answer, config if isinstance(config, dict) else None)

    def read(self, answer: Json, config: Json | None = None) -> Any:
        """What an answer says in the format that was asked for; raises InvalidRequest."""
        content = content_of(answer)
        if self._format({**self.parameters, **plain(config or {})}) == "text":
            if content is None:
                raise InvalidRequest("The model answered no text")
            return content
        if not isinstance(content, str) or not content.strip():
            raise InvalidRequest("The model answered nothing where JSON was asked for")
        try:
            value = jsontext.loads(jsontext.clean_text(content).encode())
        except HeddleError:
            raise InvalidRequest(f"The model answered no JSON: {content[:200]!r}") from None
        if jsontext.depth(value) > DEEPEST_ANSWER:
            raise InvalidRequest(f"The model's answer is nested deeper than {DEEPEST_ANSWER} levels")
        return value

    @staticmethod
    def _format(parameters: Json) -> str:
        wanted = parameters.get("response_format")
        wanted = wanted.get("type") if isinstance(wanted, dict) else wanted
        if wanted not in _FORMATS:
            raise InvalidRequest(f"The model's response_format is {wanted!r}; {' and '.join(_FORMATS)} are possible")
        return str(wanted)


async def read_model(reader: ObjectReader, ref: str) -> Model:
    """The model of an evaluation: a ref, or the name of a chat model; raises HeddleError when it cannot be asked."""
    if not is_ref(ref):
        return ChatModel(ref)
    return await structured(reader, await reader.read(ref, "The model"))


async def structured(reader: ObjectReader, found: Found) -> StructuredModel:
    """The model that an object describes; raises InvalidRequest for an object of another class."""
    value = found.value
    if value.get("_class_name", value.get("_type")) != CLASS_NAME:
        raise InvalidRequest(f"The model {found.target.name} is no {CLASS_NAME} but {found.class_name or 'a value'}")
    model_id, parameters = value.get("llm_model_id"), value.get("default_params") or {}
    if not isinstance(model_id, str) or not isinstance(parameters, dict):
        raise InvalidRequest(f"The model {found.target.name} has no llm_model_id, or its default_params are no object")
    given = plain(parameters)
    prompt = given.pop("prompt", None)
    messages = None if prompt is None else prompt_messages(await reader.followed(prompt, "The prompt of a model"))
    listed = given.get("messages_template")
    is_listed = listed is None or (isinstance(listed, list) and all(isinstance(item, dict) for item in listed))
    if (prompt is not None and messages is None) or not is_listed:
        raise InvalidRequest(f"The model {found.target.name} has a prompt or messages_template without messages")
    for message in messages or listed or ():
        try:
            template.names(message)
        except ValueError as error:
            raise InvalidRequest(
                f"The template of the model {found.target.name} cannot be filled in: {error}"
            ) from None
    return StructuredModel(found.ref, model_id, given, messages)


def prompt_messages(prompt: Any) -> list[Json] | None:
    """The messages of a stored prompt (a MessagesPrompt, a StringPrompt) or of a text; None for anything else."""
    if isinstance(prompt, dict) and isinstance(prompt.get("content"), str) and "messages" not in prompt:
        prompt = prompt["content"]
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    listed = prompt.get("messages") if isinstance(prompt, dict) else None
    messages = [plain(item) for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    fitting = all(
        isinstance(item.get("role"), str) and isinstance(item.get("content"), str | list) for item in messages
    )
    return messages if messages and fitting else None


def messages_of(value: Any) -> list[Json] | None:
    """A user's input as messages: a text, a message, a list of either; None when it is none of these."""
    listed = [] if value is None else value if isinstance(value, list) else [value]
    made = [{"role": "user", "content": item} if isinstance(item, str) else item for item in listed]
    fitting = all(isinstance(item, dict) and isinstance(item.get("role"), str) for item in made)
    return [plain(item) for item in made] if fitting else None


def plain(value: Mapping[str, Any]) -> Json:
    """An object without the SDK's own keys and without nulls."""
    return {key: item for key, item in value.items() if not key.startswith("_") and item is not None}


def content_of(answer: Json) -> Any:
    """The content of the first choice; raises InvalidRequest for an answer without one."""
    choices = answer.get("choices")
    message = choices[0].get("message") if isinstance(choices, list) and choices and isinstance(choices[0], dict) else 0
    if not isinstance(message, dict):
        raise InvalidRequest("The answer has no message")
    return message.get("content")
