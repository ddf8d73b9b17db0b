"""What the benchmarks share: the server, CPU and memory of processes, percentiles, the floor, tables, the machine."""

import contextlib
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import psutil

from tests.support.server import HeddleProcess

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "bench"
# Who starts a server starts it from bytecode, except for the very first time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


class Heddle(HeddleProcess):
    """`heddle serve` as users start it: a process that begins with nothing imported."""

    may_fork = False


def process_tree(pid: int) -> list[psutil.Process]:
    """The process and all its children, those that still live."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """CPU seconds of the process and its children, all threads, ended ones too; steps of 10 ms."""
    total = 0.0
    for process in process_tree(pid):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def fine_cpu_seconds(pid: int) -> float:
    """CPU seconds of one process's living threads in steps of nanoseconds, for single queries."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(task.read_text().split()[0])
    return total / 1e9


def resident_megabytes(pid: int) -> float:
    """Resident memory of the process and its children."""
    sizes = [process.memory_info().rss for process in process_tree(pid)]
    return sum(sizes) / 1e6


def private_megabytes(pid: int) -> float:
    """Resident memory without file pages, which the kernel takes back when it needs them."""
    info = psutil.Process(pid).memory_info()
    return float(info.rss - info.shared) / 1e6


def proportional_megabytes(pid: int) -> float:
    """Memory of the process and its children where pages that several of them share count once."""
    total = 0
    for process in process_tree(pid):
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total / 1e6


def settle(pid: int, limit: float = 60.0) -> float:
    """Wait until the processes use less than a tenth of a core for 2 s, at most `limit`; seconds waited."""
    began = time.perf_counter()
    quiet = 0
    while quiet < 2 and time.perf_counter() - began < limit:
        before = cpu_seconds(pid)
        time.sleep(1)
        quiet = quiet + 1 if cpu_seconds(pid) - before < 0.1 else 0
    return time.perf_counter() - began


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def folder_megabytes(folder: Path) -> float:
    """Bytes of all files below the folder."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a database that merges its files meanwhile
                total += Path(place, name).lstat().st_size
    return total / 1e6


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table in Markdown with aligned columns, so that it can be read here and pasted into docs."""
    cells = [[format_cell(value) for value in row] for row in [columns, *rows]]
    widths = [max(len(row[index]) for row in cells) for index in range(len(columns))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print(f"\n{title}\n\n" + "\n".join(lines), flush=True)


def format_cell(value: object) -> str:
    """Numbers with three significant digits, thousands with commas, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_machine() -> None:
    """Commit and command, then cores, memory, kernel, Python, time and load: without these no figure means anything."""
    print(f"commit {commit_of(ROOT)}; {shlex.join(['python', *sys.argv])}")
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    memory = psutil.virtual_memory().total / 2**30
    system = f"{platform.system()} {platform.release()}"
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    print(f"{now}; {os.cpu_count()} cores, {memory:.0f} GiB, {system}, Python {platform.python_version()}; load {load}")


def commit_of(checkout: Path) -> str:
    """The commit of a checkout in short, and whether something of it was changed since."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=, changed", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder on the disk of the repository (not in memory), removed at the end."""
    CACHE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="scratch-", dir=CACHE))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def parse_and_append(bodies: Sequence[bytes], folder: Path) -> tuple[float, float]:
    """The floor: CPU seconds of `orjson.loads` and a raw append per body; wall seconds with fdatasync after each."""
    path = folder / "floor.bin"
    with path.open("wb", buffering=0) as file:
        began = time.process_time()
        for body in bodies:
            orjson.loads(body)
            file.write(body)
        cpu = time.process_time() - began
    with path.open("wb", buffering=0) as file:
        wall = time.perf_counter()
        for body in bodies:
            orjson.loads(body)
            file.write(body)
            os.fdatasync(file.fileno())
        wall = time.perf_counter() - wall
    path.unlink()
    return cpu, wall


def spread(values: Sequence[float]) -> str:
    """Median with the range, for figures of few repeats."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def fail(message: str) -> None:
    """End the program with a message and exit code 1."""
    print(message, file=sys.stderr)
    raise SystemExit(1)
