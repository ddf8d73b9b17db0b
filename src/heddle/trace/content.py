"""Media inside call payloads: long base64 strings become files of the project (contract: trace-core, section 7)."""

import base64
import binascii
import re
from collections.abc import Callable
from typing import Any

from heddle.wire.content import ContentObject, sniff

LONG_STRING = 8192
_DATA_URI = re.compile(r"data:([^;,]*)((?:;[^;,]+)*);base64,", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}", re.ASCII)
_PLAIN = ("text/plain", "application/octet-stream", "")

Keep = Callable[[str, str, bytes], None]


def replace_content(value: Any, keep: Keep) -> Any:
    """The value with its long base64 strings replaced by content objects; the same object when there is none.

    `keep(digest, name, content)` is told each file that must be stored.
    """
    if isinstance(value, str):
        return _converted(value, keep) if len(value) > LONG_STRING else value
    if isinstance(value, dict):
        changed = {key: new for key, item in value.items() if (new := replace_content(item, keep)) is not item}
        return {**value, **changed} if changed else value
    if isinstance(value, list):
        items = [replace_content(item, keep) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _converted(text: str, keep: Keep) -> Any:
    match = _DATA_URI.match(text, 0, 512)
    encoded = text[match.end() :] if match else text
    if not _BASE64.fullmatch(encoded) or len(encoded) % 4:
        return text
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return text
    mimetype = (match[1] if match else "") or sniff(content)
    if match is None and mimetype in _PLAIN:
        return text
    made = ContentObject(content, mimetype or "application/octet-stream", "data_url:base64" if match else "base64")
    for file in made.files:
        keep(*file)
    return made.value
