"""Driver of heddle's forward pass alone: no scheduler, no sampler but argmax, no second process.

python benchmarks/inference/drive_model.py --folder .cache/bench/models/60m --batch 8    # a profile of one step
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # as the engine's worker does, before torch allocates

import driver
import torch

from heddle.models.interfaces import Batch, CausalModel, KeyValueCache, Lane, Span
from heddle.models.load import load_model

PREFILL_ROWS = 1024


class Bare:
    """One model in this process."""

    model: CausalModel

    def load(self, folder: str, threads: int, dtype: str, **_: Any) -> dict[str, Any]:
        """Load on the CPU."""
        torch.set_num_threads(threads)
        self.model = load_model(Path(folder), device="cpu", dtype=dtype)
        return {"version": torch.__version__, "dtype": str(self.model.dtype).removeprefix("torch.")}

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """Prefill in steps of at most 1,024 tokens, then decode all together, greedily."""
        timeline = driver.Timeline(len(prompts), tokens, [os.getpid()])
        cache = self.model.new_cache()
        lanes = [cache.open_lane(len(prompt) + tokens) for prompt in prompts]
        last: list[int] = []
        while len(last) < len(prompts):
            group = prompts[len(last) : len(last) + max(1, PREFILL_ROWS // len(prompts[0]))]
            last += self.prefill(group, lanes[len(last) : len(last) + len(group)], cache)
        for stream in range(len(prompts)):
            timeline.token(stream)
        for step in range(1, tokens):
            last = self.decode(last, lanes, [len(prompt) + step - 1 for prompt in prompts], cache)
            for stream in range(len(prompts)):
                timeline.token(stream)
        return timeline.result()

    def decode_work(self, prompts: list[list[int]], room: int) -> Callable[[], object]:
        """A call that decodes one more token of each prompt, `room` times at most."""
        cache = self.model.new_cache()
        lanes = [cache.open_lane(len(prompt) + room) for prompt in prompts]
        last = [self.prefill([prompt], [lane], cache)[0] for prompt, lane in zip(prompts, lanes, strict=True)]
        steps = itertools.count()

        def work() -> None:
            step = next(steps)
            last[:] = self.decode(last, lanes, [len(prompt) + step for prompt in prompts], cache)

        return work

    def prefill_work(self, prompts: list[list[int]]) -> Callable[[], object]:
        """A call that computes the prompts anew."""
        cache = self.model.new_cache()
        lanes = [cache.open_lane(len(prompt)) for prompt in prompts]
        return lambda: self.prefill(prompts, lanes, cache)

    def prefill(self, prompts: list[list[int]], lanes: list[Lane], cache: KeyValueCache) -> list[int]:
        """The first token of each prompt."""
        spans = [Span(lane, 0, len(prompt)) for lane, prompt in zip(lanes, prompts, strict=True)]
        ends, row = [], 0
        for prompt in prompts:
            row += len(prompt)
            ends.append(row - 1)
        flat = torch.tensor([token for prompt in prompts for token in prompt])
        chosen: list[int] = self.model.forward(Batch(flat, spans, [], ends), cache).argmax(-1).tolist()
        return chosen

    def decode(self, last: list[int], lanes: list[Lane], positions: list[int], cache: KeyValueCache) -> list[int]:
        """One more token of each sequence."""
        spans = [Span(lane, position, 1) for lane, position in zip(lanes, positions, strict=True)]
        batch = Batch(torch.tensor(last), [], spans, range(len(last)))
        chosen: list[int] = self.model.forward(batch, cache).argmax(-1).tolist()
        return chosen


def main() -> None:
    """Where the time of a decode step goes, by operation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=100, help="prompt tokens of each sequence (default 100)")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--prefill", action="store_true", help="profile the prompts instead of the steps after them")
    parser.add_argument("--rows", type=int, default=14, help="operations listed (default 14)")
    arguments = parser.parse_args()
    bare = Bare()
    print(bare.load(arguments.folder, arguments.threads, arguments.dtype))
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(300, 16_000, (arguments.batch, arguments.length), generator=generator).tolist()
    work = bare.prefill_work(prompts) if arguments.prefill else bare.decode_work(prompts, 2 * arguments.steps + 4)
    for _ in range(4):
        work()
    times = []
    for _ in range(arguments.steps):
        began, cpu = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - began, time.process_time() - cpu))
    walls, cpus = zip(*times, strict=True)
    mean = sum(cpus) / len(cpus)
    print(f"step: best {min(walls) * 1e3:.3f} ms, CPU best {min(cpus) * 1e3:.3f} ms, mean {mean * 1e3:.3f} ms")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(arguments.steps):
            work()
    rows = sorted(profile.key_averages(), key=lambda row: -row.self_cpu_time_total)
    total = sum(row.self_cpu_time_total for row in rows)
    for row in rows[: arguments.rows]:
        each, calls = row.self_cpu_time_total / arguments.steps / 1000, row.count / arguments.steps
        print(f"{row.key[:44]:44} {each:8.3f} ms/step {row.self_cpu_time_total / total:5.1%} {calls:7.1f} calls")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main()
    else:
        bare = Bare()
        driver.serve({"load": bare.load, "generate": bare.generate})
