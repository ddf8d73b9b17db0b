"""What every training driver does around a gradient step: clocks, peak memory, the batch. Standard library only.

A batch file is JSON: `sequences` with `ids`, `mask` (true where a token is trained), `logprobs` of the policy that
sampled (null elsewhere), `advantage` and `weight`, both normalised over the batch.
"""

import ctypes
import json
import time
from collections.abc import Callable
from typing import Any


def read_batch(path: str) -> list[dict[str, Any]]:
    """The sequences of a batch file."""
    with open(path) as file:
        sequences: list[dict[str, Any]] = json.load(file)["sequences"]
    return sequences


def timed(step: Callable[[], dict[str, float]], count: int) -> list[dict[str, float]]:
    """What each of `count` steps reports, with its `wall` and `cpu` seconds."""
    results = []
    for _ in range(count):
        wall, cpu = time.perf_counter(), time.process_time()
        reported = step()
        results.append({**reported, "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu})
    return results


def forget_peak() -> None:
    """Give back what was freed, and begin the peak of resident memory anew (Linux)."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def memory() -> dict[str, float]:
    """Resident memory of this process now and at its peak, megabytes."""
    found = {}
    with open("/proc/self/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                found[name] = int(value.split()[0]) * 1024 / 1e6
    return {"now": found["VmRSS"], "peak": found["VmHWM"]}


def left(rows: list[list[Any]], fill: Any) -> list[list[Any]]:
    """Rows of one length, padded in front."""
    width = max(map(len, rows))
    return [[fill] * (width - len(row)) + row for row in rows]


def right(rows: list[list[Any]], fill: Any) -> list[list[Any]]:
    """Rows of one length, padded behind."""
    width = max(map(len, rows))
    return [row + [fill] * (width - len(row)) for row in rows]
