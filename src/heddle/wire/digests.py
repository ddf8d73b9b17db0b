"""Content digests, exactly as the SDKs compute them (contract: trace-core, section 4)."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

from heddle.wire import jsonpieces

_canonical = json.JSONEncoder()
_LOOKS_LIKE_DIGEST = re.compile(r"[0-9A-Za-z]{43}|[0-9a-f]{64}", re.ASCII)
_VERSION = re.compile(r"v(\d{1,18})", re.ASCII)


def bytes_digest(data: bytes) -> str:
    """The 43-character digest of raw bytes."""
    return encode_sha256(hashlib.sha256(data).digest())


def encode_sha256(raw: bytes) -> str:
    """URL-safe base64 of a SHA-256 with `-` and `_` replaced by letters and the padding dropped."""
    return base64.urlsafe_b64encode(raw).decode().replace("-", "X").replace("_", "Y").rstrip("=")


def canonical_json(value: Any) -> str:
    """The text that digests are computed over: sorted keys, default separators, ASCII escapes."""
    return json.dumps(value, sort_keys=True)


def large_canonical_json(value: Any) -> str:
    """The same, made in pieces where it is large: for a thread that others shall not have to wait for."""
    if jsonpieces.is_small(value):
        return canonical_json(value)
    return jsonpieces.dumps(_sorted(value), _canonical.encode)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def value_digest(value: Any, is_large: bool = False) -> str:
    """The digest of an object value or of a table row, refs in internal form."""
    return bytes_digest((large_canonical_json if is_large else canonical_json)(value).encode())


def table_digest(row_digests: Iterable[str]) -> str:
    """The hexadecimal digest of a table: SHA-256 over its row digests in order."""
    state = hashlib.sha256()
    for digest in row_digests:
        state.update(digest.encode())
    return state.hexdigest()


def looks_like_digest(text: str) -> bool:
    """True when a version text can only be a digest, so that no alias is looked up."""
    return _LOOKS_LIKE_DIGEST.fullmatch(text) is not None


def version_number(text: str) -> int | None:
    """N of the version text `vN`, else None."""
    match = _VERSION.fullmatch(text)
    return int(match[1]) if match else None
