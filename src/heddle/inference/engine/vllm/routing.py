"""Which of several servers gets a request: the one that has its prefix, unless that one has much more to do."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from struct import pack

from heddle.inference.engine.base import TokenRequest

PREFIX_TOKENS = 128
"""So many first tokens decide; one block of a prefix cache or several."""
MARGIN = 4
"""Requests that the preferred server may have more than the least busy one; a quarter of that one's comes on top."""


def prefix_key(request: TokenRequest) -> bytes:
    """What requests have in common that can share cached keys and values: adapter, salt, first tokens."""
    head = request.prompt[:PREFIX_TOKENS]
    adapter = request.adapter.id if request.adapter is not None else ""
    named = f"{adapter}\0{request.cache_salt or ''}\0".encode()
    return blake2b(named + pack(f"<{len(head)}q", *head), digest_size=16).digest()


def preferred(key: bytes, names: Iterable[str]) -> str:
    """The server that keeps a prefix: when servers come or go, only their own prefixes move (rendezvous hashing)."""
    return max(names, key=lambda name: blake2b(name.encode(), key=key, digest_size=8).digest())


def choose(key: bytes, loads: Mapping[str, float]) -> str:
    """The server for a request; `loads` are the requests that each one has now, and not empty."""
    first = preferred(key, loads)
    least = min(loads, key=lambda name: loads[name])
    return first if loads[first] <= loads[least] * 1.25 + MARGIN else least
