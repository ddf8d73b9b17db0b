"""Files of adapters and checkpoints on their way into a data folder."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

from heddle.paths import resolve_below
from heddle.store.disk import room


def put_file(data: Path, place: str, content: IO[bytes]) -> bool:
    """Store a file durably at its place; false when there is one already. Raises StorageFull, OutsideRoot."""
    target = resolve_below(data, place)
    if target.exists():
        return False
    with room():
        target.parent.mkdir(parents=True, exist_ok=True)
        # Begins with a dot: what is half written is no part of a checkpoint.
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=".import.", delete=False) as file:
            try:
                shutil.copyfileobj(content, file, 1 << 20)
                file.flush()
                os.fsync(file.fileno())
                os.replace(file.name, target)
            finally:
                Path(file.name).unlink(missing_ok=True)
    return True
