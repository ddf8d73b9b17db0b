"""Rules of object names, tags and aliases, and of the queries that monitors carry."""

import re
from typing import Any

from heddle.errors import InvalidField, InvalidRequest, ValidationFailed
from heddle.wire import callfields, query

MAX_NAME, MAX_ALIAS, MAX_TAG = 128, 128, 256
MAX_LABELS = 1000

_BAD_IN_NAME = re.compile(r"[^\w.-]")
_TAG = re.compile(r"[-\w]+( [-\w]+)*")
_RESERVED_ALIAS = re.compile(r"v\d+")
_MONITORS = frozenset(("Monitor", "ClassifierMonitor"))
_AGENT_SPAN_OPS = frozenset(("weave.genai.turn_ended",))


def check_name(name: str) -> None:
    """Raise InvalidField for characters that a name cannot have, InvalidRequest for one that is too long."""
    if bad := sorted(set(_BAD_IN_NAME.findall(name))):
        raise InvalidField(
            f"Invalid object name: {name[:200]}. Contains invalid characters: {bad[:20]}. "
            "Letters, digits, '_', '.' and '-' are allowed."
        )
    if not name:
        raise InvalidField("Object name cannot be empty")
    if len(name) > MAX_NAME:
        raise InvalidRequest(f"Object name is longer than {MAX_NAME} characters: {name}")


def not_too_many(labels: list[str]) -> list[str]:
    """The labels, each once; raises ValueError for too many."""
    if len(labels) > MAX_LABELS:
        raise ValueError(f"at most {MAX_LABELS} names are allowed at once")
    return list(dict.fromkeys(labels))


def checked_tags(tags: list[str]) -> list[str]:
    """The tags, each once; raises ValueError for a bad one."""
    for tag in tags:
        if not tag:
            raise ValueError("tag name must not be empty")
        if len(tag) > MAX_TAG:
            raise ValueError(f"tag name must be at most {MAX_TAG} characters")
        if not _TAG.fullmatch(tag):
            raise ValueError(
                f"tag name {tag!r} is invalid: only alphanumeric characters, hyphens, underscores, "
                "and single spaces between words are allowed"
            )
    return not_too_many(tags)


def checked_aliases(aliases: list[str]) -> list[str]:
    """The aliases, each once; raises ValueError for a bad one."""
    for alias in aliases:
        if not alias.strip():
            raise ValueError("alias name must not be empty or blank")
        if len(alias) > MAX_ALIAS:
            raise ValueError(f"alias name must be at most {MAX_ALIAS} characters")
        if bad := [character for character in "/:" if character in alias]:
            raise ValueError(f"alias name cannot contain character {bad[0]!r}")
        if alias == "latest" or _RESERVED_ALIAS.fullmatch(alias):
            raise ValueError(f"alias name {alias!r} is reserved")
    return not_too_many(aliases)


def check_monitor(base_class: str | None, leaf_class: str | None, value: Any) -> None:
    """Raise InvalidField or InvalidRequest when a monitor's query uses fields that calls do not have.

    A query that is none is left alone, as is the one of a monitor of agent spans.
    """
    if not _MONITORS.intersection((base_class, leaf_class)) or not isinstance(value, dict):
        return
    ops = value.get("op_names")
    if isinstance(ops, list) and any(op in _AGENT_SPAN_OPS for op in ops if isinstance(op, str)):
        return
    try:
        parsed = query.parse_stored(value.get("query"))
    except ValidationFailed:
        return
    for field in query.fields(parsed):
        callfields.resolve(field)
