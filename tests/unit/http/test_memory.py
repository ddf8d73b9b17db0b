"""What processes of their own tell about memory: what the C library keeps, and what requests leave behind."""

import contextlib
import gc
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from pydantic import ValidationError

from heddle.errors import ValidationFailed
from heddle.inference.chat.request import parse_fields
from heddle.inference.chat.text_completions import TextCompletionRequest
from tests.support import garbage
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess, free_port

HEAP = 64 << 20
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


def test_requests_leave_nothing_for_the_garbage_collector(tmp_path: Path) -> None:
    """What a request leaves in circles keeps its body and its answer, for as long as thousands of others take."""
    command = [sys.executable, "-m", "tests.support.garbage", "serve", "--port", str(free_port())]
    command += ["--data", str(tmp_path), "--model", "none", "--auth", "off"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [int(line.split()[1]) for line in run.stdout.splitlines() if line.startswith("found ")]
    assert found, run.stdout + run.stderr
    assert found[0] < garbage.COUNT, run.stdout


def test_a_refused_body_is_in_no_circle() -> None:
    """An exception that its own frame names would keep the body until the next collection."""

    def refuse() -> None:
        with contextlib.suppress(ValidationFailed):
            parse_fields(TextCompletionRequest, {"model": "m"})

    refuse()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(5):
            refuse()
        gc.collect()
        # Threads of earlier tests may leave other things.
        assert not [item for item in gc.garbage if isinstance(item, (ValidationFailed, ValidationError))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def heaps_of_threads(pid: int) -> int:
    """How many heaps beside the first: glibc reserves 64 MiB for each, at a multiple of that."""
    found = [line.split()[0].split("-") for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    ends = {int(first, 16): int(last, 16) for first, last in found}
    return sum(
        1 for first, last in ends.items() if not first % HEAP and last - first < HEAP and ends.get(last) == first + HEAP
    )


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
@pytest.mark.parametrize("workers", with_breadth([1, 2]))
def test_threads_have_no_heaps_of_their_own(tmp_path: Path, workers: int) -> None:
    process = HeddleProcess(tmp_path / "data", model="none", workers=workers)
    process.may_fork = False
    with process, ThreadPoolExecutor(8) as pool, httpx.Client(base_url=process.url, timeout=60) as client:
        body = {"project_id": "team/threads"}
        answers = pool.map(lambda _: client.post("/calls/stream_query", json=body).status_code, range(32))
        assert set(answers) == {200}
        assert process.process is not None
        top = psutil.Process(process.process.pid)
        held = {child.pid: heaps_of_threads(child.pid) for child in (top, *top.children(recursive=True))}
        assert top.num_threads() > 3 and sum(held.values()) == 0, held
