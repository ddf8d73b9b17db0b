"""heddle beside Arize Phoenix and MLflow: the same spans by OTLP/HTTP, what storing them costs, what a stop loses.

    python benchmarks/peers.py                    # installs the peers into .clients/peers/ on the first run
    python benchmarks/peers.py --only heddle mlflow --spans 2000

Each takes the very same protobuf requests. Every server starts with an empty folder, takes the load, is stopped by
SIGTERM right after an answer, and by `kill -9` right after another.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import orjson
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import load, otlp, support
from benchmarks.payloads import Call, Payloads

INSTALLS = support.ROOT / ".clients" / "peers"
OTLP_HEADERS = {"Content-Type": "application/x-protobuf"}
IDLE_SECONDS = 5
"""Logs that a server empties when it has nothing to do are none of the disk that a span takes."""


class Server(ABC):
    """One product: how it starts, how a batch of calls reaches it, how many it has stored."""

    name: str
    ready_path: str
    ingest_path: str
    headers: dict[str, str]

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """The command line that serves `folder` on `port`."""

    @abstractmethod
    def stored(self) -> int:
        """How many calls a reader finds now."""

    def environment(self) -> dict[str, str]:
        """Variables beside those of this process."""
        return {}

    @property
    def pid(self) -> int:
        """The process that was started, parent of all the others."""
        assert self.process is not None
        return self.process.pid

    def start(self, limit: float = 180.0) -> float:
        """Start and wait for the first good answer; seconds until then."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"DO_NOT_TRACK": "true"} | self.environment()
        began = time.perf_counter()
        with (self.folder.parent / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env=environment, cwd=self.folder, start_new_session=True
            )
        while not self.answers():
            if self.process.poll() is not None or time.perf_counter() - began > limit:
                self.kill()
                raise RuntimeError(f"{self.name} did not start; its log is {log.name}")
            time.sleep(0.02)
        return time.perf_counter() - began

    def answers(self) -> bool:
        """True when the ready path answers 200."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.ready_path}", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def send(self, calls: Sequence[Call], batch: int, clients: int) -> load.LoadResult:
        """Send the calls in batches; every answer must be 200."""
        bodies = [otlp.export_request(calls[first : first + batch]) for first in range(0, len(calls), batch)]
        requests = [load.raw_request("POST", self.ingest_path, body, self.headers) for body in bodies]
        result = load.drive(self.port, requests, clients)
        if set(result.statuses) != {200}:
            raise RuntimeError(f"{self.name} answered {dict(result.statuses)}")
        return result

    def terminate(self, limit: float = 30.0) -> float:
        """SIGTERM and wait, then `kill -9` when it takes too long; seconds until it was gone."""
        assert self.process is not None
        began = time.perf_counter()
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(limit)
        taken = time.perf_counter() - began
        self.kill()
        return taken

    def kill(self) -> None:
        """`kill -9` of the process and everything it started."""
        if self.process is None:
            return
        children = support.process_tree(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        self.process.wait()


class Heddle(Server):
    """This repository's server."""

    name = "heddle"
    ready_path = "/ready"
    ingest_path = "/otel/v1/traces"
    headers = OTLP_HEADERS | {"project_id": "bench/chat"}

    def command(self) -> list[str]:
        return [sys.executable, "-m", "heddle", "serve", "--port", str(self.port), "--data", str(self.folder)]

    def stored(self) -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/calls/query_stats",
            data=b'{"project_id":"bench/chat"}',
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(orjson.loads(answer.read())["count"])


class Peer(Server):
    """A peer that keeps its spans in one SQLite file."""

    ingest_path = "/v1/traces"
    database: str

    def stored(self) -> int:
        with contextlib.closing(sqlite3.connect(f"file:{self.folder / self.database}?mode=ro", uri=True)) as database:
            return int(database.execute("SELECT count(*) FROM spans").fetchone()[0])


class Phoenix(Peer):
    """Arize Phoenix with its default store."""

    name = "phoenix"
    ready_path = "/healthz"
    headers = OTLP_HEADERS
    database = "phoenix.db"

    def command(self) -> list[str]:
        return [str(INSTALLS / "phoenix/bin/phoenix"), "serve"]

    def environment(self) -> dict[str, str]:
        return {
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(self.port),
            "PHOENIX_GRPC_PORT": str(self.port + 1),
            "PHOENIX_WORKING_DIR": str(self.folder),
            "PHOENIX_TELEMETRY_ENABLED": "false",
        }


class Mlflow(Peer):
    """MLflow with one worker and SQLite."""

    name = "mlflow"
    ready_path = "/health"
    headers = OTLP_HEADERS | {"x-mlflow-experiment-id": "0"}
    database = "mlflow.db"

    def command(self) -> list[str]:
        store = f"sqlite:///{self.folder / self.database}"
        folder = str(self.folder / "artifacts")
        program = str(INSTALLS / "mlflow/bin/mlflow")
        options = ["--backend-store-uri", store, "--default-artifact-root", folder, "--workers", "1"]
        return [program, "server", "--host", "127.0.0.1", "--port", str(self.port), *options]

    def environment(self) -> dict[str, str]:
        # The program looks for uvicorn on the path.
        path = f"{INSTALLS / 'mlflow/bin'}{os.pathsep}{os.environ['PATH']}"
        return {"MLFLOW_DISABLE_TELEMETRY": "true", "PATH": path}


SERVERS: dict[str, type[Server]] = {"heddle": Heddle, "mlflow": Mlflow, "phoenix": Phoenix}
PACKAGES = {"mlflow": "mlflow", "phoenix": "arize-phoenix"}


def install(name: str) -> None:
    """Install a peer into an environment of its own, once."""
    home = INSTALLS / name
    if name not in PACKAGES or (home / "bin" / name).exists():
        return
    print(f"installing {PACKAGES[name]} into .clients/peers/{name}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    command = [str(home / "bin/pip"), "install", "-qq", "--disable-pip-version-check", PACKAGES[name]]
    subprocess.run(command, check=True)


def wait_until_stored(server: Server, expected: int, patience: float) -> tuple[int, float]:
    """Poll until all are stored or nothing moves for `patience` seconds: the count and the moment it was reached."""
    last, moved = server.stored(), time.perf_counter()
    while last < expected and time.perf_counter() - moved < patience:
        time.sleep(0.05)
        now = server.stored()
        if now != last:
            last, moved = now, time.perf_counter()
    return last, moved


def loss(server: Server, calls: Sequence[Call], batch: int, stop: str) -> tuple[int, float]:
    """Acknowledged calls that are gone after a stop right behind the last answer; seconds of the start that follows."""
    before = server.stored()
    server.send(calls, batch, clients=2)
    if stop == "SIGTERM":
        server.terminate()
    else:
        server.kill()
    restart = server.start()
    after, _ = wait_until_stored(server, before + len(calls), patience=3)
    return before + len(calls) - after, restart


def measure(server: Server, arguments: argparse.Namespace) -> dict[str, float]:
    """All figures of one product."""
    payloads = Payloads()
    calls = [list(payloads.calls(count)) for count in (200, arguments.spans, 1000, 1000)]
    figures: dict[str, float] = {"ready": server.start()}
    support.settle(server.pid)
    figures["idle"] = support.proportional_megabytes(server.pid)
    server.send(calls[0], 100, clients=1)
    warm, _ = wait_until_stored(server, len(calls[0]), patience=arguments.patience)
    support.settle(server.pid)

    cpu, began = support.cpu_seconds(server.pid), time.perf_counter()
    answered = server.send(calls[1], arguments.batch, arguments.clients)
    total, reached = wait_until_stored(server, warm + len(calls[1]), arguments.patience)
    stored = total - warm
    figures["cpu"] = (support.cpu_seconds(server.pid) - cpu) / max(1, stored) * 1e6
    figures["answered"] = len(calls[1]) / answered.wall
    figures["stored"] = stored / (reached - began)
    figures["p50"] = support.percentile(answered.latencies, 0.5) * 1000
    figures["loaded"] = support.proportional_megabytes(server.pid)
    support.settle(server.pid)
    time.sleep(IDLE_SECONDS)
    figures["disk"] = support.folder_megabytes(server.folder) * 1e6 / max(1, total)
    figures["lost_term"], figures["restart_term"] = loss(server, calls[2], arguments.batch, "SIGTERM")
    figures["lost_kill"], figures["restart_kill"] = loss(server, calls[3], arguments.batch, "SIGKILL")
    return figures


ROWS = (
    ("cpu", "server CPU per stored span, µs"),
    ("answered", "spans answered per s"),
    ("stored", "spans stored per s"),
    ("p50", "answer to a batch, p50 ms"),
    ("idle", "memory idle (shared pages once), MB"),
    ("loaded", "memory after the load, MB"),
    ("disk", "disk per span, bytes"),
    ("ready", "start to ready, empty folder, s"),
    ("restart_kill", "start to ready after kill -9, s"),
    ("lost_term", "of 1,000 answered spans lost at SIGTERM"),
    ("lost_kill", "of 1,000 answered spans lost at kill -9"),
)


def print_figures(figures: dict[str, dict[str, float]]) -> None:
    """The table, with each peer's figure as a multiple of heddle's."""
    names = list(figures)
    peers = [name for name in names if name != "heddle"] if "heddle" in figures else []
    rows: list[list[object]] = []
    for key, label in ROWS:
        row: list[object] = [label, *(figures[name][key] for name in names)]
        for peer in peers:
            own = figures["heddle"][key]
            row.append(f"{figures[peer][key] / own:.3g}x" if own and not key.startswith("lost") else None)
        rows.append(row)
    support.print_table("heddle and its peers", ["figure", *names, *(f"{peer} / heddle" for peer in peers)], rows)


def main() -> None:
    """Measure the chosen products one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sorted(SERVERS), default=sorted(SERVERS))
    parser.add_argument("--spans", type=int, default=3000, help="spans of the load (default 3000)")
    parser.add_argument("--batch", type=int, default=100, help="spans per request (default 100)")
    parser.add_argument("--clients", type=int, default=4, help="connections (default 4)")
    parser.add_argument(
        "--patience", type=float, default=20, help="seconds without progress after which spans count as lost"
    )
    parser.add_argument("--port", type=int, default=18470, help="first of two free ports")
    arguments = parser.parse_args()
    support.print_machine()
    figures: dict[str, dict[str, float]] = {}
    with support.scratch_folder() as scratch:
        for name in arguments.only:
            install(name)
            server = SERVERS[name](scratch / name, arguments.port)
            try:
                figures[name] = measure(server, arguments)
                print(f"{name}: done", flush=True)
            except Exception:
                log = scratch / f"{name}.log"
                shutil.copy(log, support.CACHE / log.name)
                print(f"{name}: log kept as {support.CACHE / log.name}", file=sys.stderr)
                raise
            finally:
                server.kill()
    print_figures(figures)
    support.print_machine()


if __name__ == "__main__":
    main()
