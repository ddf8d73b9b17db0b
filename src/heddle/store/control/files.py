"""Which files a project has; their bytes are blobs, shared by all projects with the same content."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from heddle.store.control.repository import Executor, Instance, Key, Mapped, Repository
from heddle.wire import times

_EXPECT_SECONDS = 1.0
_ARRIVAL_SECONDS = 4.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a project: its name when it first came, its bytes' number and the key of their blob."""

    project: Key[str]
    digest: Key[str]
    name: str
    size: int
    blob: str
    created_at: int


_files = Mapped(StoredFile, "files", sa.Index("files_by_blob", "blob"))
files = _files.table


class Files(Repository):
    """The file table."""

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        super().__init__(executor, instance)
        self._arriving = 0
        self._waiting: dict[tuple[str, str], set[asyncio.Future[None]]] = {}

    @contextmanager
    def note_arrival(self) -> Iterator[None]:
        """Tell `expect` that a file is on its way while the block runs."""
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1

    async def create(self, project: str, name: str, digest: str, size: int, blob: str) -> None:
        """Give the project a file whose blob is durable already; the same content again changes nothing."""
        row = StoredFile(project, digest, name, size, blob, times.now())
        await self._executor.write(lambda connection: _files.insert_new(connection, row), 200)
        for reader in self._waiting.get((project, digest), ()):
            if not reader.done():
                reader.set_result(None)

    async def find(self, project: str, digest: str) -> StoredFile | None:
        """The project's file of that digest."""
        return await self._first(_files, files.c.project == project, files.c.digest == digest)

    async def expect(self, project: str, digest: str) -> StoredFile | None:
        """The project's file of that digest; waits a moment for one that is not there yet.

        SDKs compute digests themselves, publish what names a file before they have sent it, and may read it at once.
        """
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault((project, digest), set())
        waiting.add(stored)
        try:
            found = await self.find(project, digest)
            if found is None:
                found = await self._await(project, digest, stored, _EXPECT_SECONDS)
            if found is None and self._arriving:
                found = await self._await(project, digest, stored, _ARRIVAL_SECONDS)
            return found
        finally:
            waiting.discard(stored)
            if not waiting:
                self._waiting.pop((project, digest), None)

    async def _await(
        self, project: str, digest: str, stored: asyncio.Future[None], seconds: float
    ) -> StoredFile | None:
        """The file once it has come; another server says nothing of it, so that one is asked for again and again."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not stored.done():
            await asyncio.wait([stored], timeout=min(left, _LOOK_SECONDS) if self.instance.is_shared else left)
            if self.instance.is_shared and (found := await self.find(project, digest)) is not None:
                return found
        return await self.find(project, digest)

    async def total_size(self, project: str) -> int:
        """The bytes of all files of the project."""
        return int(await self._scalar(sa.select(sa.func.sum(files.c.size)).where(files.c.project == project)) or 0)
