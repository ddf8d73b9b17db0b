"""Runs a session on both sides, reports differences, and shortens the session that shows one."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from tests.conformance.differential.compare import differences, normal
from tests.conformance.differential.operations import Json, Operation
from tests.conformance.differential.sides import Heddle, Oracle, Session, now


@dataclass(frozen=True)
class Mismatch:
    """An operation that the two sides answer differently."""

    step: int
    operation: Operation
    found: list[str]
    expected: Json
    actual: Json

    def describe(self) -> str:
        """What was asked and how the answers differ, in a few lines."""
        lines = [f"operation {self.step}: {self.operation.verb} {self.operation.path}"]
        lines.append(cut(json.dumps(self.operation.body, ensure_ascii=False), 1500))
        lines += [f"  {line}" for line in self.found[:8]]
        lines.append(f"  oracle: {cut(json.dumps(self.expected, ensure_ascii=False), 600)}")
        lines.append(f"  heddle: {cut(json.dumps(self.actual, ensure_ascii=False), 600)}")
        return "\n".join(lines)


def cut(text: str, length: int) -> str:
    """The text, at most so long."""
    return text if len(text) <= length else text[:length] + "…"


def found_between(expected: Json, actual: Json) -> list[str]:
    """The differences of two normal answers; of different statuses nothing else is said."""
    if expected["status"] != actual["status"]:
        return [f"status: expected {expected['status']}, got {actual['status']}"]
    return list(differences(expected["body"], actual["body"]))


class Pair:
    """The oracle and a heddle server, with a new project for every session."""

    def __init__(self, url: str, label: str, oracle: Oracle | None = None) -> None:
        self.oracle = oracle or Oracle()
        self.heddle = Heddle(url)
        self.label = label
        self.count = 0

    def sessions(self) -> tuple[Session, Session]:
        """A new project on both sides, under the internal id that heddle chose."""
        self.count += 1
        project = f"differential/{self.label}-{self.count}"
        status, known = self.heddle.answer("POST", "/service/projects_info", {"project_ids": [project]})
        assert status == 200, known
        moment = now()
        internal = known[0]["internal_project_id"]
        self.oracle.answer("PROJECT", "", {"external": project, "internal": internal})
        left, right = Session(self.oracle, project, moment), Session(self.heddle, project, moment)
        # The adapter of the reference leaves the internal id in `pricing_level_id` of a call's costs.
        left.made[internal] = project
        return left, right

    def mismatches(self, operations: list[Operation | None]) -> Iterator[Mismatch]:
        """Run a session and yield every difference; None stands for an operation that was left out."""
        left, right = self.sessions()
        for step, operation in enumerate(operations):
            if operation is None:
                left.skip()
                right.skip()
                continue
            first, second = left.send(operation), right.send(operation)
            expected, actual = normal(operation, first, left.made), normal(operation, second, right.made)
            found = found_between(expected, actual)
            if found:
                yield Mismatch(step, operation, found, first[1], second[1])

    def shortened(self, operations: list[Operation], step: int, tries: int = 40) -> list[Operation | None]:
        """The operations up to `step` with as many left out as `tries` replays can find, still differing at the end."""
        kept: list[Operation | None] = [*operations[: step + 1]]
        block = max(step // 2, 1)
        while block and tries:
            for start in range(0, step, block):
                if not tries or not any(kept[start : min(start + block, step)]):
                    continue
                tries -= 1
                trial = [*kept]
                trial[start : min(start + block, step)] = [None] * (min(start + block, step) - start)
                if any(item.step == step for item in self.mismatches(trial)):
                    kept = trial
            block //= 2
        return kept

    def close(self) -> None:
        """End the oracle and the connections."""
        self.oracle.close()
        self.heddle.close()
