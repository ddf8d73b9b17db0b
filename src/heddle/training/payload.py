"""Bodies of training jobs on the disk: JSON, compressed with zstd."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import zstandard

from heddle.wire import jsontext

_LEVEL = 3
_CHUNK = 1 << 18


def write(value: Any) -> bytes:
    """The compressed JSON of plain values; equal values give equal bytes. Non-finite numbers become null."""
    return zstandard.ZstdCompressor(level=_LEVEL).compress(jsontext.dumps_bytes(value))


def read(path: Path | str) -> Any:
    """What `write` was given; raises OSError, or ValueError for a file that is none of ours."""
    with Path(path).open("rb") as stream:
        text = b"".join(chunks(stream))
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:  # numbers beyond its range
        return json.loads(text)


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The JSON text behind a binary stream, part by part; raises ValueError for what is no zstd."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BufferedReader(stream)) as text:  # type: ignore[type-var]
            while chunk := text.read(_CHUNK):
                yield chunk
    except zstandard.ZstdError as error:
        raise ValueError(f"no zstd: {error}") from None
