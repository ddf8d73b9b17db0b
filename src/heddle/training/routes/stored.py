"""Answers that hold a stored body: written as it is unpacked, never whole in memory."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi.responses import StreamingResponse

from heddle.training import payload
from heddle.wire import jsontext


def with_body(head: Mapping[str, Any], path: Path) -> StreamingResponse:
    """One JSON object: the head's keys (at least one), then those of the stored object."""
    return StreamingResponse(_parts(head, path), media_type="application/json")


async def _parts(head: Mapping[str, Any], path: Path) -> AsyncIterator[bytes]:
    yield jsontext.dumps_bytes(dict(head))[:-1] + b","
    with path.open("rb") as stream:
        parts: Iterator[bytes] = payload.chunks(stream)
        first = await asyncio.to_thread(next, parts, b"")
        yield first[1:]  # without the brace that the head has opened
        while part := await asyncio.to_thread(next, parts, b""):
            yield part
