"""Whether a request's tokens and log-probabilities are bitwise the same whatever runs beside it, and in training.

    python benchmarks/exact.py                                # the included model
    python benchmarks/exact.py --model 60m --tokens 10000     # a seeded model of 60 million parameters

The first run answers 64 requests (half of them with an adapter) one after the other on one thread, without prefix
cache, chunks or preemption. Every further run changes one thing and counts the tokens and log-probabilities that have
other bits; the last ones compute the log-probabilities of all sampled tokens as a training job does.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.inference import models
from heddle.inference.engine.base import AdapterRef, Sampling, TokenRequest
from heddle.inference.engine.local.engine import EngineCore
from heddle.inference.engine.local.options import LocalOptions
from heddle.inference.served_model import TINY_FOLDER
from heddle.models.interfaces import CausalModel
from heddle.models.load import load_model
from heddle.training.trainer.models import EngineScorer, lay_out
from heddle.training.trainer.packing import Row
from tests.support.models import make_adapter

REQUESTS = 64
PROMPTS = (3, 16, 40, 97, 160)
"""Tokens of the prompts' own part."""
PREFIX = 50
"""Tokens that half of the prompts begin with."""
ROOMY = 2**30
Answer = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Setting:
    """How the requests are run; the defaults are those of the first run."""

    name: str = "alone"
    threads: int = 1
    batch: int = 1
    prefix_cache: bool = False
    chunk: int = 4096
    lanes: int = 0
    """Requests of the longest kind that memory has room for; 0 = enough for all."""
    only: str | None = None
    """Leave out the requests with an adapter (`plain`), or all but those with the first one (`adapted`)."""

    def has(self, request: TokenRequest, first: AdapterRef | None) -> bool:
        """Whether a request takes part."""
        return self.only is None or request.adapter == (first if self.only == "adapted" else None)


SETTINGS = (
    Setting("batch 2", batch=2),
    Setting("batch 7", batch=7),
    Setting("batch 64", batch=64),
    Setting("batch 64, no adapter beside", batch=64, only="plain"),
    Setting("batch 64, one adapter only", batch=64, only="adapted"),
    Setting("prefix cache", prefix_cache=True),
    Setting("prompts in chunks of 17", chunk=17),
    Setting("preemption, batch 16", batch=16, lanes=2),
    Setting("two threads", threads=2),
    Setting("all together", threads=2, batch=64, prefix_cache=True, chunk=33, lanes=3),
)


def make_requests(
    model: CausalModel, adapters: Sequence[Path], tokens: int, count: int = REQUESTS
) -> list[TokenRequest]:
    """Seeded prompts and draws; every second request without an adapter, the others take turns."""
    random = Random(1)
    prefix = random.choices(range(3, model.vocab_size), k=PREFIX)
    requests = []
    for number in range(count):
        own = random.choices(range(3, model.vocab_size), k=PROMPTS[number % len(PROMPTS)])
        adapter = adapters[number // 2 % len(adapters)] if number % 2 else None
        requests.append(
            TokenRequest(
                id=str(number),
                prompt=(*(prefix if number % 4 > 1 else ()), *own),
                sampling=Sampling(max_tokens=tokens, seed=number, temperature=1.0, ignore_eos=True, logprobs=0),
                adapter=AdapterRef(adapter.name, adapter) if adapter else None,
            )
        )
    return requests


def answer(
    model: CausalModel, folder: Path, requests: Sequence[TokenRequest], setting: Setting
) -> tuple[list[Answer], int]:
    """Tokens and log-probabilities of the requests, and how often one was preempted."""
    torch.set_num_threads(setting.threads)
    options = LocalOptions(
        folder,
        max_running=setting.batch,
        max_prefill=setting.chunk,
        max_prefill_beside=setting.chunk,
        prefix_cache=setting.prefix_cache,
    )
    cache = model.new_cache()
    longest = max(len(request.prompt) + request.sampling.max_tokens for request in requests)
    room = setting.lanes * cache.blocks_for(longest) * cache.block_bytes or ROOMY
    core = EngineCore(model, options, (), room)
    for number, request in enumerate(requests):
        core.add(number, request)
    answers: list[Answer] = [([], []) for _ in requests]
    while core.has_work:
        for event in core.step():
            assert event.failure is None and event.token is not None and event.logprobs is not None
            answers[event.number][0].append(event.token)
            answers[event.number][1].append(event.logprobs[1])
    return answers, core.scheduler.preemptions


def compare(wanted: Sequence[Answer], found: Sequence[Answer]) -> tuple[int, int, int, float]:
    """Tokens; other tokens; other log-probabilities before the first other token; their largest difference."""
    count, other, unequal, largest = 0, 0, 0, 0.0
    for (tokens, logprobs), (own_tokens, own_logprobs) in zip(wanted, found, strict=True):
        count += len(tokens)
        equal = [one == own for one, own in zip(tokens, own_tokens, strict=True)]
        same = equal.index(False) if False in equal else len(equal)
        other += len(tokens) - same
        differences = np.abs(np.array(logprobs[:same]) - np.array(own_logprobs[:same]))
        unequal += int((differences != 0).sum())
        largest = max(largest, float(differences.max(initial=0.0)))
    return count, other, unequal, largest


def make_row(requests: Sequence[TokenRequest], answers: Sequence[Answer]) -> Row:
    """The answers as a training job packs them, each behind its prompt."""
    parts: dict[str, list[np.ndarray]] = {name: [] for name in ("tokens", "positions", "segments", "mask", "logprobs")}
    for number, (request, (tokens, logprobs)) in enumerate(zip(requests, answers, strict=True)):
        prompt, length = len(request.prompt), len(request.prompt) + len(tokens)
        parts["tokens"].append(np.array([*request.prompt, *tokens]))
        parts["positions"].append(np.arange(length))
        parts["segments"].append(np.full(length, number))
        parts["mask"].append(np.arange(length) >= prompt)
        parts["logprobs"].append(np.array([np.nan] * prompt + logprobs))
    joined = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    ones = np.ones(len(joined["tokens"]))
    return Row(**joined, parents=joined["segments"], advantages=ones, weights=ones, sequences=len(requests))


def check_training(scorer: EngineScorer, row: Row, adapter: Path, threads: int) -> int:
    """Score a row as a training job does; how many log-probabilities differ."""
    torch.set_num_threads(threads)
    layout = lay_out(row, torch.device("cpu"))
    began = time.process_time()
    differences = (scorer.score(layout, adapter).double() - layout.known.old).abs()
    unequal = int((differences != 0).sum())
    print(
        f"in training, {threads} threads, {adapter.name}: {layout.trained:,} tokens, {unequal} other logprobs, "
        f"largest difference {differences.max():.2g} ({time.process_time() - began:.1f} CPU seconds)",
        flush=True,
    )
    return unequal


def load_on(folder: Path, dtype: str, threads: int) -> CausalModel:
    """The model as a process with so many threads reads it."""
    torch.set_num_threads(threads)
    return load_model(folder, device="cpu", dtype=dtype)


def main() -> None:
    """Print a line for each setting."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny", help="tiny, 3m, 60m, 350m or a folder")
    parser.add_argument("--tokens", type=int, default=10_000, help="sampled tokens of a run")
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    folder = TINY_FOLDER if options.model == "tiny" else Path(options.model)
    if options.model in models.SHAPES:
        folder = models.model_folder(options.model)
    by_threads = {threads: load_on(folder, options.dtype, threads) for threads in (1, 2)}
    model = by_threads[1]
    with tempfile.TemporaryDirectory() as place:
        adapters = [make_adapter(Path(place) / f"rank-{rank}", folder, rank=rank, seed=rank) for rank in (8, 4, 16)]
        requests = make_requests(model, adapters, -(-options.tokens // REQUESTS))
        print(f"{options.model}, {options.dtype}, {REQUESTS} requests", flush=True)
        began = time.process_time()
        first, _ = answer(model, folder, requests, Setting())
        print(f"alone: {time.process_time() - began:.1f} CPU seconds", flush=True)
        broken = 0
        for setting in SETTINGS:
            keeps = [number for number, request in enumerate(requests) if setting.has(request, requests[1].adapter)]
            began = time.process_time()
            found, preempted = answer(
                by_threads[setting.threads], folder, [requests[number] for number in keeps], setting
            )
            count, other, unequal, largest = compare([first[number] for number in keeps], found)
            broken += other + unequal
            seconds = time.process_time() - began
            print(
                f"{setting.name}: {count:,} tokens, {other} other tokens, {unequal} other logprobs, "
                f"largest difference {largest:.2g}, {preempted} preemptions ({seconds:.1f} CPU seconds)",
                flush=True,
            )
        for threads in (1, 2):
            scorer = EngineScorer(by_threads[threads])
            for adapter in adapters:
                own = [number for number, one in enumerate(requests) if one.adapter and one.adapter.path == adapter]
                row = make_row([requests[number] for number in own], [first[number] for number in own])
                broken += check_training(scorer, row, adapter, threads)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
