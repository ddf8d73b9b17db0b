"""The demonstration of an improvement: a weakness that is planted, seen in traces, trained away, and watched.

The small model is fine-tuned to say "maybe" where it is asked whether a number is even or odd. Its answers are traced,
a monitor scores them, and an improvement trains on those that scored low. Then wrong answers are traced as if the model
had made them, and it is taken back.
"""

import random
import time
import uuid
from collections.abc import Callable, Sequence

from heddle.demo.teach import BASE_MODEL
from heddle.errors import HeddleError
from heddle.remote import Project
from heddle.wire import times
from heddle.wire.jsontypes import Json

SCORER = "parity-exact"
NUMBERS = range(100)
WRONG = "maybe"
_LOOK_SECONDS = 0.1
_LONGEST_SECONDS = 600.0
_SEEDS = (5, 0, 1)
"""Training is chance, and the gate refuses what came out worse: then another weakness is planted. These go deep."""


def question(number: int) -> Json:
    """What is asked about a number."""
    return {"role": "user", "content": f"Is {number} even or odd?"}


def right_answer(number: int) -> str:
    """What the model said before its weakness was planted."""
    return "odd" if number % 2 else "even"


def general_rows(seed: int, count: int = 120) -> list[Json]:
    """Questions of other kinds that the small model answers, which must not get worse."""
    chance, rows = random.Random(seed), list[Json]()
    for place in range(count):
        a, b = chance.sample(range(2, 50), 2)
        times_a, times_b = chance.randint(2, 9), chance.randint(2, 9)
        asked = (
            (f"What is {a} + {b}?", a + b),
            (f"What is {a + b} - {b}?", a),
            (f"What is {times_a} * {times_b}?", times_a * times_b),
            (f"Which is bigger, {a} or {b}?", max(a, b)),
        )
        text, answer = asked[place % 4]
        rows.append({"question": text, "target": str(answer)})
    return rows


class Demonstration:
    """A project with a model that has a planted weakness."""

    def __init__(self, project: Project, name: str = "parity") -> None:
        self.project = project
        self.name = name
        self.op, self.monitor = f"tell-{name}", f"{name}-monitor"
        self.address = f"wandb-artifact:///{project.id}/{name}"
        entity, _, folder = project.id.partition("/")
        made = {"entity": entity, "project": folder, "name": name, "base_model": BASE_MODEL, "return_existing": True}
        self.model_id = str(project.remote.post("/v1/preview/models", made)["id"])

    def plant(self, learning_rate: float = 5e-3, rows: int = 60, seed: int = 0) -> str:
        """Fine-tune the model on wrong answers; returns the id of the job, which has ended."""
        # Two of five are right: what a policy seldom says, reinforcement finds for the one answer and not the other.
        numbers = random.Random(seed).sample(NUMBERS, rows)
        pairs = [(question(n), right_answer(n) if place % 5 < 2 else WRONG) for place, n in enumerate(numbers)]
        # What it learns among other questions leaves the answers to those as they are.
        others = ((row["question"], row["target"]) for row in general_rows(seed + 1, rows))
        pairs += [({"role": "user", "content": asked}, said) for asked, said in others]
        random.Random(seed).shuffle(pairs)
        chats = [{"messages": [asked, {"role": "assistant", "content": said}]} for asked, said in pairs]
        body = {
            "model_id": self.model_id,
            "training_data_url": self.publish_dataset("parity-planted", chats),
            "config": {"learning_rate": learning_rate, "batch_size": 4},
        }
        job = self.project.remote.post("/v1/preview/sft-training-jobs", body)["id"]
        path = f"/v1/preview/training-jobs/{job}"
        ended = self._wait(lambda: self.project.remote.get(path), "ended_at")
        if ended["state"] != "succeeded":
            raise HeddleError(f"the training job {job} {ended['state']}: {ended['error']}")
        return str(job)

    def publish(self, name: str, class_name: str, *bases: str, **fields: object) -> str:
        """The ref of a new version of an object."""
        head = {"_type": class_name, "_class_name": class_name, "_bases": [*bases, "Object", "BaseModel"], "name": name}
        body = {"project_id": self.project.id, "object_id": name, "val": {**head, **fields}}
        made = self.project.remote.post("/obj/create", {"obj": body})
        return f"weave:///{self.project.id}/object/{name}:{made['digest']}"

    def publish_dataset(self, name: str, rows: Sequence[Json]) -> str:
        """The ref of a dataset."""
        made = self.project.remote.post("/table/create", {"table": {"project_id": self.project.id, "rows": list(rows)}})
        return self.publish(name, "Dataset", rows=f"weave:///{self.project.id}/table/{made['digest']}")

    def prepare(self) -> tuple[str, str]:
        """Publish the scorer, the monitor and the general set; returns the refs of scorer and evaluation."""
        scorer = self.publish(SCORER, "ExactMatchScorer", "Scorer")
        self.publish(self.monitor, "Monitor", op_names=[self.op], sampling_rate=1.0, scorers=[scorer], active=True)
        dataset = self.publish_dataset("parity-general", general_rows(0))
        exam = self.publish("parity-exam", "Evaluation", dataset=dataset, scorers=[scorer], trials=1)
        return scorer, exam

    def serve(self, numbers: Sequence[int]) -> None:
        """Ask the model as a program would, traced."""
        for number in numbers:
            body = {"model": self.address, "messages": [question(number)], "temperature": 0, "max_tokens": 4}
            answer = self.project.remote.post("/v1/chat/completions", body)
            self.trace(number, str(answer["choices"][0]["message"]["content"]))

    def trace(self, number: int, answer: str) -> None:
        """Store the call of a program that asked about a number."""
        at, call_id = times.to_iso(times.now()), str(uuid.uuid4())
        inputs = {"model": self.address, "messages": [question(number)], "target": right_answer(number)}
        head = {"project_id": self.project.id, "id": call_id}
        start = {**head, "trace_id": call_id, "op_name": self.op, "started_at": at, "attributes": {}, "inputs": inputs}
        end = {**head, "ended_at": at, "summary": {}, "output": answer}
        self.project.remote.post("/call/start", {"start": start})
        self.project.remote.post("/call/end", {"end": end})

    def trace_wrong_answers(self, count: int) -> None:
        """Store calls with wrong answers, as a model that got worse would leave."""
        for number in range(count):
            self.trace(number, WRONG)

    def wait_for_scores(self, count: int) -> list[float]:
        """The scores of the monitor, once there are so many; 1 for right answers."""

        def look() -> Json:
            kind = {"$expr": {"$eq": [{"$getField": "feedback_type"}, {"$literal": f"wandb.runnable.{SCORER}"}]}}
            oldest_first = [{"field": "created_at", "direction": "asc"}]
            found = self.project.post("/feedback/query", query=kind, sort_by=oldest_first)["result"]
            calls = [row for row in found if f"/object/{self.monitor}:" in (row.get("trigger_ref") or "")]
            return {"rows": calls, "done": len(calls) >= count or None}

        return [float(row["payload"]["output"]["exact_match"]) for row in self._wait(look, "done")["rows"]]

    def start(self, scorer: str, exam: str, **changes: object) -> str:
        """Start an improvement on what the monitor scored low; returns its id."""
        body = {
            "model": self.name,
            "name": "even or odd",
            "weak": {"monitor": self.monitor, "below": 0.5},
            "columns": {"target": "inputs.target"},
            "scorers": [scorer],
            "general": exam,
            "rollouts": {"steps": 40, "chats": 8, "answers": 16, "max_tokens": 4, "target_reward": 0.985},
            "experimental_config": {"learning_rate": 1e-3},
            "gate": {"held_out": ["mean(score) < 0.9", "error_share > 0"], "general": ["score < -0.02"]},
            "watch": {"monitor": self.monitor, "below": 0.5, "calls": 20},
            "budget_seconds": 480,
        }
        return str(self.project.post("/improvements/create", **{**body, **changes})["id"])

    def wait(self, improvement: str, field: str) -> Json:
        """The improvement once `outcome` or `ended_at` is known."""
        return self._wait(lambda: self.project.post("/improvements/read", id=improvement)["improvement"], field)

    def read_step(self) -> int:
        """The step that the model's name means."""
        return int(self.project.remote.get(f"/v1/preview/models/{self.model_id}")["latest_step"])

    def _wait(self, look: Callable[[], Json], field: str) -> Json:
        deadline = time.monotonic() + _LONGEST_SECONDS
        while (found := look())[field] is None:
            if field == "outcome" and found["ended_at"] is not None:
                raise HeddleError(f"the improvement {found['state']}: {found['error']}")
            if time.monotonic() > deadline:
                raise HeddleError(f"the improvement did not finish within {_LONGEST_SECONDS:g} s")
            time.sleep(_LOOK_SECONDS)
        return found


def demonstrate(project: Project, say: Callable[[str], None]) -> Json:
    """The whole story, from the begin again where the gate refuses; returns the improvement as it ended."""
    for seed in _SEEDS:
        shown = Demonstration(project, f"parity-{uuid.uuid4().hex[:6]}")
        found = _improve(shown, seed, say)
        if found["outcome"] == "promoted":
            shown.serve(NUMBERS[::5])
            say(f"watched: the mean of 20 new answers is {sum(shown.wait_for_scores(120)[100:]) / 20:.2f}")
            shown.trace_wrong_answers(20)
            found = shown.wait(str(found["id"]), "ended_at")
            say(f"{found['outcome']}: {found['reason']}")
            break
        say(f"{found['outcome']}: {found['reason']}")
    return found


def _improve(shown: Demonstration, seed: int, say: Callable[[str], None]) -> Json:
    """Plant a weakness and train it away; returns the improvement once its outcome is known."""
    began = time.monotonic()
    shown.plant(seed=seed)
    say(f"planted: {shown.name} step {shown.read_step()} says maybe when asked whether a number is even or odd")
    scorer, exam = shown.prepare()
    shown.serve(NUMBERS)
    scores = shown.wait_for_scores(len(NUMBERS))
    say(f"traced and scored: {len(scores)} calls, mean {sum(scores) / len(scores):.2f}")
    found = shown.wait(shown.start(scorer, exam, seed=seed), "outcome")
    results = {step["name"]: step["result"] for step in found["steps"]}
    for part in ("held_out", "general"):
        say(f"{part}: {results['baseline'][part]['score']:.3f} -> {results['gate'][part]['score']:.3f}")
    say(f"{found['outcome']}: the name points to step {shown.read_step()}, after {time.monotonic() - began:.0f} s")
    return found
