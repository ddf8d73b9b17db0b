"""What all control tables share."""

import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import sqlalchemy as sa

T = TypeVar("T")

metadata = sa.MetaData()


class Executor(Protocol):
    """Runs work on the control database, away from the event loop."""

    async def write(self, work: Callable[[sa.Connection], T], size: int = 0) -> T:
        """Run `work` inside a transaction and return after its commit; `size` is its payload in bytes.

        An exception of `work` undoes what this work did (nothing else) and is raised here.
        Raises Busy when too much waits and StorageFull when the disk is full.
        """
        ...

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work` on a read-only connection."""
        ...


def _new_owner() -> str:
    return f"{socket.gethostname()[:100]}/{os.getpid()}/{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class Instance:
    """One running server as the owner of leases; another one after a restart."""

    is_shared: bool = False
    """Other servers may work on the same tables; otherwise what an earlier server left is nobody's."""
    owner: str = field(default_factory=_new_owner)
