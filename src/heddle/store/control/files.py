"""Which files a project has; their bytes are blobs, shared by all projects with the same content."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import sqlalchemy as sa

from heddle.store.control.schema import Executor, metadata
from heddle.wire import times

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

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._arriving: set[asyncio.Future[None]] = set()

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Tell readers that a file is on its way while the block runs."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arriving.add(done)
        try:
            yield
        finally:
            self._arriving.discard(done)
            done.set_result(None)

    async def arrivals(self, seconds: float) -> bool:
        """Wait for the files that are on their way at this moment; False when there are none.

        SDKs compute digests themselves and read what they publish without waiting for the upload to be answered.
        """
        if not self._arriving:
            return False
        await asyncio.wait(self._arriving.copy(), timeout=seconds)
        return True

    async def create(self, project: str, name: str, digest: str, size: int, blob: str) -> None:
        """Give the project a file whose blob is durable already; the same content again changes nothing."""

        def work(connection: sa.Connection) -> None:
            known = connection.execute(sa.select(files.c.digest).where(_one(project, digest))).first()
            if known is None:
                row = {"project": project, "digest": digest, "name": name, "size": size, "blob": blob}
                connection.execute(files.insert().values(**row, created_at=times.now()))

        await self._executor.write(work, 200)

    async def find(self, project: str, digest: str) -> StoredFile | None:
        """The project's file of that digest."""
        query = sa.select(files.c.name, files.c.size, files.c.blob).where(_one(project, digest))

        def work(connection: sa.Connection) -> StoredFile | None:
            row = connection.execute(query).first()
            return None if row is None else StoredFile(row.name, row.size, row.blob)

        return await self._executor.read(work)

    async def total_size(self, project: str) -> int:
        """The bytes of all files of the project."""
        query = sa.select(sa.func.coalesce(sa.func.sum(files.c.size), 0)).where(files.c.project == project)
        return await self._executor.read(lambda connection: int(connection.execute(query).scalar_one()))


def _one(project: str, digest: str) -> sa.ColumnElement[bool]:
    return sa.and_(files.c.project == project, files.c.digest == digest)
