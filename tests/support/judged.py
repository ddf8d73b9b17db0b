"""A project with evaluation runs to look at: one evaluation, runs of several models of known skill, over plain HTTP."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.conftest import Wire
from tests.support.evaluations import Lab
from tests.support.stored_runs import Writer

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Judged:
    """What was written; `runs` are ids by the name of the model."""

    wire: Wire
    lab: Lab
    evaluation: str
    runs: dict[str, str]

    @property
    def project(self) -> str:
        """The id of the project."""
        return self.wire.project


def rows_of(count: int) -> list[Json]:
    """Questions with their answers; two in scripts that run from right to left or are very long."""
    rows = [
        {"question": f"How long is parcel {number} on its way?", "target": f"{number} days"} for number in range(count)
    ]
    rows[0] = {"question": "كم يومًا يستغرق الطرد؟ 📦", "target": "يومان"}
    rows[1] = {"question": "Why does it take so long? " * 80, "target": "Nobody knows."}
    return rows


def answers_of(rows: Sequence[Json], skill: float, seconds: float) -> list[Json]:
    """Answers of which the first `skill` are right; the very last one failed."""
    answers = []
    for place, row in enumerate(rows):
        right = place < skill * len(rows)
        score = {
            "exact": {"correct": right},
            "overlap": {"token_f1": 1.0 if right else 0.25},
            "near": {"letter_distance": 0 if right else 7},
            "stars": 5 if right else 2,
        }
        text = row["target"] if right else f"perhaps {row['target']} or more"
        answers.append({"output": text, "scores": score, "seconds": seconds * (1 + place % 3)})
    answers[-1] = {"output": None, "seconds": seconds}
    return answers


def judged(wire: Wire, models: dict[str, float], rows: int = 40) -> Judged:
    """Runs of models over one dataset; `models` gives each its skill."""
    lab, writer = Lab(wire), Writer(wire.post, wire.project)
    data = rows_of(rows)
    dataset, digests = writer.dataset("parcels", data)
    scorers = [lab.scorer("ExactMatchScorer", name="exact"), lab.scorer("TextOverlapScorer", name="overlap")]
    evaluation = writer.evaluation("parcel-times", dataset, scorers)
    runs = {}
    for at, (name, skill) in enumerate(models.items()):
        model = lab.model("heddle-tiny", name=name)
        runs[name] = writer.run(evaluation, dataset, digests, model, answers_of(data, skill, 0.2 + at / 10), at * 60)
    return Judged(wire, lab, evaluation, runs)


def noisy(seed: int, count: int) -> list[float]:
    """Differences with a mean a little above 0."""
    generator = random.Random(seed)
    return [generator.gauss(0.1, 0.5) for _ in range(count)]
