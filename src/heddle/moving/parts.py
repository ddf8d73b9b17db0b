"""Records as members of an archive: JSON lines, or Parquet for what there is much of."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from heddle.errors import ExtraMissing, HeddleError
from heddle.moving.archive import ArchiveWriter
from heddle.wire import jsontext

Row = Mapping[str, Any]
JSON_LINES, PARQUET = ".jsonl", ".parquet"
_PART_ROWS, _PART_CHARACTERS = 2000, 16 << 20


def insist_on_parquet() -> None:
    """Raise ExtraMissing without pyarrow."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise ExtraMissing(
            "Parquet needs pyarrow: pip install 'heddle[parquet]', or give --json to write and read JSON lines"
        ) from None


class Parts:
    """Collects the records of one group and writes them as members of bounded size; end it with `flush`."""

    def __init__(self, archive: ArchiveWriter, group: str, integers: Sequence[str] | None = None) -> None:
        """With `integers` (the columns that are no text) the members are Parquet, otherwise JSON lines."""
        self._archive = archive
        self._group = group
        self._integers = integers
        self._rows: list[Row] = []
        self._characters = self._number = 0

    def add(self, row: Row) -> None:
        """Add one record; texts may be of any length."""
        self._rows.append(row)
        self._characters += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(self._rows) >= _PART_ROWS or self._characters >= _PART_CHARACTERS:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if not self._rows:
            return
        self._number += 1
        is_parquet = self._integers is not None
        content = _parquet(self._rows, self._integers or ()) if is_parquet else _lines(self._rows)
        name = f"{self._group}/{self._number:06}{PARQUET if is_parquet else JSON_LINES}"
        self._archive.part(name, self._group, content, len(self._rows))
        self._rows, self._characters = [], 0


def read(name: str, content: bytes) -> list[dict[str, Any]]:
    """The records of a member; raises HeddleError for one that is neither."""
    if name.endswith(JSON_LINES):
        # Some texts hold integers beyond 64 bits only inside strings; the records themselves are plain.
        return [orjson.loads(line) for line in content.splitlines() if line]
    if name.endswith(PARQUET):
        insist_on_parquet()
        from pyarrow import parquet

        rows: list[dict[str, Any]] = parquet.read_table(io.BytesIO(content)).to_pylist()
        return rows
    raise HeddleError(f"The archive holds {name}, which this heddle does not know")


def _lines(rows: Sequence[Row]) -> bytes:
    return b"".join(jsontext.dumps_bytes(row) + b"\n" for row in rows)


def _parquet(rows: Sequence[Row], integers: Sequence[str]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    kinds = [(name, pyarrow.int64() if name in integers else pyarrow.large_string()) for name in rows[0]]
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=pyarrow.schema(kinds)), sink, compression="zstd")
    return sink.getvalue()
