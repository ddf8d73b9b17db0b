"""Verifiable tasks for reinforcement learning on the tiny model; plain Python, so that any client can use them.

A task draws problems; a problem is a prompt and the reward of an answer to it.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Draw = Callable[[random.Random], "Problem | Sum"]
VERBS = ("respond with", "say", "answer with", "reply")
PREFERENCES = {"yes": 0.5, "no": 0.75, "maybe": 1.0}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


@dataclass(frozen=True)
class Problem:
    """A question and the answer that is wanted; empty where the answer's own word decides."""

    question: str
    answer: str = ""

    def reward(self, text: str) -> float:
        """1 for the right answer and 0 for any other; without a right answer, what the word is worth."""
        text = text.strip()
        return float(text == self.answer) if self.answer else PREFERENCES.get(text, 0.0)


def choice(chance: random.Random) -> Problem:
    """Yes, no or maybe in any order: maybe is liked best, and the tiny model says it least."""
    options = chance.sample(list(PREFERENCES), chance.randint(2, 3))
    return Problem(f"{chance.choice(VERBS)} {', '.join(options[:-1])} or {options[-1]}")


def compare(chance: random.Random) -> Problem:
    """Two numbers of three digits; the tiny model has only seen numbers of two."""
    numbers = chance.sample(range(100, 1000), 2)
    word, answer = chance.choice((("bigger", max(numbers)), ("smaller", min(numbers))))
    return Problem(f"Which is {word}, {numbers[0]} or {numbers[1]}?", str(answer))


def double(chance: random.Random) -> Problem:
    """Twice a number of two digits; the tiny model only knows the multiplication table up to ten."""
    number = chance.randint(10, 99)
    form = chance.choice(("What is {} * 2?", "What is {} times 2?", "{} * 2 = ?"))
    return Problem(form.format(number), str(2 * number))


def held_out(draw: Draw, count: int, seed: int = 999) -> dict[str, "Problem | Sum"]:
    """So many different problems, by their question, that training must leave alone."""
    chance = random.Random(seed)
    problems: dict[str, Problem | Sum] = {}
    while len(problems) < count:
        problem = draw(chance)
        problems[problem.question] = problem
    return problems


def another(draw: Draw, chance: random.Random, left_alone: dict[str, "Problem | Sum"]) -> "Problem | Sum":
    """A problem that is not among the held-out ones."""
    while (problem := draw(chance)).question in left_alone:
        pass
    return problem


@dataclass(frozen=True)
class Sum:
    """Two numbers to be added by the tool `add`, asked for in words that the tiny model often misreads."""

    first: int
    second: int
    form: str

    @property
    def question(self) -> str:
        """What the user says."""
        return self.form.format(self.first, self.second)

    def is_right_call(self, calls: list[tuple[str, str]]) -> bool:
        """True for one call of `add` with both numbers; a call is a name and its arguments as text."""
        wanted = {"a": self.first, "b": self.second}
        return len(calls) == 1 and calls[0][0] == "add" and arguments(calls[0][1]) == wanted

    def reward(self, calls: list[tuple[str, str]], answer: str) -> float:
        """Half for the right call, half for an answer that ends with the sum."""
        said = answer.strip().rstrip(".").split()
        right = bool(said) and said[-1] == str(self.first + self.second)
        return 0.5 * self.is_right_call(calls) + 0.5 * (right and bool(calls))


SUMS = ("Use the tool for {} and {}.", "Call add with {} and {}.", "Add {} and {}.", "Sum of {} and {}?")


def tool_sum(chance: random.Random) -> Sum:
    """A sum of two-digit numbers."""
    return Sum(chance.randint(10, 99), chance.randint(10, 99), chance.choice(SUMS))


def arguments(text: str) -> Any:
    """The arguments of a call; None where they are no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def run_tool(name: str, text: str) -> str:
    """What the tool `add` answers to a call, good or bad."""
    given = arguments(text)
    if name != "add":
        return f"there is no tool {name}"
    if not isinstance(given, dict) or not all(isinstance(given.get(key), int) for key in ("a", "b")):
        return "a and b must be numbers"
    return str(given["a"] + given["b"])
