"""How a process of the server holds memory: cyclic garbage, and what the C library keeps of what was freed."""

import ctypes
import gc
import threading
import time
from typing import Protocol

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
_OPTIONS = {_ARENA_MAX: 1, _MMAP_THRESHOLD: 4 << 20, _TRIM_THRESHOLD: 64 << 20}
"""Smaller blocks that are mapped apart, or given back at once, cost a page of calls a seventh more CPU."""
_RELEASE_SECONDS = 10.0


class _Allocator(Protocol):
    def mallopt(self, option: int, value: int) -> int: ...

    def malloc_trim(self, kept: int) -> int: ...


def limit_free_memory() -> None:
    """Keep little of what is freed, for as long as the process runs: https://man7.org/linux/man-pages/man3/mallopt.3.html.

    By default each thread frees into arenas of its own, and once one large block was freed the next ones lie in them,
    between small ones that live long: after 65,000 requests of fuzzing two thirds of the heap were free and kept. One
    arena, as only the top of the first is ever given back, and as threads that hold the GIL do not compete for it.
    """
    library: _Allocator = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return  # not glibc
    for option, value in _OPTIONS.items():
        library.mallopt(option, value)
    threading.Thread(target=_release, args=(library,), name="heddle-memory", daemon=True).start()


def _release(library: _Allocator) -> None:
    while True:
        time.sleep(_RELEASE_SECONDS)
        library.malloc_trim(0)


def collect_seldom() -> None:
    """Look for cyclic garbage seldom, and never among what was made at start.

    Requests make many objects and hardly a cycle; with the usual thresholds a third of the CPU of a batch goes there.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
