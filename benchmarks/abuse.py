"""What hostile clients do to everybody else: /health, memory and the rate of 100 writers while each attack runs.

    python benchmarks/abuse.py                   # every attack, each on a server of its own
    python benchmarks/abuse.py --quick           # one or two of each kind
    python benchmarks/abuse.py --only headers --json abuse.json
    python benchmarks/abuse.py --workers 2       # the same with a server of two processes

The server runs with `--auth on` and has answered one completion, so that its model is loaded. One process asks for
/health every 10 ms on a kept connection, one sends the calls of 100 writers at a fixed pace, and one attacks; each
attack is compared with the seconds before it on the same server. The first row is the floor: the same prober and
writers without an attack. Exit code 1 where a bound is missed.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import orjson
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import load, payloads, support
from benchmarks.hostile import PROJECT, Attack, Seen, Target, ask, attack_list
from tests.support import attacks
from tests.support.cli import make_key

P99, WORST, GROWTH, LOSS = 50.0, 250.0, 100.0, 0.2
WRITERS, EACH_PER_SECOND, EVERY = 100, 3, 0.01
PATIENCE = 30.0
"""Seconds after which no answer is counted as this long."""
FLOOR = "none (the floor)"
COLUMNS = (
    "attack", "seen", "/health p50 ms", "p99", "worst", "p99 before", "memory +MiB", "writers/s", "before",
    "result",
)  # fmt: skip
Sample = tuple[float, float]


@dataclass
class Figures:
    """What one attack did: milliseconds of /health, MiB of growth, calls per second of the writers."""

    name: str
    seen: dict[str, int]
    p50: float
    p99: float
    worst: float
    p99_before: float
    growth: float
    rate: float
    rate_before: float
    alive: bool

    def missed(self) -> list[str]:
        """The bounds that it broke."""
        bounds = {
            "server gone": not self.alive, "p99": self.p99 > P99, "worst": self.worst > WORST,
            "memory": self.growth > GROWTH, "writers": self.rate < self.rate_before * (1 - LOSS),
        }  # fmt: skip
        return [name for name, broken in bounds.items() if broken]


def in_process(work: Callable[[Connection], object]) -> tuple[BaseProcess, Connection]:
    """A forked process that works and sends what came of it."""
    ours, theirs = load.FORK.Pipe()
    process = load.FORK.Process(target=lambda: theirs.send(work(theirs)), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def probe(port: int, stop: Connection) -> list[Sample]:
    """When /health was asked for and how long it took, every 10 ms over a kept connection, until told to stop."""
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # so that it measures the server, not its own turn on a busy core
    asked = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    samples: list[Sample] = []
    connection: socket.socket | None = None
    while not stop.poll():
        began = time.monotonic()
        try:
            connection = connection or socket.create_connection(("127.0.0.1", port), PATIENCE)
            connection.sendall(asked)
            fine = is_healthy(connection)
        except OSError:
            fine = False
        if not fine:
            connection = connection and connection.close()
        samples.append((began, time.monotonic() - began if fine else PATIENCE))
        time.sleep(max(0.0, EVERY - (time.monotonic() - began)) if fine else 0.1)
    return samples


def is_healthy(connection: socket.socket) -> bool:
    """Read one answer to its end; True for a 200."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        if not (part := connection.recv(65536)):
            return False
        answer += part
    top, _, body = answer.partition(b"\r\n\r\n")
    length = int(top.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < length and (part := connection.recv(65536)):
        body += part
    return top.startswith(b"HTTP/1.1 200") and len(body) == length


def write(port: int, key: str, stop: Connection) -> list[float]:
    """When each call of the writers was stored."""
    calls = payloads.Payloads(PROJECT, seed=7).calls(2000)
    headers = {"Authorization": f"Bearer {key}"}
    path = f"/v2/{PROJECT}/calls/complete"
    bodies = [load.raw_request("POST", path, orjson.dumps({"batch": [call]}), headers) for call in calls]
    moments: list[float] = []
    uvloop.run(write_all(port, bodies, moments, stop))
    return moments


async def write_all(port: int, bodies: Sequence[bytes], moments: list[float], stop: Connection) -> None:
    """A hundred writers, each with a connection and a pace of its own."""

    stored = Counter[str]()

    async def writer(number: int) -> None:
        await asyncio.sleep(number / WRITERS / EACH_PER_SECOND)
        place = number
        while True:
            with contextlib.suppress(OSError, EOFError):
                reader, sender = await asyncio.open_connection("127.0.0.1", port)
                while True:
                    began = time.monotonic()
                    sender.write(bodies[place % len(bodies)])
                    if await load.read_answer(reader) == 200:
                        moments.append(time.monotonic())
                        stored["calls"] += 1
                    place += WRITERS
                    await asyncio.sleep(max(0.0, 1 / EACH_PER_SECOND - (time.monotonic() - began)))
            await asyncio.sleep(0.2)

    tasks = [asyncio.create_task(writer(number)) for number in range(WRITERS)]
    while not stop.poll():
        await asyncio.sleep(0.05)
    for task in tasks:
        task.cancel()


class Memory:
    """The most memory that a process tree held, MiB, looked at every 0.2 s; shared pages count once."""

    def __init__(self, pid: int) -> None:
        self.pid, self.most, self._ended = pid, 0.0, threading.Event()
        self.before = support.proportional_megabytes(pid) * 1e6 / 2**20

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            self.most = max(self.most, support.proportional_megabytes(self.pid) * 1e6 / 2**20)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look as long as the block runs."""
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    @property
    def growth(self) -> float:
        """MiB above what it was at first."""
        return max(0.0, self.most - self.before)


def attacked(attack: Attack, target: Target) -> Seen:
    """Run the attack in a process of its own; what it saw."""

    async def bounded() -> Seen:

        try:
            return await asyncio.wait_for(attack.work(target), target.seconds * 2)  # type: ignore[arg-type]
        except TimeoutError:
            return Counter({"waiting": 1})

    process, answer = in_process(lambda _: uvloop.run(bounded()))
    seen: Seen = answer.recv() if answer.poll(target.seconds * 2 + 10) else Counter({"no answer": 1})
    process.kill()
    process.join()
    return seen


def measure(attack: Attack, seconds: float, workers: int) -> Figures:
    """Start a server, let prober and writers run, attack, and the figures of the seconds of the attack."""
    with support.scratch_folder() as folder:
        key = make_key(folder / "data", "writer")
        server = support.Heddle(folder / "data", auth="on", model="heddle-tiny", workers=workers).start()
        assert server.process is not None
        target = Target(server.port, key, seconds)
        try:
            # The first completion loads the model, about 200 MiB, whoever asks for it.
            uvloop.run(ask(target, attacks.request(attacks.CHAT, attacks.chat(), key)))
            prober = in_process(lambda stop: probe(target.port, stop))
            writers = in_process(lambda stop: write(target.port, key, stop))
            time.sleep(2)
            memory = Memory(server.process.pid)
            quiet = time.monotonic()
            time.sleep(seconds / 2)
            began = time.monotonic()
            with memory.watched():
                seen = attacked(attack, target)
                time.sleep(max(0.5, seconds / 2 - (time.monotonic() - began)))
            ended = time.monotonic()
            samples, moments = collected(prober), collected(writers)
            alive = server.process.poll() is None
        finally:
            server.kill()
    during, before = milliseconds(samples, began, ended), milliseconds(samples, quiet, began)
    return Figures(
        attack.name, dict(seen), *(support.percentile(during, share) for share in (0.5, 0.99)),
        max(during), support.percentile(before, 0.99), memory.growth, rate(moments, began, ended),
        rate(moments, quiet, began), alive,
    )  # fmt: skip


def collected(worker: tuple[BaseProcess, Connection]) -> Any:
    """Tell a process to stop, and what it has gathered."""
    process, pipe = worker
    pipe.send("stop")
    found = pipe.recv() if pipe.poll(PATIENCE + 5) else []
    process.kill()
    process.join()
    return found


def milliseconds(samples: Sequence[Sample], begin: float, end: float) -> list[float]:
    """How long /health took of those requests that were under way in a time."""
    return [took * 1000 for asked, took in samples if asked + took > begin and asked < end] or [PATIENCE * 1000]


def rate(moments: Sequence[float], begin: float, end: float) -> float:
    """Calls per second in a time."""
    return sum(begin <= moment < end for moment in moments) / (end - begin)


async def nothing(target: Target) -> Seen:
    """The floor: no attack."""

    await asyncio.sleep(target.seconds / 2)
    return Counter({"no attack": 1})


def row(found: Figures) -> list[object]:
    """One line of the table."""
    seen = ", ".join(f"{count} × {what}" for what, count in sorted(found.seen.items()))
    result = "FAIL: " + ", ".join(found.missed()) if found.missed() else "PASS"
    if found.name == FLOOR and found.missed():
        result = "this machine is too busy: " + ", ".join(found.missed())
    figures = (found.p50, found.p99, found.worst, found.p99_before, found.growth, found.rate, found.rate_before)
    return [found.name, seen, *(float(value) for value in figures), result]


def main() -> None:
    """The table; exit code 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one or two attacks of each kind")
    parser.add_argument("--only", default="", help="only attacks whose name contains this text")
    parser.add_argument("--seconds", type=float, default=10, help="how long an attack lasts at most (default 10)")
    parser.add_argument("--workers", type=int, default=1, help="processes of the server (default 1)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    support.print_machine()
    chosen = [one for one in attack_list() if arguments.only in one.name and (one.quick or not arguments.quick)]
    found = []
    for attack in (Attack(FLOOR, nothing), *chosen):
        found.append(measure(attack, arguments.seconds, arguments.workers))
        print(" | ".join(map(support.format_cell, row(found[-1]))), file=sys.stderr, flush=True)
    title = f"Hostile clients; bounds: p99 ≤ {P99:.0f} ms, worst ≤ {WORST:.0f} ms, +{GROWTH:.0f} MiB, writers −20 %"
    support.print_table(title, COLUMNS, [row(figures) for figures in found])
    support.print_machine()
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(figures) for figures in found], indent=1))
    raise SystemExit(any(figures.missed() for figures in found if figures.name != FLOOR))


if __name__ == "__main__":
    main()
