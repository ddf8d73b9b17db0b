"""Media as stored values: the object that SDKs read as `Content`, and the two files behind it."""

import base64
import binascii
import hashlib
import json
import mimetypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from heddle.wire import refs

CONTENT_TYPE = "weave.type_wrappers.Content.content.Content"
File = tuple[str, str, bytes]
"""Digest, name and content."""


@dataclass(frozen=True)
class ContentObject:
    """One piece of media; `content_type` says in which form it came: `base64`, `data_url:base64` or `url`."""

    content: bytes
    mimetype: str
    content_type: str

    @cached_property
    def files(self) -> list[File]:
        """The files that must be stored."""
        contents = {"content": self.content, "metadata.json": self._described()}
        return [(refs.bytes_digest(content), name, content) for name, content in contents.items()]

    @property
    def value(self) -> dict[str, Any]:
        """What stands for the media in an input or output."""
        return {
            "_type": "CustomWeaveType",
            "weave_type": {"type": CONTENT_TYPE},
            "files": {name: digest for digest, name, _ in self.files},
        }

    def _described(self) -> bytes:
        extension = mimetypes.guess_extension(self.mimetype) or ""
        sha256 = hashlib.sha256(self.content).hexdigest()
        family = self.mimetype.partition("/")[0]
        metadata = {
            "size": len(self.content),
            "mimetype": self.mimetype,
            "digest": sha256,
            "filename": f"{'file' if family == 'application' else family}-{sha256[:4]}{extension}",
            "content_type": self.content_type,
            "input_type": "str",
            "encoding": "base64",
            "metadata": None,
            "extension": extension,
        }
        return json.dumps(metadata).encode()


def sniff(content: bytes) -> str:
    """The media type that the first bytes tell, empty when they tell none."""
    import puremagic

    try:
        return str(puremagic.from_string(content[:4096], mime=True) or "")
    except (puremagic.PureError, ValueError):
        return ""


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
