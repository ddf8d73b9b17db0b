"""What the C library does with freed memory, asked of a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes
from heddle.http.memory import limit_free_memory

class Held(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

library = ctypes.CDLL(None)
library.mallinfo2.restype = Held
if {is_limited}:
    limit_free_memory()
first = library.mallinfo2().hblkhd
block = bytes(16 << 20)
del block
block = bytes(8 << 20)
print((library.mallinfo2().hblkhd - first) >> 20)
del block
print((library.mallinfo2().hblkhd - first) >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
@pytest.mark.parametrize(("is_limited", "mapped"), [(True, ["8", "0"]), (False, ["0", "0"])])
def test_large_blocks_stay_apart_from_the_heap_after_one_was_freed(is_limited: bool, mapped: list[str]) -> None:
    command = [sys.executable, "-c", PROGRAM.replace("{is_limited}", str(is_limited))]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split() == mapped
