"""The conversation that a call holds: read out of its inputs and its output, or out of its span, in one form.

Parts of a conversation are those of `parts` and, for pictures, sounds and files, `uri`, `blob` and `file` with a
`modality`; the `response` of a tool is a list of parts; whatever else a message holds is a part of type `data`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from heddle.wire import refs
from heddle.wire.conversation.messages import (
    KNOWN_ROLES,
    SYSTEM,
    flatten_batches,
    is_end,
    is_event,
    is_message,
    join_messages,
    message,
    messages_of,
    read_choices,
    read_request,
    read_result,
    system_of,
    text_message,
    unwrap,
)
from heddle.wire.conversation.parts import (
    arguments_of,
    as_list,
    as_object,
    as_text,
    blocks_of,
    first_of,
    is_block,
    media,
    objects,
    parse_json,
    parts_of,
    text_part,
    transcript,
)
from heddle.wire.jsontypes import Json
from heddle.wire.spans import AgentSpan

_OUTER = ("", "kwargs", "arg0", "body", "request", "params")
"""Where SDKs put a request inside the inputs of its call; empty: it is the inputs."""
_WRAPPED_INPUTS = ("input.value", "mlflow.spanInputs", "traceloop.entity.input", "pydantic_ai.all_messages")
_INPUTS = (
    *("messages", "gen_ai.input.messages", "gen_ai.prompt", "llm.input_messages", "input_messages"),
    *("contents", "new_message", "ai.prompt", "ai.prompt.messages", *_WRAPPED_INPUTS),
    *("chat_history", "input", "prompt", "prompts"),
)
_WRAPPED_OUTPUT = (
    *("gen_ai.output.messages", "gen_ai.completion", "llm.output_messages", "output_messages", "ai.response"),
    *("output.value", "mlflow.spanOutputs", "traceloop.entity.output"),
)
_RESULT = "final_result"
"""The output of an agent of pydantic-ai, whose messages end with it."""
_OF_MODELS = ("gen_ai.output.messages", "gen_ai.completion", "llm.output_messages")
_SAID = ("message", "messages", "output", "content", "text")
_BOTH = ("text", "content", "message", "utterance", "body")
_ASKED = ("message", "user_message", "question", "query", "prompt", "input", "user_input", "request", *_BOTH)
_ANSWERED = ("reply", "answer", "response", "output", "result", "completion", "final_answer", *_BOTH)
_TALKS = frozenset(("chat", "text_completion", "generate_content"))
_MAX_LEVELS = 4


@dataclass(slots=True)
class Choice:
    """One of the alternatives that a model answered."""

    messages: list[Json]
    finish_reason: str = ""
    logprobs: list[Any] | None = None


@dataclass(slots=True)
class Conversation:
    """What was said, what was answered, and which tools were offered (in the form of chat completions).

    Without `is_chat` the call went to no model: inputs and output stand in the place of messages.
    """

    messages: list[Json] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    tools: list[Json] = field(default_factory=list)
    is_chat: bool = False

    @property
    def instructs_only(self) -> bool:
        """True where nothing was said but instructions."""
        return not self.choices and all(one["role"] == "system" for one in self.messages)


def of_call(
    inputs: Any, output: Any, attributes: Any = None, is_model: bool = False, is_tool: bool = False
) -> Conversation:
    """The conversation of any call; `is_model` says that it surely went to a model, `is_tool` to a tool."""
    inputs = inputs if isinstance(inputs, dict) else {}
    attributes = attributes if isinstance(attributes, dict) else {}
    if is_tool or _is_embedding(output) or _is_end(output):
        return _of_values(inputs, output)
    said, is_certain = _messages(inputs, attributes, _MAX_LEVELS)
    choices = _choices(output, bool(said))
    answered = is_answer(output) and not _are_of_tools(choices)
    is_chat = bool(said or choices) if is_certain else bool(said) and (is_model or answered)
    if not is_chat and not (choices and answered):
        return _of_values(inputs, output)
    found = _shown(said, choices, _tools(inputs, attributes))
    found.messages = found.messages or _of_values(inputs, None).messages
    return found if found.messages or found.choices or answered else _of_values(inputs, output)


def of_span(span: AgentSpan, is_agent: bool) -> Conversation | None:
    """The conversation of a span with its messages; None for one of no model and, unless `is_agent`, of no agent."""
    is_told = span.operation_name in _TALKS or (is_agent and span.operation_name == "invoke_agent")
    if not is_told:
        return None
    said = list(span.input_messages)
    if not any(one.get("role") == "system" for one in said):
        said = [text_message("system", text) for text in span.system_instructions] + said
    alternatives = [[one] for one in span.output_messages]
    if (span.request_choice_count or 1) != len(alternatives):
        alternatives = [span.output_messages] if span.output_messages else []
    choices = [_choice(messages) for messages in alternatives]
    for choice, reason in zip(choices, span.finish_reasons, strict=False):
        choice.finish_reason = choice.finish_reason or reason
    found = _shown(said, choices, _normalise_tools(as_list(span.tool_definitions)))
    return found if found.messages or found.choices else None


def of_value(value: Any) -> Conversation | None:
    """The conversation that messages, an answer or blocks of any library are; None for any other value."""
    value = parse_json(value)
    if is_answer(value):
        found = _shown([], _choices(value, False), [])
        told = [one["role"] for one in (*found.messages, *(said for one in found.choices for said in one.messages))]
        return None if KNOWN_ROLES.isdisjoint(told) else found
    blocks = value if isinstance(value, list) else [value]
    if not all(isinstance(block, dict) and (is_block(block) or media(block)) for block in blocks):
        return None
    parts = list(_shown_parts(parts_of(blocks)))
    is_known = bool(parts) and all(part["type"] != "data" for part in parts)
    return Conversation([{"role": "", "parts": parts}]) if is_known else None


def answer_of(output: Any) -> Choice | None:
    """The first alternative of what a model answered; None for an output that holds no answer."""
    return next(iter(_shown([], _choices(output, False), []).choices), None)


def is_answer(output: Any, levels: int = _MAX_LEVELS) -> bool:
    """True for an output that only a model can have given."""
    output = flatten_batches(parse_json(output))
    if isinstance(output, list):
        return bool(output) and all(is_message(item) for item in output)
    if not isinstance(output, dict):
        return False
    wrapped = parse_json(first_of(output, _WRAPPED_OUTPUT))
    if wrapped is not None:
        is_told = first_of(output, _OF_MODELS) is not None and isinstance(wrapped, (str, list))
        is_told = is_told and (isinstance(wrapped, str) or bool(objects(wrapped)))
        return is_told or (levels > 0 and is_answer(_numbered(wrapped), levels - 1))
    for name, keys in (("choices", ("message", "text", "delta")), ("candidates", ("content",))):
        if any(key in item for item in objects(output.get(name)) for key in keys):
            return True
    if is_event(output):
        return True
    if objects(flatten_batches(output.get("generations"))) or is_message(output) or read_result(output) is not None:
        return True
    for name in ("output", "messages"):
        if isinstance(output.get(name), list) and any(is_message(item) for item in output[name]):
            return True
    inner = (output.get(name) for name in ("outputs", "output", "update"))
    return levels > 0 and any(is_answer(one, levels - 1) for one in inner if isinstance(one, (dict, list)))


def _is_embedding(output: Any) -> bool:
    """True for vectors of texts, which nobody said."""
    made = objects(as_object(output).get("data"))
    return bool(made) and all(one.get("object") == "embedding" for one in made)


def _is_end(output: Any) -> bool:
    """True for the answer of a conditional edge that ends a graph."""
    value = parse_json(output)
    wrapped = first_of(value, _WRAPPED_OUTPUT) if isinstance(value, dict) else None
    return is_end(value if wrapped is None else wrapped)


def _are_of_tools(choices: list[Choice]) -> bool:
    """True for an output that only tools have written."""
    said = [one["role"] for choice in choices for one in choice.messages]
    return bool(said) and set(said) == {"tool"}


def _messages(inputs: Json, attributes: Json, levels: int) -> tuple[list[Json], bool]:
    """The messages of inputs, and whether they are certainly some, not just a text that is called `input`."""
    holders = [inputs, *(inputs[name] for name in _OUTER if name and isinstance(inputs.get(name), dict))]
    for holder in holders:
        for key in _INPUTS:
            value = _numbered(parse_json(holder.get(key)))
            if value is None or value in ("", [], {}):
                continue
            found = _messages_at(key, value, attributes, levels)
            if found is not None:
                said, is_certain = found
                return (_system(holder, attributes, said) + said if said else said), is_certain
    return [], False


def _messages_at(key: str, value: Any, attributes: Json, levels: int) -> tuple[list[Json], bool] | None:
    inner = flatten_batches(parse_json(value.get("messages", value) if isinstance(value, dict) else value))
    items = inner if isinstance(inner, list) else [inner]
    if key != "prompts" and any(is_message(item) for item in items):
        said = messages_of(inner, "user")
        return _system(value, {}, said) + said if isinstance(value, dict) and inner is not value else said, True
    if all(isinstance(item, str) for item in items):
        return [text_message("user", item) for item in items], False
    if key == "contents":
        return messages_of(inner, "user"), False
    if isinstance(value, dict) and (value.get("prompt") or value.get("system")):
        return read_request(value), True
    if key in _WRAPPED_INPUTS and isinstance(value, dict) and levels:
        found = _messages(value, attributes, levels - 1)
        return found if found[0] else None
    return None


def _system(holder: Json, attributes: Json, said: Sequence[Json]) -> list[Json]:
    """The instructions beside the messages; none where the messages begin with some."""
    if said and said[0]["role"] == "system":
        return []
    if any(holder.get(name) for name in (*SYSTEM, "config")):
        return system_of(holder)
    given = holder.get("gen_ai.system_instructions")
    # As a text the attribute is the name of a provider.
    of_span = attributes.get("system")
    if given is None and isinstance(of_span, list) and any(name.startswith("gen_ai.") for name in holder):
        given = of_span
    return [message({"role": "system", "content": parse_json(given)})] if given else []


def _numbered(value: Any) -> Any:
    """`{"0": …, "1": …}` as a list; anything else as it is."""
    if isinstance(value, dict) and value and all(key.isascii() and key.isdigit() for key in value):
        return list(value.values())
    return value


def _choices(output: Any, is_chat: bool) -> list[Choice]:
    value = _numbered(parse_json(output))
    wrapped = first_of(value, _WRAPPED_OUTPUT) if isinstance(value, dict) else None
    if wrapped is not None:
        value = _numbered(parse_json(wrapped))
    elif isinstance(value, dict) and value.keys() == {_RESULT}:
        value = parse_json(value[_RESULT])
    if value is None or value in ("", [], {}):
        return []
    if (found := read_choices(value)) is not None:
        logprobs = _logprobs(value, len(found))
        return [_choice(messages, tokens) for messages, tokens in zip(found, logprobs, strict=True)]
    if wrapped is not None and objects(value):
        return [_choice(messages_of(value, "assistant"))]
    if isinstance(value, dict):
        inner = next((one for name in _SAID if (one := parse_json(value.get(name))) not in (None, "", [], {})), None)
        if inner is not None:
            told = messages_of(_numbered(inner), "assistant")
            # An object that follows a schema is no message: it is what was said.
            is_object = isinstance(inner, dict) and is_chat and not any(one["parts"] for one in told)
            return [_choice([text_message("assistant", inner)] if is_object else told)]
    if not is_chat:
        return []
    part = text_part(value) if isinstance(value, str) else {"type": "data", "content": value}
    return [Choice([{"role": "assistant", "parts": [part]}])]


def _choice(messages: list[Json], logprobs: list[Any] | None = None) -> Choice:
    reason = next((one["finish_reason"] for one in reversed(messages) if one.get("finish_reason")), "")
    return Choice(messages, reason, logprobs)


def _logprobs(body: Any, count: int) -> list[list[Any] | None]:
    """The probabilities of the tokens of each alternative of a chat completion."""
    listed = objects(body.get("choices")) if isinstance(body, dict) else []
    found = [as_object(one.get("logprobs")).get("content") for one in listed]
    tokens = [one if isinstance(one, list) and one else None for one in found]
    return tokens if len(tokens) == count else [None] * count


def _of_values(inputs: Json, output: Any) -> Conversation:
    """Inputs and output of a call that went to no model."""
    given = _told({name: value for name, value in inputs.items() if name != "self"}, _ASKED)
    came = _told(output, _ANSWERED)
    return Conversation(
        [{"role": "user", "parts": given}] if given else [],
        [Choice([{"role": "assistant", "parts": came}])] if came else [],
    )


def _told(value: Any, names: tuple[str, ...]) -> list[Json]:
    """A value as parts: the text that a person would look for, then whatever stands beside it as data."""
    if value is None or value == {}:
        return []
    if isinstance(value, dict):
        value = {name: _plain(one) for name, one in value.items()}
    texts = {name: one for name, one in value.items() if _is_prose(one)} if isinstance(value, dict) else {}
    by_name = {name.lower(): name for name in texts}
    chosen = next((by_name[name] for name in names if name in by_name), None)
    if chosen is None and len(texts) == 1 and (len(value) == 1 or " " in next(iter(texts.values())).strip()):
        chosen = next(iter(texts))
    if chosen is not None:
        rest = {name: one for name, one in value.items() if name != chosen}
        return [text_part(value[chosen]), *([{"type": "data", "content": rest}] if rest else [])]
    if isinstance(value, dict) and len(value) == 1 and isinstance(inner := next(iter(value.values())), dict):
        parts = _told(inner, names)
        return parts if parts and parts[0]["type"] == "text" else [{"type": "data", "content": value}]
    return [text_part(value) if isinstance(value, str) else {"type": "data", "content": value}]


def _plain(value: Any) -> Any:
    """A value without what decorators and LangChain put around arguments and results."""
    if isinstance(value, dict) and "lc" in value:
        return unwrap(value).get("content", value)
    return arguments_of(value)


def _is_prose(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and not value.startswith((refs.INTERNAL, "data:"))


def _shown(said: list[Json], choices: list[Choice], tools: list[Json]) -> Conversation:
    messages = _shown_messages(said)
    if not messages and len(choices) == 1:
        # The state that an agent ends with begins with what it was asked.
        said, choices[0].messages = _cut_answer(choices[0].messages)
        messages = _shown_messages(said)
    for choice in choices:
        choice.messages = join_messages(_without_repeated(_shown_messages(choice.messages), messages), _calls_no_tools)
    choices = [choice for choice in choices if choice.messages]
    answers = [choice.messages for choice in choices]
    if len(messages) > 1 and len(answers) == 1 and len(answers[0]) == 1 and _is_same(messages[-1], answers[0][0]):
        # The messages of an agent have its answer already.
        del messages[-1]
    return Conversation(messages, choices, tools, True)


def _is_same(one: Json, other: Json) -> bool:
    return bool(one["role"] == other["role"] and one["parts"] == other["parts"])


def _cut_answer(messages: list[Json]) -> tuple[list[Json], list[Json]]:
    """Messages up to the last of a user, and those behind it."""
    last = next((at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] in ("system", "user")), -1)
    return messages[: last + 1], messages[last + 1 :]


def _calls_no_tools(one: Json) -> bool:
    """True for thoughts and text, which some libraries write as items of their own, before the calls of an answer."""
    return all(part["type"] != "tool_call" for part in one["parts"])


def _without_repeated(answered: list[Json], said: list[Json]) -> list[Json]:
    """An agent's output often repeats its whole state: what was said before is not said again."""
    first = [one for one in said if one["role"] != "system"]
    pairs = zip(first, answered, strict=False)
    is_same = all(_is_same(one, other) for one, other in pairs)
    repeats = bool(first) and len(answered) > len(first) and is_same
    return answered[len(first) :] if repeats else answered


def _shown_messages(messages: Iterable[Json]) -> list[Json]:
    """Messages with parts of known types; those that say nothing are left out."""
    found = [
        {**one, "parts": list(_shown_parts(one["parts"]))} for one in messages if isinstance(one.get("parts"), list)
    ]
    return [one for one in found if one["parts"]]


def _shown_parts(parts: Iterable[Any]) -> Iterator[Json]:
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "reasoning", "refusal"):
            if content := as_text(part.get("content", "")):
                yield {**part, "content": content}
        elif kind == "tool_call":
            yield part
        elif kind == "tool_call_response":
            yield {**part, "response": list(_response(part.get("response")))}
        elif (found := media(part) if isinstance(part, dict) else None) is not None:
            if found["type"] != "file" or found.get("name") or found.get("files"):
                yield found
            if said := transcript(part):
                yield text_part(said)
        elif kind == "data" and set(part) == {"type", "content"}:
            yield part
        else:
            yield {"type": "data", "content": part}


def _response(value: Any) -> Iterator[Json]:
    """What a tool answered as parts."""
    if value is None or value == "":
        return
    blocks = blocks_of(value)
    listed = blocks if isinstance(blocks, list) else [blocks]
    if listed and all(isinstance(block, dict) and is_block(block) for block in listed):
        yield from _shown_parts(parts_of(listed))
    elif isinstance(value, dict) and media(value) is not None:
        yield from _shown_parts([value])
    else:
        yield text_part(value) if isinstance(value, str) else {"type": "data", "content": value}


def _tools(inputs: Json, attributes: Json) -> list[Json]:
    """The tools that the model was offered."""
    holders = [inputs, *(inputs[name] for name in (*_OUTER[1:], "config") if isinstance(inputs.get(name), dict))]
    wrapped = (as_object(inputs.get(name)) for name in _WRAPPED_INPUTS)
    holders += [*wrapped, attributes, as_object(attributes.get("model_parameters"))]
    for holder in holders:
        if given := as_list(first_of(holder, ("tools", "functions"))):
            return _normalise_tools(given)
    return []


def _normalise_tools(given: list[Any]) -> list[Json]:
    return [tool for one in objects(flatten_batches([parse_json(item) for item in given])) for tool in _tool(one)]


def _tool(tool: Json) -> Iterator[Json]:
    declared = first_of(tool, ("function_declarations", "functionDeclarations"))
    if isinstance(declared, list):
        for one in objects(declared):
            yield from _tool(one)
        return
    inner = first_of(tool, ("function", "toolSpec"))
    inner = inner if isinstance(inner, dict) else tool
    name, schema = inner.get("name"), first_of(inner, ("parameters", "input_schema", "inputSchema"))
    if isinstance(name, str) and name:
        schema = parse_json(schema)
        schema = schema["json"] if isinstance(schema, dict) and set(schema) == {"json"} else schema
        told = {"name": name, "description": inner.get("description"), "parameters": schema}
        yield {"type": "function", "function": {key: value for key, value in told.items() if value is not None}}
