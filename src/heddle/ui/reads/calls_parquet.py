"""Records of calls as a Parquet file, written in row groups; pyarrow is an extra."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any

from heddle.errors import ExtraMissing

_GROUP_ROWS = 2000
_GROUP_BYTES = 16 * 1024 * 1024


def insist() -> None:
    """Raise ExtraMissing without pyarrow."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise ExtraMissing("Parquet needs pyarrow on the server: pip install 'heddle[parquet]'") from None


class _Sink:
    """A file that only grows, read away as it is written."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def write(self, data: Any) -> int:
        part = bytes(data)
        self._parts.append(part)
        self._size += len(part)
        return len(part)

    def take(self) -> bytes:
        """What came since the last time."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


async def write(records: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[bytes]:
    """The file in pieces; memory holds one row group."""
    import pyarrow
    from pyarrow import parquet

    texts = ("id", "trace_id", "parent_id", "op_name", "name", "status")
    after = ("user", "thread_id", "exception", "inputs", "output", "attributes", "summary")
    schema = pyarrow.schema(
        [(name, pyarrow.string()) for name in texts]
        + [(name, pyarrow.timestamp("us", tz="UTC")) for name in ("started_at", "ended_at")]
        + [("seconds", pyarrow.float64())]
        + [(name, pyarrow.string()) for name in after]
    )
    sink = _Sink()
    writer = parquet.ParquetWriter(pyarrow.PythonFile(sink, mode="w"), schema, compression="zstd")

    def group(rows: list[dict[str, Any]]) -> bytes:
        writer.write_table(pyarrow.Table.from_pylist([_row(row) for row in rows], schema=schema))
        return sink.take()

    waiting: list[dict[str, Any]] = []
    async for batch in records:
        waiting += batch
        if len(waiting) >= _GROUP_ROWS or _bytes(waiting) >= _GROUP_BYTES:
            yield await asyncio.to_thread(group, waiting)
            waiting = []
    if waiting:
        yield await asyncio.to_thread(group, waiting)
    writer.close()
    yield sink.take()


def _row(record: dict[str, Any]) -> dict[str, Any]:
    row = {name: value.decode() if isinstance(value, bytes) else value for name, value in record.items()}
    for name in ("started_at", "ended_at"):
        row[name] = None if row[name] is None else datetime.fromisoformat(row[name])
    return row


def _bytes(records: Iterable[dict[str, Any]]) -> int:
    return sum(len(value) for record in records for value in record.values() if isinstance(value, (str, bytes)))
