"""CPU seconds to the same held-out score: reinforcement learning, and distillation from the step that it has trained.

    python benchmarks/distillation.py
    python benchmarks/distillation.py --seeds 3 --tasks comparing

Each task is learned on the included model from rewards first. Then a fresh adapter samples its own answers and learns
from what the trained step gives their tokens, without a reward, until its greedy answers to the held-out problems score
as much; goal: a fifth of the CPU seconds. Seconds are those of the server and its processes, for rollouts and training;
the held-out answers are not counted on either side.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import support
from tests.support.distillation import COURSES, learn_from_rewards, learn_from_teacher

GOAL = 0.2
MOST_STEPS = 60


def row(name: str, seed: int) -> str:
    """One line of the table, from a server of its own."""
    course = COURSES[name]
    with tempfile.TemporaryDirectory() as folder, support.Heddle(Path(folder) / "data") as server:
        taught = learn_from_rewards(server, "bench/rewards", course, seed)
        told = learn_from_teacher(server, "bench/teacher", course, seed + 1, taught.address, taught.after, MOST_STEPS)
    share = told.seconds / taught.seconds
    verdict = "ok" if told.after >= taught.after and share <= GOAL else "missed"
    columns = [name, seed, f"{taught.before:.3f}"]
    for one in (taught, told):
        columns += [f"{one.after:.3f}", one.steps, one.rollouts, f"{one.seconds:.1f}"]
    return f"| {' | '.join(map(str, [*columns, f'{share:.2f}', verdict]))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tasks", nargs="*", choices=COURSES, default=list(COURSES))
    chosen = parser.parse_args()
    support.print_machine()
    print("| task | seed | before | RL | steps | rollouts | CPU-s | distilled | steps | rollouts | CPU-s | share | |")
    print(f"|{'---|' * 13}")
    for name in chosen.tasks:
        for seed in range(chosen.seeds):
            print(row(name, seed), flush=True)


if __name__ == "__main__":
    main()
