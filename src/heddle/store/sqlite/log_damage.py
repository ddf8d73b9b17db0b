"""Damage of the write-ahead log: SQLite passes over what follows a frame with a wrong checksum without a word.

After a crash of the machine the frames behind the last sound one are the rest of one commit that nobody was told of.
Frames of a commit that another follows were flushed first, so they were acknowledged. Formats: https://sqlite.org/walformat.html
"""

import struct
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from heddle.store.sqlite.connection import connect

_HEADER = struct.Struct(">I4xI4x8sII")
_FRAME = struct.Struct(">4xI8s8x")
_SOUND_FRAMES_AT = 16
"""Where the header of the index beside the log has the number of frames that are sound."""


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Where the log of a database is damaged, and how many commits behind that are lost.

    The last commit may be one that a crash cut off, so nobody knows that one alone for acknowledged.
    """

    log: Path
    at: int
    commits: int
    is_certain: bool

    def __str__(self) -> str:
        if not self.is_certain:
            return f"the last write in {self.log.name}, at byte {self.at}, is incomplete: cut off by a crash, or lost"
        return f"{self.log.name} is damaged at byte {self.at}, and {self.commits} acknowledged writes after it are lost"


def find_log_damage(database: Path) -> LogDamage | None:
    """What is lost of a log whose commits were flushed one by one; raises sqlite3.Error for an unreadable database."""
    log = database.with_name(f"{database.name}-wal")
    if not log.exists() or log.stat().st_size < _HEADER.size:
        return None
    with (
        closing(connect(database, is_read_only=True, timeout=10)) as raw,
        log.open("rb") as frames,
    ):
        raw.execute("SELECT count(*) FROM sqlite_master").fetchone()
        index = database.with_name(f"{database.name}-shm").read_bytes()
        (sound,) = struct.unpack_from("=I", index, _SOUND_FRAMES_AT)
        head = frames.read(_HEADER.size)
        magic, page_size, salt, *sums = _HEADER.unpack(head)
        size = _FRAME.size + page_size
        if _checksum(head[:24], ">" if magic & 1 else "<") != sums:
            # Nothing of this log is read; its first frame has the salt of all.
            page_size = int(raw.execute("PRAGMA page_size").fetchone()[0])
            size, sound = _FRAME.size + page_size, 0
            salt = _FRAME.unpack(frames.read(_FRAME.size).ljust(_FRAME.size))[1]
        at = frames.seek(_HEADER.size + sound * size)
        ends = list[bool]()
        while len(head := frames.read(_FRAME.size)) == _FRAME.size:
            pages, own_salt = _FRAME.unpack(head)
            if own_salt == salt:
                ends.append(pages > 0)
            frames.seek(page_size, 1)
    return LogDamage(log, at, sum(ends), any(ends[:-1])) if any(ends) else None


def _checksum(content: bytes, order: str) -> list[int]:
    first = second = 0
    for one, other in struct.iter_unpack(f"{order}II", content):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return [first, second]
