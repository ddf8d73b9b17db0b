"""What heddle takes before anybody asks it anything: start, memory, size on disk, import time.

    python benchmarks/footprint.py
    python benchmarks/footprint.py --calls 1000000    # start and memory with a big folder, also after kill -9

The floor in the same run is a bare Python process, and one that imports fastapi and uvicorn and nothing of ours.
"""

import argparse
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import orjson

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import folders, load, payloads, support
from heddle.extras import DISTRIBUTION

COLUMNS = ("figure", "median (range)", "goal")
IMPORTS = (
    ("python alone", "pass"),
    ("import fastapi, uvicorn, orjson, sqlite3", "import fastapi, uvicorn, orjson, sqlite3"),
    ("import heddle.app", "import heddle.app"),
    ("heddle --help", "import sys; sys.argv = ['heddle', '--help']; import heddle.__main__ as m; m.main()"),
)


def run_seconds(code: str, repeats: int) -> list[float]:
    """Wall seconds of `python -c code`, start and end of the process included."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    return times


def start_seconds(data: Path) -> tuple[float, support.Heddle]:
    """Start a server on this folder; seconds until `/ready` answers 200."""
    server = support.Heddle(data)
    began = time.perf_counter()
    server.start()
    return time.perf_counter() - began, server


def empty_starts(repeats: int) -> tuple[list[float], list[float], list[float], float]:
    """Wall and CPU seconds to ready with a new folder, idle memory, and CPU seconds per minute of idling."""
    times, busy, memory, idle = [], [], [], 0.0
    with support.scratch_folder() as folder, support.Heddle(folder / "data"):
        pass  # Bytecode is written once.
    for _ in range(repeats):
        with support.scratch_folder() as folder:
            taken, server = start_seconds(folder / "data")
            with stopped_at_end(server) as pid:
                busy.append(support.cpu_seconds(pid))
                support.settle(pid, limit=10)
                memory.append(support.resident_megabytes(pid))
                before = support.cpu_seconds(pid)
                time.sleep(2)
                idle = (support.cpu_seconds(pid) - before) * 30
            times.append(taken)
    return times, busy, memory, idle


def worker_starts(repeats: int) -> tuple[list[float], list[float]]:
    """CPU seconds and resident memory of a web worker that has answered nothing, the mean of two, per start."""
    busy, memory = [], []
    for _ in range(repeats):
        with support.scratch_folder() as folder, support.Heddle(folder / "data", workers=2) as server:
            assert server.process is not None
            children = support.process_tree(server.process.pid)[1:]
            workers = [child.pid for child in children if "heddle.web_workers" in child.cmdline()]
            busy.append(sum(map(support.fine_cpu_seconds, workers)) / len(workers))
            memory.append(sum(map(support.resident_megabytes, workers)) / len(workers))
    return busy, memory


@contextlib.contextmanager
def stopped_at_end(server: support.Heddle) -> Iterator[int]:
    """The process id of a started server, which a SIGTERM ends after the block."""
    assert server.process is not None
    try:
        yield server.process.pid
    finally:
        server.terminate()


def killed_starts(data: Path, repeats: int, calls: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds to ready after a clean stop and after `kill -9` right behind writes, and the CPU of the latter."""
    clean, killed, busy = [], [], []
    batch = list(payloads.Payloads("bench/killed", seed=5).calls(calls))
    bodies = [orjson.dumps({"batch": batch[first : first + 100]}) for first in range(0, len(batch), 100)]
    requests = [load.raw_request("POST", "/v2/bench/killed/calls/complete", body) for body in bodies]
    for _ in range(repeats):
        taken, server = start_seconds(data)
        clean.append(taken)
        load.drive(server.port, requests, clients=4)
        server.kill()
        taken, server = start_seconds(data)
        killed.append(taken)
        with stopped_at_end(server) as pid:
            busy.append(support.cpu_seconds(pid))
    return clean, killed, busy


def installed() -> list[tuple[str, float]]:
    """Megabytes on disk of heddle's dependencies and of theirs, without extras, biggest first."""
    sizes: dict[str, float] = {}
    waiting = [DISTRIBUTION]
    while waiting:
        name = waiting.pop()
        if name in sizes:
            continue
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        paths = [Path(str(path.locate())) for path in package.files or ()]
        sizes[name] = sum(path.stat().st_size for path in paths if path.is_file()) / 1e6
        waiting += [needed for requirement in package.requires or () if (needed := plain_name(requirement))]
    sizes[DISTRIBUTION] = support.folder_megabytes(support.ROOT / "src")
    return sorted(sizes.items(), key=lambda pair: -pair[1])


def plain_name(requirement: str) -> str | None:
    """The package of a requirement, None where it belongs to an extra."""
    text, _, marker = requirement.partition(";")
    if "extra" in marker:
        return None
    name = "".join(letter if letter.isalnum() or letter in "-_." else " " for letter in text).split()[0]
    return name.lower().replace("_", "-")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--calls", type=int, default=100_000, help="calls of the big folder, 0 for none (default 100000)"
    )
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    big = folders.built_folder(arguments.calls)[0] if arguments.calls else None
    support.print_machine()
    rows: list[list[object]] = []
    for label, code in IMPORTS:
        rows.append([f"{label}, s", support.spread(run_seconds(code, arguments.repeats)), None])
    times, busy, memory, idle = empty_starts(arguments.repeats)
    rows.append(["start to ready, new folder, s", support.spread(times), "≤ 1.0 on a free core"])
    rows.append(["  CPU of it, s", support.spread(busy), None])
    rows.append(["resident memory idle, MB", support.spread(memory), "≤ 90"])
    rows.append(["CPU while idle, s per minute", idle, None])
    busy, memory = worker_starts(arguments.repeats)
    rows.append(["a web worker (--workers 2): CPU of its start, s", support.spread(busy), None])
    rows.append(["  its resident memory, MB", support.spread(memory), None])
    if big is not None:
        clean, killed, busy = killed_starts(big, min(3, arguments.repeats), calls=5000)
        rows.append([f"start to ready, {arguments.calls:,} calls, s", support.spread(clean), "≤ 1.5 on a free core"])
        rows.append(["  the same after kill -9 behind 5,000 writes, s", support.spread(killed), "≤ 1.5 on a free core"])
        rows.append(["  CPU of it, s", support.spread(busy), None])
    sizes = installed()
    rows.append([f"installed size of {len(sizes)} packages, MB", sum(size for _, size in sizes), None])
    support.print_table("Footprint", COLUMNS, rows)
    print("\nbiggest packages: " + ", ".join(f"{name} {size:.1f} MB" for name, size in sizes[:8]))
    support.print_machine()


if __name__ == "__main__":
    main()
