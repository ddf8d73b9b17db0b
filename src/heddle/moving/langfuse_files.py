"""The files of a Langfuse export: JSON, JSON lines, CSV (all three also gzipped) and Parquet."""

import csv
import gzip
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from heddle.errors import HeddleError
from heddle.moving.parts import insist_on_parquet
from heddle.wire import jsontext
from heddle.wire.jsontypes import Json

_FOLDERS = {"observations_v2": "observations", "observations": "observations", "traces": "traces", "scores": "scores"}
_ENDINGS = (".json", ".jsonl", ".csv", ".parquet", ".json.gz", ".jsonl.gz", ".csv.gz")


def find(folder: Path) -> dict[str, list[Path]]:
    """The files by what they hold; with enriched observations the older files of the same are left out.

    Raises HeddleError for a file of another kind in one of the folders.
    """
    found: dict[str, list[Path]] = {name: [] for name in set(_FOLDERS.values())}
    has_enriched = any(path.is_file() for path in folder.glob("**/observations_v2/*"))
    for path in sorted(folder.rglob("*")):
        kind = _FOLDERS.get(path.parent.name)
        is_older = has_enriched and path.parent.name in ("observations", "traces")
        if kind is None or is_older or not path.is_file():
            continue
        if not path.name.endswith(_ENDINGS):
            raise HeddleError(f"{path} is none of the files of a Langfuse export: {', '.join(_ENDINGS)}")
        found[kind].append(path)
    return found


def rows(paths: Sequence[Path]) -> Iterator[Json]:
    """The rows of files, one after the other; raises HeddleError naming a file that cannot be read."""
    for path in paths:
        try:
            yield from _rows(path)
        except (OSError, EOFError, ValueError, csv.Error) as error:
            raise HeddleError(f"{path} cannot be read: {error}") from None


def _rows(path: Path) -> Iterator[Json]:
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        insist_on_parquet()
        from pyarrow import parquet

        for batch in parquet.ParquetFile(path).iter_batches(batch_size=500):
            yield from ({key: _plain(value) for key, value in row.items()} for row in batch.to_pylist())
        return
    with _opened(path) as content:
        if name.endswith(".csv"):
            csv.field_size_limit(sys.maxsize)
            yield from ({key: value or None for key, value in row.items()} for row in csv.DictReader(content))
        elif name.endswith(".jsonl"):
            yield from (json.loads(line) for line in content if line.strip())
        else:
            yield from json.load(content)


def _opened(path: Path) -> IO[str]:
    if path.name.endswith(".gz"):
        return io.TextIOWrapper(cast(IO[bytes], gzip.open(path)), encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _plain(value: Any) -> Any:
    """A value of Parquet as JSON has it: maps come as lists of pairs."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        return dict(value)
    return value


def object_of(value: Any) -> Json:
    """A field that is an object, or the JSON text of one."""
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}


def text_of(value: Any) -> str | None:
    """The JSON text of a field that is an object, or such a text already."""
    found = object_of(value)
    return jsontext.dumps(found) if found else None
