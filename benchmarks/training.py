"""The training step beside TRL's and the plain padded one, on the same data in the same run; publishing; growth.

    python benchmarks/training.py                      # installs TRL (1.5 GB) on the first run
    python benchmarks/training.py --peers none --quick
    python benchmarks/training.py --only growth

Every trainer is a process in its own environment with one thread, float32, the shipped model (or `--model`) and the
same adapter. All get the same token ids, masks, advantages and log-probabilities, and take turns. heddle's driver runs
whole jobs on the code path of its worker process: from the stored body to the durable checkpoint; its gradient step is
the part that the peers are timed for. The last part asks a real server.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import support
from benchmarks.inference.contender import Contender, Failed, Running, install, stop_on_signal
from benchmarks.trainers import publishing
from benchmarks.trainers.data import Data, Shape, make, set_logprobs, write_batch
from heddle.training import files
from heddle.training.queue.process import ENVIRONMENT
from tests.support.models import make_adapter

HERE = Path(__file__).resolve().parent / "trainers"
MODEL = support.ROOT / "src/heddle/demo/tiny/model"
SHORT = Shape()
OWN = "trainer"
LEARNING_RATE = 1e-4
GOAL_JOB = 0.25
PEERS = ("trl",)
PARTS = ("step", "growth", "publish")
LENGTHS = (48, 128, 512, 1024, 2048, 4096)
GROUPS = (1, 2, 4, 8, 16, 32, 64)

OBJECTIVES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default (CISPO, ratio 0 to 5)": ({}, {"loss_type": "cispo", "low": 1.0, "high": 5.0, "level": "token"}),
    "CISPO, ratio to 1.2": (
        {"epsilon": 1.0, "epsilon_high": 0.2},
        {"loss_type": "cispo", "low": 1.0, "high": 1.2, "level": "token"},
    ),
    "PPO, 0.8 to 1.2": ({"ppo": True}, {"loss_type": "dapo", "low": 0.2, "high": 0.2, "level": "token"}),
    "PPO, ratio of sequences": (
        {"ppo": True, "importance_sampling_level": "sequence"},
        {"loss_type": "dapo", "low": 0.2, "high": 0.2, "level": "sequence"},
    ),
}
"""Settings of heddle and of TRL's GRPOTrainer that mean the same."""


@dataclass(frozen=True)
class Trainer(Contender):
    """A trainer under measurement."""

    def script(self) -> Path:
        """Its driver."""
        return HERE / f"drive_{self.kind}.py"

    def environment(self) -> dict[str, str]:
        """heddle's driver gets what the server gives its training processes."""
        return ENVIRONMENT if self.kind == OWN else {}


@dataclass
class Figures:
    """What one trainer showed with one shape of data; lists hold one value per step."""

    tokens: int
    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    job: list[float] = field(default_factory=list)
    """CPU seconds of whole jobs, where there are jobs."""
    memory: float = 0.0
    peak: float = 0.0

    def add(self, answer: dict[str, Any]) -> None:
        """Take in the answer of a driver to `run`."""
        for step in answer["steps"]:
            self.cpu.append(step["cpu"])
            self.wall.append(step["wall"])
            if "job" in step:
                self.job.append(step["job"])
        self.memory, self.peak = answer["now"], max(self.peak, answer["peak"])

    @property
    def step(self) -> float:
        """CPU seconds of a gradient step, median."""
        return statistics.median(self.cpu)

    @property
    def rate(self) -> float:
        """Tokens per CPU-second; tokens of prompts count for each sequence."""
        return self.tokens / self.step


@dataclass
class Bench:
    """The trainers that run, the model that they train, and a folder for data."""

    model: Path
    folder: Path
    engines: dict[str, Running] = field(default_factory=dict)

    def give(self, shape: Shape) -> Data:
        """Make data of a shape, sampled by a policy a little beside the adapter, and give it to every trainer."""
        data = make(shape, self.model)
        path = write_batch(data, self.folder / f"{shape.name}.json")
        self.engines["padded"].ask("batch", path=str(path))
        set_logprobs(data, self.engines["padded"].ask("logprobs")["logprobs"], self.model)
        write_batch(data, path)
        body = self.folder / f"{shape.name}.zst"
        body.write_bytes(files.write_payload({"trajectory_groups": data.groups}))
        for name, engine in self.engines.items():
            engine.ask("batch", path=str(body if name == "heddle" else path))
        return data

    def measure(self, data: Data, repeats: int, count: int) -> dict[str, Figures]:
        """`count` steps of each in turns, `repeats` times, after one of each to get warm."""
        results = {name: Figures(data.tokens) for name in self.engines}
        for engine in self.engines.values():
            engine.ask("run", count=1)
        for _ in range(repeats):
            for name, engine in self.engines.items():
                results[name].add(engine.ask("run", count=count))
        return results


@contextmanager
def trainers(arguments: argparse.Namespace, folder: Path) -> Iterator[Bench]:
    """heddle, the padded step and the peers, loaded; a peer that fails is named and left out."""
    adapter = make_adapter(folder / "adapter", arguments.model)
    options = {"folder": str(arguments.model), "adapter": str(adapter), "threads": 1, "learning_rate": LEARNING_RATE}
    bench = Bench(arguments.model, folder)
    with ExitStack() as stack:
        for name in ("heddle", "padded", *arguments.peers):
            kind = OWN if name == "heddle" else name
            try:
                install(kind)
                running = Running(Trainer(name, kind, "float32"), threads=1)
                stack.callback(running.close)
                running.ask("load", **options)
                bench.engines[name] = running
            except (Failed, subprocess.CalledProcessError) as error:
                if name not in PEERS:
                    support.fail(str(error))
                print(f"{name} left out: {error}", flush=True)
        yield bench


def print_steps(title: str, data: Data, results: dict[str, Figures]) -> None:
    """The table of one shape."""
    own = results["heddle"]
    rows: list[list[object]] = []
    for name, figures in results.items():
        job = statistics.median(figures.job) * 1e3 if figures.job else None
        wall = statistics.median(figures.wall) * 1e3
        ratio = figures.step / own.step
        rows.append([name, figures.step * 1e3, min(figures.cpu) * 1e3, wall, job, figures.rate, f"{ratio:.2f}x"])
        rows[-1] += [figures.memory, figures.peak]
    columns = ["trainer", "gradient step, CPU ms", "best", "wall ms", "whole job, CPU ms", "tokens/CPU-s"]
    columns += ["time / heddle's", "memory, MB", "peak, MB"]
    shape = f"{len(data.sequences)} sequences, {data.tokens:,} tokens, {data.trained:,} of them trained"
    support.print_table(f"{title}: {shape}", columns, rows)


def step_part(arguments: argparse.Namespace, folder: Path) -> None:
    """64 short trajectories: time, memory, and the same loss as TRL."""
    with trainers(arguments, folder) as bench:
        data = bench.give(SHORT)
        if "trl" in bench.engines:
            print_objectives(bench.engines)
        results = bench.measure(data, arguments.repeats, arguments.steps)
        print_steps("64 short trajectories", data, results)
        if arguments.model != MODEL:
            return
        job = statistics.median(results["heddle"].job)
        met = "met" if job <= GOAL_JOB else "missed"
        print(f"\ngoal: a whole job in {GOAL_JOB:g} CPU-s on one thread; {job:.3f} measured: {met}", flush=True)


def print_objectives(engines: dict[str, Running]) -> None:
    """Loss and gradient under settings that mean the same; before any step, as the peers learn from step to step."""
    rows: list[list[object]] = []
    for name, (settings, equivalent) in OBJECTIVES.items():
        own = engines["heddle"].ask("loss", settings=settings)
        engines["trl"].ask("settings", **equivalent)
        other = engines["trl"].ask("loss")
        difference = abs(own["loss"] - other["loss"])
        norms = abs(own["grad_norm"] - other["grad_norm"])
        rows.append([name, f"{own['loss']:.7f}", f"{other['loss']:.7f}", f"{difference:.1e}"])
        rows[-1] += [f"{own['grad_norm']:.6f}", f"{other['grad_norm']:.6f}", f"{norms:.1e}"]
    columns = ["objective", "loss", "TRL's", "difference", "norm of the gradient", "TRL's", "difference"]
    support.print_table("The same loss, float32", columns, rows)


def growth_part(arguments: argparse.Namespace, folder: Path) -> None:
    """Cost as sequences grow longer, with a shared prompt and with long answers, and as groups become more."""
    lengths = LENGTHS[: 3 if arguments.quick else None]
    groups = GROUPS[: 4 if arguments.quick else None]
    members = 4
    prompts = [Shape(1, members, length - 16, 16) for length in lengths]
    answers = [Shape(1, members, 32, length - 32) for length in lengths]
    with trainers(arguments, folder) as bench:
        title = f"one group of {members}"
        print_growth(f"Length, {title}, a long shared prompt and answers of 16", "tokens", prompts, bench)
        print_growth(f"Length, {title}, a prompt of 32 and long answers", "tokens", answers, bench)
        print_growth("Groups of 8 times 48 tokens", "groups", [Shape(count) for count in groups], bench)


def print_growth(title: str, what: str, shapes: Sequence[Shape], bench: Bench) -> None:
    """One table: CPU seconds of all gradient steps of a job, tokens per second and peak memory."""
    rows: list[list[object]] = []
    for shape in shapes:
        data = bench.give(shape)
        results = bench.measure(data, 1, 2 if data.tokens < 20_000 else 1)
        size = shape.groups if what == "groups" else shape.prompt + shape.answer
        own = results["heddle"]
        row: list[object] = [size, data.tokens, own.step, statistics.median(own.job), own.rate, own.peak]
        for name in list(results)[1:]:
            row += [f"{results[name].step / own.step:.2f}x", results[name].peak]
        rows.append(row)
    columns = [what, "tokens of all sequences", "heddle's steps, CPU s", "job, CPU s", "tokens/CPU-s", "peak, MB"]
    for name in list(bench.engines)[1:]:
        columns += [f"{name}, time / heddle's", "peak, MB"]
    support.print_table(title, columns, rows)


def publish_part(arguments: argparse.Namespace, folder: Path) -> None:
    """From the last gradient step to the end of the job, and to the first answer of the new policy."""
    data = make(SHORT, MODEL)
    publishing.print_publishing(data.groups, folder, 5 if arguments.quick else 20)


def main() -> None:
    """The chosen parts, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=",".join(PEERS), help="trl, or none (default trl)")
    parser.add_argument("--only", choices=PARTS, help="one part instead of all")
    parser.add_argument(
        "--model", type=Path, default=MODEL, help="a model folder for step and growth (default: shipped)"
    )
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="steps in a row of each trainer (default 5)")
    parser.add_argument("--quick", action="store_true", help="few steps, short lengths")
    arguments = parser.parse_args()
    arguments.peers = [] if arguments.peers == "none" else arguments.peers.split(",")
    if unknown := set(arguments.peers) - set(PEERS):
        support.fail(f"unknown peers: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    if arguments.quick:
        arguments.repeats, arguments.steps = 1, 3
    stop_on_signal()
    support.print_machine()
    parts = {"step": step_part, "growth": growth_part, "publish": publish_part}
    for name in [arguments.only] if arguments.only else PARTS:
        with support.scratch_folder() as folder:
            parts[name](arguments, folder)
    support.print_machine()


if __name__ == "__main__":
    main()
