"""The unmodified ART client's whole loop: 25 times 64 rollouts and a training job, yes/no/maybe; goal 90 s of wall.

    python benchmarks/art.py
    python benchmarks/art.py --seeds 3 --learning-rate 2e-3

Each seed gets a server of its own, with its defaults. The client polls once a second, so that a job takes it a second
at least, whatever the server does.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import support
from benchmarks.inference.driver import cpu_seconds, family
from tests.support.art import art_client

GOAL_WALL = 90.0
GOAL_GAIN = 0.2


def loop(folder: Path, seed: int, learning_rate: float) -> dict[str, Any]:
    """One loop against a fresh server; what the client saw, and the CPU seconds of the server's processes."""
    with support.Heddle(folder / "data") as server:
        assert server.process is not None
        client = art_client(server.url, f"bench/seed-{seed}", folder)
        settings = json.dumps({"seed": seed, "learning_rate": learning_rate})
        seen = client.run("loop.py", timeout=900, SCENARIO_LOOP=settings)
        seen["server_cpu"] = cpu_seconds(family(server.process.pid))
    return seen


def row(seed: int, seen: dict[str, Any]) -> str:
    """One line of the table."""
    steps = seen["steps"]
    first, last = steps[0]["reward"], statistics.mean(step["reward"] for step in steps[-3:])
    verdict = "ok" if last >= first + GOAL_GAIN and seen["wall_s"] <= GOAL_WALL else "missed"
    rollouts, jobs = (sum(step[name] for step in steps) for name in ("rollout_s", "train_s"))
    slowest = max(step["train_s"] for step in steps)
    return (
        f"| {seed} | {first:.3f} | {last:.3f} | {seen['wall_s']:.1f} | {rollouts:.1f} | {jobs:.1f} | {slowest:.2f} | "
        f"{seen['server_cpu']:.1f} | {verdict} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    chosen = parser.parse_args()
    print(f"goals: mean reward of the last three steps >= first + {GOAL_GAIN}, wall <= {GOAL_WALL:.0f} s")
    print("| seed | reward first | last 3 | wall s | rollouts s | train calls s | slowest s | server CPU-s | |")
    print("|---|---|---|---|---|---|---|---|---|")
    started = time.monotonic()
    for seed in range(chosen.seeds):
        with tempfile.TemporaryDirectory() as folder:
            print(row(seed, loop(Path(folder), seed, chosen.learning_rate)), flush=True)
    print(f"total {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
