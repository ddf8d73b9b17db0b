"""Small archives of projects."""

import tempfile
from pathlib import Path

from heddle.transfer.archive import ArchiveWriter, Header


def archive_of(*projects: str) -> bytes:
    """An archive of projects that hold nothing."""
    with tempfile.TemporaryDirectory() as folder:
        with ArchiveWriter(Path(folder, "a"), Header("0", "2026-01-01T00:00:00Z", list(projects))):
            pass
        return Path(folder, "a").read_bytes()
