"""One entry of `messages_and_choices`: which of its parts must have which type, named by its place.

Written by hand: a body can hold millions of log-probabilities, and a model object for each would not fit the memory.
"""

import sys
from collections.abc import Iterator
from typing import Any

from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

Place = tuple[str | int, ...]
Problem = tuple[Place, str, str]
"""Where in the item, which kind, what."""

_MOST = 20


def checked(item: dict[str, Any]) -> dict[str, Any]:
    """The item itself, for pydantic; raises ValidationError with up to twenty places that are wrong."""
    found = [problem for _, problem in zip(range(_MOST), problems(item), strict=False)]
    if not found:
        return item
    errors: list[InitErrorDetails] = [
        {"type": PydanticCustomError(kind, "{text}", {"text": text}), "loc": place, "input": None}
        for place, kind, text in found
    ]
    raise ValidationError.from_exception_data("item", errors)


def problems(item: dict[str, Any]) -> Iterator[Problem]:
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
        yield (*at, "role"), "string_type", "Input should be a text that is not empty"
    if isinstance(content, list):
        for index, part in enumerate(content):
            if not isinstance(part, (dict, str)):
                yield (*at, "content", index), "dict_type", "Input should be an object or a text"
    elif content is not None and not isinstance(content, str):
        yield (*at, "content"), "string_type", "Input should be a text, a list of parts, or null"
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
        if type(token_id) is not int or token_id < 0:
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
