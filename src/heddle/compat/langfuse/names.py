"""Names and places of templates in Langfuse as names and templates of heddle's objects, and back."""

import hashlib
import re

from heddle.trace.objects import MAX_NAME

_NO_OBJECT_NAME = re.compile(r"[^\w.-]")
_HASHED = 12
_VARIABLE = re.compile(r"\{\{(\w+)\}\}|[{}]")
_FIELD = re.compile(r"\{\{|\}\}|\{(\w+)\}")


def object_id(name: str) -> str:
    """The object that a name means; names that no object can have (`folder/prompt`) get a suffix of their own."""
    safe = _NO_OBJECT_NAME.sub("-", name)
    if safe == name and 0 < len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:_HASHED]
    return f"{safe[: MAX_NAME - _HASHED - 1]}-{digest}"


def to_template(text: str) -> str:
    """A text with `{{variable}}` as one with `{variable}`, in which single braces are doubled."""
    return _VARIABLE.sub(lambda match: f"{{{match[1]}}}" if match[1] else match[0] * 2, text)


def from_template(text: str) -> str:
    """The same backwards."""
    return _FIELD.sub(lambda match: f"{{{{{match[1]}}}}}" if match[1] else match[0][0], text)
