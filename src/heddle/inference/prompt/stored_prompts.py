"""Prompts that are stored as objects, and the variables in their messages."""

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
    filled = [message for item in stored for message in _expand(item, variables)]
    return [*filled, *(_fill(item, variables, False) for item in messages)] if variables else [*filled, *messages]


async def _messages(store: Store, caller: Caller, project: str, prompt: str) -> list[Any]:
    caller.require(Scope.READ)
    where, name, version = _locate(caller, project, prompt)
    found = await store.objects.read(where, name, version)
    if found is None or found.deleted_at is not None:
        shown = refs.to_external(prompt) if prompt.startswith(refs.INTERNAL) else prompt
        raise NotFound(f"Failed to resolve prompt: {shown[:500]} not found")
    if found.base_object_class not in _CLASSES and found.leaf_object_class not in _CLASSES:
        raise InvalidRequest(f"Failed to resolve prompt: {name} is no prompt but {found.base_object_class}")
    value = orjson.loads(found.val or "{}")
    content = value.get("content")
    messages = value.get("messages")
    if messages is None and isinstance(content, str):
        return [{"role": "user", "content": content}]
    if not isinstance(messages, list):
        raise InvalidRequest(f"Failed to resolve prompt: {name} has no list of messages")
    return messages


def _expand(message: Any, variables: Mapping[str, Any]) -> list[Any]:
    """A message of a prompt, filled; for a placeholder, as prompts of Langfuse have them, the messages of its name."""
    if not isinstance(message, dict) or message.get("type") != "placeholder":
        return [_fill(message, variables, True) if variables else message]
    name = message.get("name")
    given = variables.get(name) if isinstance(name, str) else None
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise InvalidRequest(
            f"Failed to resolve prompt: the placeholder {str(name)[:200]!r} needs a list of messages in template_vars"
        )
    return [_fill(item, variables, False) for item in given]


def _locate(caller: Caller, project: str, prompt: str) -> tuple[str, str, str]:
    """Project, name and version of a prompt."""
    if not prompt.startswith(refs.INTERNAL):
        name, _, version = prompt.rpartition(":") if ":" in prompt else (prompt, "", "latest")
        return project, name, version
    ref = refs.parse(prompt)
    owner = refs.external_project(ref.project)
    if ref.kind != "object" or owner is None:
        raise InvalidRequest(f"Failed to resolve prompt: {refs.to_external(prompt)[:500]} names no object")
    if not caller.may_read(owner):
        raise Forbidden(f"The key of user '{caller.user}' may not read prompts of '{owner}'")
    return ref.project, ref.name, ref.version


def _fill(value: Any, variables: Mapping[str, Any], strict: bool) -> Any:
    if isinstance(value, str):
        return (
            _fill_strictly(value, variables)
            if strict
            else _NAME.sub(lambda match: _text(variables[match[1]]) if match[1] in variables else match[0], value)
        )
    if isinstance(value, list):
        return [_fill(item, variables, strict) for item in value]
    if isinstance(value, dict) and value.get("role") != "assistant":
        return {key: item if key in ("role", "type") else _fill(item, variables, strict) for key, item in value.items()}
    return value


def _fill_strictly(text: str, variables: Mapping[str, Any]) -> str:
    def put(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0][0]
        if name not in variables:
            known = ", ".join(sorted(variables))
            raise InvalidRequest(
                f"Failed to resolve prompt: Prompt template variable '{name}' not found. Available variables: {known}"
            )
        return _text(variables[name])

    return _PLACE.sub(put, text)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
