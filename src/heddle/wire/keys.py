"""API keys as they are stored: what they allow, and the hash that they are found by."""

import hashlib
from enum import StrEnum


class Scope(StrEnum):
    """What a key may do; `admin` includes `write`, `write` does not include `read`."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


def hash_key(key: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
