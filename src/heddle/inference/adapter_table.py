"""Where adapter versions are kept, and how other servers' changes of them are noticed."""

from typing import Protocol

from heddle.store.control.adapters import AdapterRow, Name
from heddle.store.control.schema import Instance


class AdapterTable(Protocol):
    """Where versions are kept."""

    async def add(self, row: AdapterRow) -> None:
        """Make a version known; raises InvalidRequest when it exists."""
        ...

    async def remove(self, row: AdapterRow, at: int, user: str) -> None:
        """Forget a version."""
        ...

    async def all(self) -> list[AdapterRow]:
        """Every version, oldest first."""
        ...

    async def point(self, name: Name, step: int) -> None:
        """Let a trainable name mean a step from now on."""
        ...

    async def forget(self, name: Name) -> None:
        """A trainable name ends."""
        ...

    async def pointers(self) -> dict[Name, int]:
        """The step that every trainable name means."""
        ...


class Seen(Protocol):
    """How often adapters changed, on any server."""

    @property
    def instance(self) -> Instance:
        """This server."""
        ...

    async def number(self, name: str) -> int:
        """Another number after each change; always the same where one server is alone."""
        ...
