"""One question with its answer, and the thoughts that lead there at each effort."""

from dataclasses import dataclass
from random import Random

EFFORTS = ("low", "medium", "high")
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Turn:
    """`thoughts` are those of low, medium and high effort."""

    question: str
    answer: str
    thoughts: tuple[str, str, str]


def turn(question: str, answer: str, *thoughts: str) -> Turn:
    """A turn whose missing thoughts repeat the last one given."""
    padded = (*thoughts, *thoughts[-1:] * (3 - len(thoughts)))
    return Turn(question, answer, (padded[0], padded[1], padded[2]))


def letters(random: Random, low: int, high: int) -> str:
    """A random lower-case string of `low` to `high` letters."""
    return "".join(random.choice(LETTERS) for _ in range(random.randint(low, high)))


def listing(items: list[str], last: str = "and") -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"


def spaced(word: str) -> str:
    """`c a t`."""
    return " ".join(word)
