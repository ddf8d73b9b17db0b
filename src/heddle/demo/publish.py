"""The publishing program: an evaluation that the server runs by itself, stored with the unmodified weave SDK.

The scorer is one that heddle has built in; an empty class of its name is all that a program needs of it.
"""

import sys

import weave

from heddle.demo import task

EVALUATION = "preferred-answers"


class ExactMatchScorer(weave.Scorer):
    """Built into heddle: is the answer the target?"""


class LevenshteinScorer(weave.Scorer):
    """Built into heddle: how near is the answer to the target?"""


def main(project: str) -> None:
    """Store the evaluation with its questions and scorers."""
    client = weave.init(project)
    _, questions = task.split()
    best = max(task.REWARDS, key=lambda word: task.REWARDS[word])
    rows = [{"question": question, "target": best} for question in questions]
    dataset = weave.Dataset(name="preferred-answers-questions", rows=rows)
    scorers = [ExactMatchScorer(name="exact"), LevenshteinScorer(name="near")]
    weave.publish(weave.Evaluation(name=EVALUATION, dataset=dataset, scorers=scorers))
    client.finish()


if __name__ == "__main__":
    main(*sys.argv[1:])
