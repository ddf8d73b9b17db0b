"""The control tables alone on SQLite: what one server keeps beside calls that are elsewhere."""

import asyncio
from pathlib import Path

from heddle.settings import Settings
from heddle.store.sizes import Sizes, sizes
from heddle.store.sqlite.connection import Session
from heddle.store.sqlite.executor import SqliteExecutor
from heddle.store.sqlite.migrations import CURRENT
from heddle.store.sqlite.names import Names
from heddle.store.sqlite.readers import Readers
from heddle.store.sqlite.writer import Writer, WriterStats

CONTROL_READERS = 2


class SqliteControl:
    """One writer and the readers of the control tables; `keys` and `spans` have readers of their own.

    What reads all calls does so through `long_readers`, of which there is one.
    """

    schema = CURRENT

    def __init__(self, settings: Settings, path: Path, session: Session) -> None:
        self._path = path
        self._session = session
        self.names = Names()
        self.writer = self._start_writer(settings)
        # Searching may take seconds: small look-ups have readers of their own, and keys, which every caller needs,
        # one that nothing else can occupy.
        self.readers = Readers(path, settings.readers, settings.query_timeout)
        self.long_readers = Readers(path, 1, settings.query_timeout)
        self._control_readers = Readers(path, CONTROL_READERS, settings.query_timeout)
        self._key_readers = Readers(path, 1, settings.query_timeout)
        self.executor = SqliteExecutor(self.writer, self._control_readers)
        self.keys = SqliteExecutor(self.writer, self._key_readers)
        self.spans = SqliteExecutor(self.writer, self.readers)

    def _start_writer(self, settings: Settings) -> Writer:
        return Writer(self._session, settings.write_queue_bytes, self.names)

    @property
    def figures(self) -> WriterStats:
        """What the writer did since the start."""
        return self.writer.figures

    async def sizes(self) -> Sizes:
        """How much room everything in the folder takes."""
        return await asyncio.to_thread(sizes, self._path)

    async def close(self) -> None:
        """Write what waits, checkpoint the file, close every connection."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self.writer.close()
        for readers in (self.readers, self.long_readers, self._control_readers, self._key_readers):
            readers.close()
        self._close_file()

    def _close_file(self) -> None:
        self._session.raw.execute("PRAGMA optimize")
        self._session.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._session.close()
