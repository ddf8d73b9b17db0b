"""Media inside call payloads: long base64 strings become files of the project (contract: trace-core, section 7)."""

import base64
import binascii
import hashlib
import json
import mimetypes
import re
from collections.abc import Callable
from typing import Any

from heddle.wire import digests

LONG_STRING = 8192
_DATA_URI = re.compile(r"data:([^;,]*)((?:;[^;,]+)*);base64,", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}", re.ASCII)
_PLAIN = ("text/plain", "application/octet-stream", "")
_CONTENT_TYPE = "weave.type_wrappers.Content.content.Content"

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
    return _content_object(
        content, mimetype or "application/octet-stream", "data_url:base64" if match else "base64", keep
    )


def _content_object(content: bytes, mimetype: str, content_type: str, keep: Keep) -> dict[str, Any]:
    extension = mimetypes.guess_extension(mimetype) or ""
    sha256 = hashlib.sha256(content)
    family = mimetype.partition("/")[0]
    metadata = {
        "size": len(content),
        "mimetype": mimetype,
        "digest": sha256.hexdigest(),
        "filename": f"{'file' if family == 'application' else family}-{sha256.hexdigest()[:4]}{extension}",
        "content_type": content_type,
        "input_type": "str",
        "encoding": "base64",
        "metadata": None,
        "extension": extension,
    }
    described = json.dumps(metadata).encode()
    content_digest, metadata_digest = digests.encode_sha256(sha256.digest()), digests.bytes_digest(described)
    keep(content_digest, "content", content)
    keep(metadata_digest, "metadata.json", described)
    return {
        "_type": "CustomWeaveType",
        "weave_type": {"type": _CONTENT_TYPE},
        "files": {"content": content_digest, "metadata.json": metadata_digest},
    }


def sniff(content: bytes) -> str:
    """The media type that the first bytes tell, empty when they tell none."""
    import puremagic

    try:
        return str(puremagic.from_string(content[:4096], mime=True) or "")
    except (puremagic.PureError, ValueError):
        return ""
