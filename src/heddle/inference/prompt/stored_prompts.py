"""Prompts that are stored as objects, and the variables in their messages."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import orjson

from heddle.auth import Caller, Scope
from heddle.errors import Forbidden, InvalidRequest, NotFound
from heddle.store.base import Store
from heddle.wire import refs

_CLASSES = ("Prompt", "MessagesPrompt", "StringPrompt")
_PLACE = re.compile(r"\{\{|\}\}|\{(\w+)\}")
_NAME = re.compile(r"\{(\w+)\}")
_MOST_CHARS = 8 << 20
"""What variables put in at most; a request brings no more by itself (max_chat_body)."""
_CHARS_OF_MESSAGE = 64


async def resolve_prompt(
    store: Store, caller: Caller, project: str, prompt: str | None, messages: list[Any], variables: Mapping[str, Any]
) -> list[Any]:
    """The messages of a stored prompt, then the given ones, with `{name}` replaced in all but the assistant's.

    `prompt` is a ref, `name:version` or `name`; `project` is internal. In the prompt's messages doubled braces stand
    for single ones and an unknown name raises InvalidRequest; in the given ones only known names are touched, as
    clients send text there that they have filled in already. Raises NotFound for an unknown prompt, Forbidden for a
    key that does not read.
    """
    stored = await _messages(store, caller, project, prompt) if prompt else []
    return await asyncio.to_thread(_Filling(variables).fill_all, stored, messages)


async def _messages(store: Store, caller: Caller, project: str, prompt: str) -> list[Any]:
    caller.require(Scope.READ)
    where, name, version = _locate(caller, project, prompt)
    found = await store.objects.read(where, name, version)
    if found is None or found.deleted_at is not None:
        shown = refs.to_external(prompt) if prompt.startswith(refs.INTERNAL) else prompt
        raise NotFound(f"Failed to resolve prompt: {shown[:500]} not found")
    if found.base_object_class not in _CLASSES and found.leaf_object_class not in _CLASSES:
        raise InvalidRequest(f"Failed to resolve prompt: {name} is not a prompt but {found.base_object_class}")
    value = orjson.loads(found.val or "{}")
    content = value.get("content")
    messages = value.get("messages")
    if messages is None and isinstance(content, str):
        return [{"role": "user", "content": content}]
    if not isinstance(messages, list):
        raise InvalidRequest(f"Failed to resolve prompt: {name} has no list of messages")
    return messages


def _locate(caller: Caller, project: str, prompt: str) -> tuple[str, str, str]:
    """Project, name and version of a prompt."""
    if not prompt.startswith(refs.INTERNAL):
        name, _, version = prompt.rpartition(":") if ":" in prompt else (prompt, "", "latest")
        return project, name, version
    ref = refs.parse(prompt)
    owner = refs.external_project(ref.project)
    if ref.kind != "object" or owner is None:
        raise InvalidRequest(f"Failed to resolve prompt: {refs.to_external(prompt)[:500]} is not a ref of an object")
    if not caller.may_read(owner):
        raise Forbidden(f"The key of user '{caller.user}' does not have permission to read prompts of '{owner}'")
    return ref.project, ref.name, ref.version


class _Filling:
    """Puts variables into messages, whose text grows by so much and no more."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = variables
        self._left = _MOST_CHARS

    def fill_all(self, stored: list[Any], messages: list[Any]) -> list[Any]:
        """The messages of a prompt, then the given ones; raises InvalidRequest."""
        filled = [message for item in stored for message in self._expand(item)]
        return [*filled, *(self._fill(item, False) for item in messages)] if self._variables else [*filled, *messages]

    def _expand(self, message: Any) -> list[Any]:
        """A message, filled; for a placeholder, as prompts of Langfuse have them, the messages of its name."""
        if not isinstance(message, dict) or message.get("type") != "placeholder":
            return [self._fill(message, True) if self._variables else message]
        name = message.get("name")
        given = self._variables.get(name) if isinstance(name, str) else None
        if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
            shown = repr(str(name)[:200])
            raise InvalidRequest(
                f"Failed to resolve prompt: the placeholder {shown} requires a list of messages in template_vars"
            )
        self._count(_CHARS_OF_MESSAGE * len(given))
        return [self._fill(item, False) for item in given]

    def _fill(self, value: Any, strict: bool) -> Any:
        if isinstance(value, str):
            return _PLACE.sub(self._put_strictly, value) if strict else _NAME.sub(self._put, value)
        if isinstance(value, list):
            return [self._fill(item, strict) for item in value]
        if isinstance(value, dict) and value.get("role") != "assistant":
            return {key: item if key in ("role", "type") else self._fill(item, strict) for key, item in value.items()}
        return value

    def _put(self, match: re.Match[str]) -> str:
        return self._text(match[1]) if match[1] in self._variables else match[0]

    def _put_strictly(self, match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0][0]
        if name not in self._variables:
            known = ", ".join(sorted(self._variables))[:1000]
            raise InvalidRequest(
                f"Failed to resolve prompt: Prompt template variable '{name}' not found. Available variables: {known}"
            )
        return self._text(name)

    def _text(self, name: str) -> str:
        value = self._variables[name]
        text = value if isinstance(value, str) else str(value)
        self._count(len(text))
        return text

    def _count(self, chars: int) -> None:
        self._left -= chars
        if self._left < 0:
            raise InvalidRequest(f"the values of template_vars exceed {_MOST_CHARS} characters", param="template_vars")
