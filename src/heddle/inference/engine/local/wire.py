"""Messages between the server and the engine's process: length-prefixed pickles over a socket pair.

To the engine go tuples whose first item is the command:
    ("add", number, TokenRequest), ("abort", number), ("load", call, AdapterRef), ("unload", call, adapter id),
    ("stats", call)
Back come a list of packed events (`Event.packed`) once per step, or a tuple:
    ("ready", Ready), ("unable", text), ("failed", number, exception), ("reply", call, value or exception)
"""

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_HEADER = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Ready:
    """What the engine's process says once the model is loaded."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    load_seconds: float


def frame(message: Any) -> bytes:
    """A message as bytes."""
    body = pickle.dumps(message, protocol=5)
    return _HEADER.pack(len(body)) + body


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The messages that are complete with these bytes."""
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _HEADER.size:
            (size,) = _HEADER.unpack_from(buffer, start)
            end = start + _HEADER.size + size
            if end > len(buffer):
                break
            yield pickle.loads(memoryview(buffer)[start + _HEADER.size : end])
            start = end
        del buffer[:start]
