"""What the small model is taught in the demo: which of several words to prefer, told by nothing but a reward.

It says `yes` most and `maybe` least; the reward is the other way round.
"""

import itertools
import random

REWARDS = {"yes": 0.5, "no": 0.75, "maybe": 1.0}
_VERBS = ("respond with", "say", "answer with", "reply")
_EVALUATED = 16


def questions() -> list[str]:
    """Every question there is: each verb before every order of two or three words."""
    orders = [order for size in (2, 3) for order in itertools.permutations(REWARDS, size)]
    return [f"{verb} {', '.join(words[:-1])} or {words[-1]}" for verb in _VERBS for words in orders]


def split(seed: int = 0) -> tuple[list[str], list[str]]:
    """The questions for training, and those for the evaluation, which training never sees."""
    shuffled = questions()
    random.Random(seed).shuffle(shuffled)
    return shuffled[_EVALUATED:], shuffled[:_EVALUATED]


def reward(answer: str) -> float:
    """What an answer is worth; 0 when it is none of the words."""
    return REWARDS.get(answer.strip(), 0.0)
