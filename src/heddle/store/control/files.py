"""Which files a project has; their bytes are blobs, shared by all projects with the same content."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from heddle.store.control.schema import Executor, Instance, metadata
from heddle.wire import times

_EXPECT_SECONDS = 1.0
_ARRIVAL_SECONDS = 4.0
_LOOK_SECONDS = 0.1

files = sa.Table(
    "files",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("blob", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Index("files_by_blob", "blob"),
)


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a project: its name when it first came, its bytes' number and the key of their blob."""

    name: str
    size: int
    blob: str


class Files:
    """The file table."""

    def __init__(self, executor: Executor, instance: Instance | None = None) -> None:
        self._executor = executor
        self._is_shared = (instance or Instance()).is_shared
        self._arriving = 0
        self._waiting: dict[tuple[str, str], set[asyncio.Future[None]]] = {}

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Tell `expect` that a file is on its way while the block runs."""
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1

    async def create(self, project: str, name: str, digest: str, size: int, blob: str) -> None:
        """Give the project a file whose blob is durable already; the same content again changes nothing."""

        def work(connection: sa.Connection) -> None:
            known = connection.execute(sa.select(files.c.digest).where(_one(project, digest))).first()
            if known is None:
                row = {"project": project, "digest": digest, "name": name, "size": size, "blob": blob}
                connection.execute(files.insert().values(**row, created_at=times.now()))

        await self._executor.write(work, 200)
        for reader in self._waiting.get((project, digest), ()):
            if not reader.done():
                reader.set_result(None)

    async def find(self, project: str, digest: str) -> StoredFile | None:
        """The project's file of that digest."""
        query = sa.select(files.c.name, files.c.size, files.c.blob).where(_one(project, digest))

        def work(connection: sa.Connection) -> StoredFile | None:
            row = connection.execute(query).first()
            return None if row is None else StoredFile(row.name, row.size, row.blob)

        return await self._executor.read(work)

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
            await asyncio.wait([stored], timeout=min(left, _LOOK_SECONDS) if self._is_shared else left)
            if self._is_shared and (found := await self.find(project, digest)) is not None:
                return found
        return await self.find(project, digest)

    async def total_size(self, project: str) -> int:
        """The bytes of all files of the project."""
        query = sa.select(sa.func.coalesce(sa.func.sum(files.c.size), 0)).where(files.c.project == project)
        return await self._executor.read(lambda connection: int(connection.execute(query).scalar_one()))


def _one(project: str, digest: str) -> sa.ColumnElement[bool]:
    return sa.and_(files.c.project == project, files.c.digest == digest)
