"""What a server signs with: a file of the data folder, the same for all servers that share it."""

import contextlib
import os
import tempfile
from functools import cache
from pathlib import Path

from heddle.store.disk import room

NAME = "secret"
_BYTES = 32


@cache
def secret(data: Path) -> bytes:
    """32 random bytes, made when they are first needed; only the server's user can read them. Raises StorageFull."""
    path = data / NAME
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    with room(), tempfile.NamedTemporaryFile(dir=data, prefix=f".{NAME}-") as file:
        file.write(os.urandom(_BYTES))
        file.flush()
        os.fsync(file.fileno())
        # Another server may be first: its bytes count.
        with contextlib.suppress(FileExistsError):
            os.link(file.name, path)
    return path.read_bytes()
