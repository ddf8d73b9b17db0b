"""Who and what a span is about: its user, tags, metadata and the name that people read, by each convention's table."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from heddle.trace.otel.conventions.convention import Convention, to_text
from heddle.wire.conversation.values import as_list, parse_json
from heddle.wire.jsontypes import Json

COMMON: Mapping[str, tuple[str, ...]] = {"user": ("user.id", "enduser.id")}
"""What every span may say, whatever wrote it."""
ContextRows = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
"""Fields of `SpanContext`, each with attributes of a span and, for parts of metadata, their names in it."""
_MAX_TAGS = 100
_MAX_LENGTH = 1024


@dataclass(slots=True)
class SpanContext:
    """What a span says of itself beside its work."""

    user: str | None = None
    display_name: str | None = None
    tags: list[str] = field(default_factory=list)
    metadata: Json = field(default_factory=dict)


def select_context(conventions: Iterable[Convention], keys: Collection[str]) -> ContextRows:
    """The rows of the conventions' tables that some of these attributes can fill."""
    found: dict[str, dict[str, str]] = {}
    for table in (*(one.context for one in conventions), COMMON):
        for name, attributes in table.items():
            row = found.setdefault(name, {})
            for attribute in attributes:
                if not attribute.endswith("."):
                    row |= {attribute: ""} if attribute in keys else {}
                    continue
                row |= {key: key.removeprefix(attribute) for key in keys if key.startswith(attribute)}
    return tuple((name, tuple(row.items())) for name, row in found.items() if row)


def read_context(rows: ContextRows, attributes: Json) -> SpanContext:
    """What the attributes of a span say: of several for one field the first with a value, all of the metadata."""
    into = SpanContext()
    for name, places in rows:
        for attribute, part in places:
            value = attributes[attribute]
            if name == "metadata":
                _join(into.metadata, part, parse_json(value))
            elif name == "tags":
                into.tags = into.tags or _to_tags(value)
            elif (text := to_text(parse_json(value))) is not None and getattr(into, name) is None:
                setattr(into, name, text[:_MAX_LENGTH])
    return into


def _join(metadata: Json, part: str, value: Any) -> None:
    if part:
        metadata.setdefault(part, value)
    elif isinstance(value, dict):
        for name, item in value.items():
            metadata.setdefault(name, item)


def _to_tags(value: Any) -> list[str]:
    """A list, its JSON text, or a text with commas."""
    listed = as_list(value)
    if not listed and isinstance(value, str) and value[:1] != "[":
        listed = value.split(",")
    tags = (text.strip()[:_MAX_LENGTH] for item in listed[:_MAX_TAGS] if (text := to_text(item)))
    return list(dict.fromkeys(tag for tag in tags if tag))
