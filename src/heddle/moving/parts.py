"""Records as members of an archive: JSON lines, or Parquet for what there is much of."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from heddle.errors import ExtraMissing, HeddleError
from heddle.moving.archive import ArchiveWriter
from heddle.moving.archive_names import JSON_LINES, MOST_BYTES, PARQUET
from heddle.wire import jsontext

Row = Mapping[str, Any]
_PART_ROWS, _PART_CHARACTERS = 2000, 16 << 20
_MOST_VALUES = 10_000
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)


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
        return [_record(name, number, line) for number, line in enumerate(content.split(b"\n"), 1) if line]
    if name.endswith(PARQUET):
        insist_on_parquet()
        return _of_parquet(name, content)
    raise HeddleError(f"The archive holds {name}, which this heddle does not know")


def _record(name: str, number: int, line: bytes) -> dict[str, Any]:
    """A record is flat: texts, numbers, and one list of digests at most."""
    # Some texts hold integers beyond 64 bits only inside strings; the records themselves are plain.
    try:
        if _STRINGS.sub(b"", line).count(b",") > _MOST_VALUES:
            raise ValueError("it has too many values")
        found = orjson.loads(line)
    except ValueError as error:
        raise HeddleError(f"The archive is refused: {name}, record {number}: it is no record: {error}") from None
    if not isinstance(found, dict):
        raise HeddleError(f"The archive is refused: {name}, record {number}: it is no record")
    return found


def _of_parquet(name: str, content: bytes) -> list[dict[str, Any]]:
    """The records of a Parquet file; raises HeddleError for what is none, or unpacks to more than it may."""
    import pyarrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(io.BytesIO(content))
        groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
        if file.metadata.num_rows > _PART_ROWS or sum(group.total_byte_size for group in groups) > MOST_BYTES:
            raise HeddleError(f"The archive is refused: {name} unpacks to more than a member may hold")
        texts = [field.name for field in file.schema_arrow if pyarrow.types.is_large_string(field.type)]
        # As dictionaries, else one long text that is named thousands of times takes thousands of times its room.
        table = parquet.ParquetFile(io.BytesIO(content), read_dictionary=texts).read(use_threads=False)
        if sum(_unpacked(column) for column in table.columns) > MOST_BYTES:
            raise HeddleError(f"The archive is refused: {name} unpacks to more than a member may hold")
        rows: list[dict[str, Any]] = table.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise HeddleError(f"The archive is refused: {name} is no Parquet: {str(error)[:300]}") from None
    return rows


def _unpacked(column: Any) -> int:
    """The bytes of a column's texts, each counted as often as it is named."""
    from pyarrow import compute, types

    if not types.is_dictionary(column.type):
        return int(column.nbytes)
    lengths = (compute.take(compute.binary_length(part.dictionary), part.indices) for part in column.chunks)
    return sum(int(compute.sum(part).as_py() or 0) for part in lengths)


def _lines(rows: Sequence[Row]) -> bytes:
    return b"".join(jsontext.dumps_bytes(row) + b"\n" for row in rows)


def _parquet(rows: Sequence[Row], integers: Sequence[str]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    kinds = [(name, pyarrow.int64() if name in integers else pyarrow.large_string()) for name in rows[0]]
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=pyarrow.schema(kinds)), sink, compression="zstd")
    return sink.getvalue()
