"""What was acknowledged survives a disk that fails or loses power at any operation; damage is named, never served.

Each round is one seed: which operation fails, how, what a power cut leaves of unflushed writes. A failure prints it;
`HEDDLE_FAULT_SEED=17 pytest tests/soak/test_storage_faults.py` runs one seed of each kind again.
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.soak.load import READERS, Item, Load, lost
from tests.soak.test_crash import assert_sound
from tests.support import scale
from tests.support.cli import heddle
from tests.support.faulty_disk import FAULTS, FaultyDisk
from tests.support.patience import strain
from tests.support.preload import has_compiler
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess

SOAK = os.environ.get("HEDDLE_SOAK") == "1"
ONE_SEED = os.environ.get("HEDDLE_FAULT_SEED")
SEEDS = [int(ONE_SEED)] if ONE_SEED else list(range(100 if SOAK else 2))
each_seed = pytest.mark.parametrize("seed", with_breadth(SEEDS))
pytestmark = [
    scale.on_sqlite,
    pytest.mark.skipif(not has_compiler(), reason="no C compiler (or not Linux): the disk cannot be made to fail"),
]


class Process(HeddleProcess):
    """Begun from nothing, as a library is put below it."""

    may_fork = False


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds; raises after a deadline that grows with the load of the machine."""
    deadline = time.monotonic() + 60 * strain()
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def write_until_cut(process: Process, disk: FaultyDisk, seed: int) -> Load:
    """What was acknowledged until the disk ended the server."""
    with disk.below(process):
        load = Load(process.url, seed).start()
        disk.arm()
        assert process.process is not None
        process.process.wait(60 * strain())
        load.stop()
    return load


def read_back(process: Process, acknowledged: list[Item], seed: int) -> None:
    """Every acknowledged thing is there after a start on a disk that is whole, and `heddle check` finds nothing."""
    checked = heddle("check", "--data", process.data)
    assert checked.returncode == 0, f"seed {seed}: {checked.stdout}{checked.stderr}"
    process.start()
    try:
        gone = lost(process.url, acknowledged)
        assert not gone, f"seed {seed}: {len(gone)} of {len(acknowledged)} lost, of them {gone[0]}"
    finally:
        process.kill()
    assert_sound(process.data)
    assert "Traceback" not in process.log(), f"seed {seed}: {process.log()[-3000:]}"


@each_seed
def test_power_cut_loses_nothing_acknowledged(tmp_path: Path, seed: int) -> None:
    """The power goes in the middle of an operation; of unflushed writes any sectors are there, of renames the first."""
    chance = random.Random(f"cut {seed}")
    process = Process(tmp_path / "data")
    disk = FaultyDisk(process.data, "cut", at=chance.randrange(1, 600))
    load = write_until_cut(process, disk, seed)
    assert not load.refused, f"seed {seed}: {load.refused[:3]}"
    assert disk.has_failed()
    hit = disk.cut_power(seed)
    print(f"power cut {seed}: operation {disk.at}, {hit} unflushed writes, {len(load.acknowledged)} acknowledged")
    read_back(process, load.acknowledged, seed)


@pytest.mark.parametrize("fault", with_breadth(FAULTS, keep=2))
@each_seed
def test_failing_operation_is_refused_and_no_more(tmp_path: Path, fault: str, seed: int) -> None:
    """Requests that an operation fails are refused with a reason, the next are stored, and then the power goes, too."""
    chance = random.Random(f"{fault} {seed}")
    process = Process(tmp_path / "data")
    disk = FaultyDisk(process.data, fault, at=chance.randrange(1, 300), count=chance.choice((1, 1, 4, 20)))
    with disk.below(process):
        loads = [Load(process.url, seed).start()]
        disk.arm()

        def has_failed() -> bool:
            # A writer ends with its first refusal, and there may be fewer writers than faults.
            if not any(thread.is_alive() for thread in loads[-1].threads):
                loads.append(Load(process.url, seed + len(loads) * 1000).start())
            return disk.has_failed()

        wait_until(has_failed, f"seed {seed}: the fault")
        for load in loads:
            load.stop()
        loads.append(Load(process.url, seed + 1_000_000).start())
        loads[-1].wait_for(30, 60 * strain())
        loads[-1].stop()
    refused = [text for load in loads for text in load.refused]
    assert all(text.startswith(("503", "507")) for text in refused), f"seed {seed}: {refused} {process.log()[-3000:]}"
    acknowledged = [item for load in loads for item in load.acknowledged]
    hit = disk.cut_power(seed)
    print(f"{fault} {seed}: operation {disk.at} ({disk.count}), {hit} unflushed, {len(acknowledged)} acknowledged")
    read_back(process, acknowledged, seed)


@each_seed
def test_flush_that_lies_is_never_silently_wrong(tmp_path: Path, seed: int) -> None:
    """A disk that answers flushes without doing them loses what it likes: what is read then is right, or is named."""
    chance = random.Random(f"lie {seed}")
    process = Process(tmp_path / "data")
    disk = FaultyDisk(process.data, "lie", at=chance.randrange(1, 200))
    load = write_until_cut(process, disk, seed)
    disk.cut_power(seed)
    checked = heddle("check", "--data", process.data)
    if checked.returncode:
        print(f"lie {seed}: check names {checked.stdout.splitlines()[-3:]}")
        return
    process.start()
    try:
        gone = lost(process.url, load.acknowledged)
        wrong = [item for item in gone if is_damaged(process.url, item)]
        assert not wrong, f"seed {seed}: {wrong[0]}"
    finally:
        process.kill()
    print(f"lie {seed}: sound, {len(gone)} of {len(load.acknowledged)} gone")


def is_damaged(url: str, item: Item) -> bool:
    """Whether what is read by the name of an item was never written.

    A call whose end is lost reads as its start, and a table that is lost as one without rows.
    """
    with httpx.Client(base_url=url, timeout=120) as client:
        found = READERS[item.kind](client, item.project, [item.identity]).get(item.identity)
    written = [item.value, None]
    if item.kind == "call":
        written.append({**item.value, "output": None, "ended": False})
    if item.kind == "table":
        written.append([])
    return found not in written
