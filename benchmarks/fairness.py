"""Whether one request makes others wait: a 30,000-token prompt beside short chats, and an adapter that is new.

    python benchmarks/fairness.py
    python benchmarks/fairness.py --size 60m --prompt 8000

On the embedded engine without HTTP, with the random-weight models of `benchmarks/engine.py`.
"""

import argparse
import itertools
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import support
from benchmarks.engine import Prompts
from benchmarks.inference import models
from benchmarks.inference.contender import Contender, Running, stop_on_signal

CHATS = 4
LEAD = 8


def gaps(result: dict[str, Any], begin: float, end: float) -> list[float]:
    """Milliseconds between tokens of one chat, of those gaps that touch the given time."""
    moments: dict[int, list[float]] = defaultdict(list)
    for moment, stream, _ in result["events"]:
        if stream < CHATS:
            moments[stream].append(moment)
    pairs = [pair for times in moments.values() for pair in itertools.pairwise(times)]
    return [(later - earlier) * 1e3 for earlier, later in pairs if later > begin and earlier < end]


def row(name: str, values: Sequence[float], first: float | None) -> list[object]:
    """One line of the table."""
    spots = [support.percentile(values, share) for share in (0.5, 0.95, 0.99)]
    return [name, len(values), *spots, max(values), first]


def print_long_prompt(engine: Running, arguments: argparse.Namespace) -> None:
    """Gaps of the chats without and beside the long prompt."""
    prompts = Prompts(5)
    long = prompts.make(2, arguments.prompt)
    alone = engine.generate([long[0]], 1)
    quiet = engine.ask("beside", chats=prompts.make(CHATS, 50), tokens=300, long=[], lead=LEAD)
    chats = prompts.make(CHATS, 50)
    loud = engine.ask("beside", chats=chats, tokens=arguments.tokens, long=long[1], lead=LEAD)
    arrival, first = loud["arrival"], loud["first"]
    rows = [
        row("chats alone", gaps(quiet, 0, float("inf")), None),
        row("chats while the long prompt is read", gaps(loud, arrival, first), first - arrival),
        ["long prompt alone", *[None] * 5, alone.first[0]],
    ]
    columns = ["gap between tokens, ms", "gaps", "p50", "p95", "p99", "longest", "long prompt's first token, s"]
    support.print_table(
        f"{CHATS} chats beside a prompt of {arguments.prompt:,} tokens, {arguments.size}", columns, rows
    )


def print_adapters(engine: Running, size: str, count: int) -> None:
    """First token of a request for an adapter that was published a moment ago, beside the base model's."""
    prompts = Prompts(6)
    base = [engine.generate(prompts.make(1, 16), 8).first[0] * 1e3 for _ in range(count)]
    fresh, again = [], []
    with support.scratch_folder() as folder:
        for number in range(count):
            path = folder / str(number)
            models.make_adapter(size, path, seed=number)
            for values in (fresh, again):
                result = engine.ask(
                    "adapter", identity=f"bench/{number}", folder=str(path), prompt=prompts.make(1, 16)[0], tokens=8
                )
                values.append(result["first"][0] * 1e3)
    rows = [
        [name, support.percentile(values, 0.5), max(values)]
        for name, values in (("base model", base), ("new adapter (goal ≤ 50)", fresh), ("known adapter", again))
    ]
    title = f"first token of 16, adapters of rank 8 on 7 projections, {size}"
    support.print_table(title, [f"ms, {count} of each", "p50", "longest"], rows)


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="60m", choices=sorted(models.SHAPES))
    parser.add_argument("--prompt", type=int, default=30_000, help="tokens of the long prompt (default 30,000)")
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of each chat beside it (default 2,000)")
    parser.add_argument("--threads", type=int, default=0, help="compute threads (default the engine's own choice)")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--adapters", type=int, default=8, help="adapters published one after the other (default 8)")
    arguments = parser.parse_args()
    stop_on_signal()
    support.print_machine()
    folder = str(models.model_folder(arguments.size))
    engine = Running(Contender("heddle", "heddle", arguments.dtype), arguments.threads or 1)
    try:
        print(engine.ask("load", folder=folder, threads=arguments.threads, dtype=arguments.dtype))
        engine.generate(Prompts(0).make(4, 50), 16)
        print_adapters(engine, arguments.size, arguments.adapters)
        print_long_prompt(engine, arguments)
    finally:
        engine.close()
    support.print_machine()


if __name__ == "__main__":
    main()
