"""A disk that fails at a chosen operation, and the power cut: what was never flushed may be gone, whole or in parts."""

import os
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from tests.support.preload import compile_library
from tests.support.server import HeddleProcess

FAULTS = ("eio", "enospc", "short", "fsync")
_HEAD = struct.Struct("=IIQQQ")
_WRITE, _SYNC, _TRUNCATE, _RENAME, _REMOVE, _SYNC_FOLDER, _CREATE, _FAULT = range(1, 9)
_OF_FILE = (_WRITE, _TRUNCATE)
_OF_FOLDER = (_RENAME, _REMOVE)
SECTOR = 512


@dataclass(slots=True)
class Operation:
    """A record of the journal."""

    kind: int
    path: str
    offset: int
    old: bytes
    new: bytes


@dataclass
class FaultyDisk:
    """The disk below the data folder of one server process, whose operation number `at` fails, once it is armed."""

    folder: Path
    fault: str = ""
    at: int = 0
    count: int = 1
    journal: Path = field(init=False)
    armed: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        self.journal = self.folder.parent / f"{self.folder.name}.journal"
        self.armed = self.folder.parent / f"{self.folder.name}.armed"

    @contextmanager
    def below(self, process: HeddleProcess) -> Iterator[HeddleProcess]:
        """Start a server on this disk; whatever happens, it does not live longer."""
        assert not process.may_fork, "a fork has its libraries already"
        self.journal.unlink(missing_ok=True)
        self.armed.unlink(missing_ok=True)
        variables = {
            "LD_PRELOAD": str(compile_library("faulty_disk")),
            "FAULTY_DISK_FOLDER": str(self.folder),
            "FAULTY_DISK_JOURNAL": str(self.journal),
            "FAULTY_DISK_FAULT": self.fault,
            "FAULTY_DISK_ARMED": str(self.armed),
            "FAULTY_DISK_AT": str(self.at),
            "FAULTY_DISK_COUNT": str(self.count),
        }
        try:
            with patch.dict(os.environ, variables):
                process.start()
            yield process
        finally:
            process.kill()

    def arm(self) -> None:
        """From now on operations count."""
        self.armed.touch()

    def operations(self) -> list[Operation]:
        """What was done; of a record that a kill cut off nothing."""
        found = []
        content = self.journal.read_bytes()
        at = 0
        while at + _HEAD.size <= len(content):
            kind, path, offset, old, new = _HEAD.unpack_from(content, at)
            at += _HEAD.size
            parts = []
            for length in (path, old, new):
                parts.append(content[at : at + length])
                at += length
            if at <= len(content):
                found.append(Operation(kind, os.fsdecode(parts[0]), offset, parts[1], parts[2]))
        return found

    def has_failed(self) -> bool:
        """Whether the last fault came to pass."""
        return not self.armed.exists()

    def cut_power(self, seed: int) -> int:
        """Take back what no flush made durable: any sectors of any write, the last renames; returns the writes hit.

        A file is durable as of its last flush, its name too; renames and removals as of the last flush of their folder.
        """
        chance = random.Random(f"power {seed}")
        operations = self.operations()
        self._undo_names(operations, chance)
        tails: dict[str, list[Operation]] = {}
        for operation in operations:
            if operation.kind in _OF_FILE:
                tails.setdefault(operation.path, []).append(operation)
            elif operation.kind in (_SYNC, _REMOVE):
                tails.pop(operation.path, None)
            elif operation.kind == _RENAME:
                tails[os.fsdecode(operation.new)] = tails.pop(operation.path, [])
        hit = 0
        for path, tail in tails.items():
            if tail and Path(path).is_file():
                Path(path).write_bytes(_rewritten(Path(path).read_bytes(), tail, chance))
                hit += len(tail)
        for shared in self.folder.glob("*-shm"):
            shared.unlink()
        return hit

    def _undo_names(self, operations: list[Operation], chance: random.Random) -> None:
        waiting: dict[str, list[Operation]] = {}
        for operation in operations:
            if operation.kind in _OF_FOLDER:
                changed = os.fsdecode(operation.new) if operation.kind == _RENAME else operation.path
                waiting.setdefault(str(Path(changed).parent), []).append(operation)
            elif operation.kind == _SYNC_FOLDER:
                waiting.pop(operation.path, None)
        for undone in waiting.values():
            for operation in reversed(undone[chance.randrange(len(undone) + 1) :]):
                if operation.kind == _REMOVE:
                    Path(operation.path).write_bytes(operation.old)
                else:
                    target = Path(os.fsdecode(operation.new))
                    if target.exists():
                        target.rename(operation.path)
                    if operation.offset:
                        target.write_bytes(operation.old)


def _rewritten(content: bytes, tail: list[Operation], chance: random.Random) -> bytes:
    """A file as it was at its last flush, with some sectors of what was written since."""
    now = bytearray(content)
    for operation in reversed(tail):
        end = operation.offset + len(operation.new if operation.kind == _WRITE else operation.old)
        if operation.kind == _TRUNCATE or (len(operation.old) < len(operation.new) and len(now) <= end):
            now[operation.offset :] = operation.old
        else:
            now[operation.offset : operation.offset + len(operation.old)] = operation.old
    share = chance.choice((0.0, 0.5, 0.9, 1.0))
    for operation in tail:
        if operation.kind == _TRUNCATE:
            if chance.random() < share:
                del now[operation.offset :]
            continue
        at = 0
        while at < len(operation.new):
            place = operation.offset + at
            size = min(SECTOR - place % SECTOR, len(operation.new) - at)
            if chance.random() < share:
                now.extend(bytes(max(0, place + size - len(now))))
                now[place : place + size] = operation.new[at : at + size]
            at += size
    return bytes(now)
