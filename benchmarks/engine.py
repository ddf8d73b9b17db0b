"""The embedded engine beside transformers, OpenVINO GenAI and vLLM, on the same model folders in the same run.

    python benchmarks/engine.py                               # installs the peers (3.7 GB) on the first run
    python benchmarks/engine.py --peers none --quick
    python benchmarks/engine.py --peers openvino --sizes 60m --threads 1

Every engine is a process in its own environment that gets token ids and gives token ids; what is measured takes turns
among them. Decode rates count the time in which every stream is decoding. The limits are the machine's: weights read
once per step at the measured bandwidth, multiplications at the measured rate. Quiet machines only: two threads that
share their cores with anything else show the scheduler's time slices instead of the engine. `--threads 1 --clock cpu`
counts CPU time instead, which a busy machine lengthens by a tenth or two only.
"""

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import support
from benchmarks.inference import models
from benchmarks.inference.contender import Contender, Failed, Run, Running, install, stop_on_signal
from benchmarks.inference.driver import cpu_seconds, family
from benchmarks.inference.goals import print_goals

BATCHES = (1, 8, 32)
PROMPT = 100
LONG_PROMPT = 512
TOKENS = 64
TRIES = 3
KEEP_PREFIXES = ("heddle", "openvino", "vllm")
FILE_BYTES = 2
"""Of each weight, as it lies in the model folder."""
PEERS = ("transformers", "openvino", "vllm")
SMALL = ("3m", "60m")
"""Sizes below 100 million parameters, which heddle computes in float32 unless told otherwise."""


@dataclass
class Figures:
    """What one engine showed with one model; lists hold one value per repeat."""

    clock: str
    """`wall`, or `cpu`: then every second below is one of all its processes' CPU time."""
    start: float = 0.0
    start_cpu: float = 0.0
    memory: float = 0.0
    about: dict[str, Any] = field(default_factory=dict)
    runs: dict[int, list[Run]] = field(default_factory=dict)
    short: list[Run] = field(default_factory=list)
    long: list[Run] = field(default_factory=list)
    again: list[Run] = field(default_factory=list)

    def rate(self, batch: int) -> float:
        """Tokens per second, median of the repeats."""
        if self.clock == "cpu":
            return self.cpu_rate(batch)
        return statistics.median(run.rate() for run in self.runs[batch])

    def best(self, batch: int) -> float:
        """Tokens per second of the best four steps in a row, by CPU time of the best repeat."""
        if self.clock == "cpu":
            return max(run.cpu_rate() for run in self.runs[batch])
        return max(run.best_rate() for run in self.runs[batch])

    def cpu_rate(self, batch: int) -> float:
        """Tokens per CPU-second, median of the repeats."""
        return statistics.median(run.cpu_rate() for run in self.runs[batch])

    def first(self, runs: Sequence[Run]) -> float:
        """Seconds to the first token, median of the repeats."""
        return statistics.median(run.cpu if self.clock == "cpu" else run.first[0] for run in runs)

    def prefill_cpu_rate(self) -> float:
        """Prompt tokens per CPU-second of the long prompt."""
        return LONG_PROMPT / statistics.median(run.cpu for run in self.long)


class Prompts:
    """Random token ids, never the same twice, so that no prefix is known."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def make(self, count: int, length: int) -> list[list[int]]:
        """`count` prompts of `length` tokens."""
        return [[self.random.randrange(300, models.ENTRIES) for _ in range(length)] for _ in range(count)]


def contenders(size: str, arguments: argparse.Namespace) -> list[Contender]:
    """heddle as it comes, in bfloat16 as the peers and in int8, and the peers."""
    device = {} if arguments.device == "cpu" else {"device": arguments.device}
    found = [Contender("heddle", "heddle", "auto", device)]
    if size in SMALL:
        found.append(Contender("heddle bf16", "heddle", "bfloat16", device))
    if arguments.device == "cpu":
        found.append(Contender("heddle int8", "heddle", "int8", device))
    if arguments.bare:
        found.append(Contender("forward pass bf16", "model", "bfloat16", device))
    if "transformers" in arguments.peers:
        found.append(Contender("transformers", "transformers", "bfloat16", device))
    if "openvino" in arguments.peers:
        found.append(Contender("openvino", "openvino", "auto"))
        found.append(Contender("openvino int8", "openvino", "auto", {"weights": "q8_0"}))
    if "vllm" in arguments.peers:
        cache = str(support.CACHE / "peers/vllm-cache")
        found.append(Contender("vllm", "vllm", "bfloat16", {"cache": cache}))
    return found


def start(contender: Contender, size: str, threads: int, figures: Figures) -> Running:
    """Start, load, and generate the first token: its seconds and CPU seconds."""
    running = Running(contender, threads)
    try:
        folder = str(models.model_folder(size))
        figures.about = running.ask("load", folder=folder, threads=threads, dtype=contender.dtype, **contender.options)
        running.generate(Prompts(0).make(1, 16), 1)
        figures.start = time.perf_counter() - running.started
        figures.start_cpu = cpu_seconds(family(running.process.pid))
        running.generate(Prompts(1).make(2, PROMPT), 8)
    except BaseException:
        running.close()
        raise
    return running


def rounds(repeats: int, engines: dict[str, Running]) -> Iterator[str]:
    """Each engine that still runs in turn, in another order each time."""
    names = list(engines)
    for number in range(repeats):
        first = number % len(names)
        yield from (name for name in names[first:] + names[:first] if name in engines)


def measure(engines: dict[str, Running], results: dict[str, Figures], arguments: argparse.Namespace) -> None:
    """All figures of one size; an engine that fails is named and left out from there on."""
    prompts = Prompts(2)
    for batch in (*sorted(BATCHES, reverse=True), 0):
        for name in rounds(arguments.repeats + (2 if batch == 0 else 0), engines):
            try:
                measure_once(engines[name], results[name], batch, prompts, arguments.tokens)
            except Failed as error:
                print(f"{name} left out: {error}", flush=True)
                engines.pop(name).close()
                del results[name]


def measure_once(engine: Running, figures: Figures, batch: int, prompts: Prompts, tokens: int) -> None:
    """Decoding of a batch; for 0 the first tokens of a short prompt, a long one, and the long one again."""
    if batch:
        figures.runs.setdefault(batch, []).append(decoding(engine, batch, prompts, tokens))
        figures.memory = figures.memory or engine.resident()
        return
    figures.short.append(engine.generate(prompts.make(1, 16), 1))
    prompt = prompts.make(1, LONG_PROMPT)
    figures.long.append(engine.generate(prompt, 1))
    figures.again.append(engine.generate(prompt, 1))


def decoding(engine: Running, batch: int, prompts: Prompts, tokens: int) -> Run:
    """A run in which all streams decode together for most of the time.

    Engines that keep prefixes get the prompts once before: they read prompts beside streams that already decode, and
    the first stream would end before the last begins.
    """
    for _ in range(TRIES):
        several = prompts.make(batch, PROMPT)
        if engine.contender.kind in KEEP_PREFIXES:
            engine.generate(several, 1)
        run = engine.generate(several, tokens)
        if run.decoded() >= batch * tokens // 2:
            return run
    raise Failed(f"{engine.contender.name}: the {batch} streams hardly ever decode together; is the machine busy?")


def measured_limits(size: str, arguments: argparse.Namespace) -> dict[str, float]:
    """What the machine can do with weights of this size."""
    running = Running(Contender("limits", "limits", ""), arguments.threads)
    try:
        running.ask("load", threads=arguments.threads, device=arguments.device)
        limits: dict[str, float] = running.ask("measure", weight_bytes=FILE_BYTES * models.matmul_parameters(size))
    finally:
        running.close()
    return limits


def multiply_rate(figures: Figures, limits: dict[str, float]) -> float:
    """Operations per second in this engine's type; what OpenVINO calls auto is bfloat16 where the processor has it.

    Those of 8 bits are not measured: torch has none that last.
    """
    return limits["float32" if figures.about["dtype"] == "float32" else "bfloat16"]


def step_limit(size: str, batch: int, figures: Figures, limits: dict[str, float]) -> float:
    """Tokens per second if a step took only as long as reading the folder's weights, or as multiplying by them."""
    weights = models.matmul_parameters(size)
    reading = FILE_BYTES * weights / limits["weights"]
    return batch / max(reading, 2 * weights * batch / multiply_rate(figures, limits))


def prefill_limit(size: str, figures: Figures, limits: dict[str, float]) -> float:
    """Seconds of multiplying the long prompt by the layers' weights, and its last token by the output head."""
    layers = models.matmul_parameters(size, head=False)
    return 2 * (layers * LONG_PROMPT + models.matmul_parameters(size) - layers) / multiply_rate(figures, limits)


def print_size(title: str, size: str, results: dict[str, Figures], limits: dict[str, float]) -> None:
    """Two tables of one size: decoding, and everything before it."""
    decode: list[list[object]] = []
    for name, figures in results.items():
        row: list[object] = [name, figures.about["dtype"]]
        for batch in BATCHES:
            limit = step_limit(size, batch, figures, limits)
            row += [figures.rate(batch), figures.best(batch), figures.cpu_rate(batch), figures.rate(batch) / limit]
        decode.append(row)
    columns = ["engine", "type"]
    for batch in BATCHES:
        columns += [f"batch {batch}: tok/s", "best", "tok/CPU-s", "of limit"]
    support.print_table(f"{title}: decoding", columns, decode)
    rows: list[list[object]] = []
    for name, figures in results.items():
        first, again = figures.first(figures.long), figures.first(figures.again)
        limit = prefill_limit(size, figures, limits)
        milliseconds = [figures.first(figures.short) * 1e3, first * 1e3, again * 1e3]
        rows.append([name, *milliseconds, first / again, limit / first, figures.prefill_cpu_rate()])
        rows[-1] += [figures.start, figures.start_cpu, figures.memory]
    columns = ["engine", "first token of 16, ms", "of 512, ms", "of the same 512 again, ms", "gain", "512: of limit"]
    columns += ["prompt tok/CPU-s", "start to first token, s", "CPU of it, s", "memory after batch 32, MB"]
    support.print_table(f"{title}: first token, start and memory", columns, rows)


def run_size(size: str, arguments: argparse.Namespace) -> dict[str, Figures]:
    """Limits, engines, figures and tables of one size; engines that fail are named and left out."""
    models.model_folder(size)
    limits = measured_limits(size, arguments)
    memory, weights = limits["memory"] / 1e9, limits["weights"] / 1e9
    rates = f"{limits['float32'] / 1e12:.3g} TFLOP/s float32, {limits['bfloat16'] / 1e12:.3g} bfloat16"
    print(f"\n{size}: memory {memory:.1f} GB/s, an array like its weights {weights:.1f} GB/s; {rates}", flush=True)
    results: dict[str, Figures] = {}
    engines: dict[str, Running] = {}
    try:
        for contender in contenders(size, arguments):
            figures = Figures(arguments.clock)
            try:
                install(contender.kind)
                engines[contender.name] = start(contender, size, arguments.threads, figures)
            except (Failed, subprocess.CalledProcessError) as error:
                print(f"{contender.name} left out: {error}", flush=True)
                continue
            results[contender.name] = figures
        measure(engines, results, arguments)
    finally:
        for engine in engines.values():
            engine.close()
    for name, figures in results.items():
        print(f"  {name}: {figures.about}", flush=True)
    print_size(f"{size}, {arguments.clock} time, {arguments.threads} threads", size, results, limits)
    decode = {name: step_limit(size, 1, figures, limits) for name, figures in results.items()}
    prefill = {name: prefill_limit(size, figures, limits) for name, figures in results.items()}
    print_goals(size, results, decode, prefill)
    return results


def main() -> None:
    """One size after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated, or none (default all)")
    parser.add_argument("--sizes", default="3m,60m,350m")
    parser.add_argument("--threads", type=int, default=2, help="compute threads of each engine (default 2)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"tokens per stream (default {TOKENS})")
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu, with --threads 1: figures that bear a busy machine",
    )
    parser.add_argument("--device", default="cpu", help="cpu, or cuda for heddle and transformers")
    parser.add_argument("--bare", action="store_true", help="also heddle's forward pass without engine and sampler")
    parser.add_argument("--quick", action="store_true", help="one repeat of 32 tokens")
    arguments = parser.parse_args()
    arguments.peers = [] if arguments.peers == "none" else arguments.peers.split(",")
    if unknown := set(arguments.peers) - set(PEERS):
        support.fail(f"unknown peers: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    if arguments.quick:
        arguments.repeats, arguments.tokens = 1, 32
    if arguments.clock == "cpu" and arguments.threads != 1:
        support.fail("--clock cpu needs --threads 1")
    stop_on_signal()
    support.print_machine()
    for size in arguments.sizes.split(","):
        run_size(size, arguments)
    support.print_machine()


if __name__ == "__main__":
    main()
