"""The evaluating program, on the unmodified weave SDK.

It evaluates a policy that heddle serves and prints what it found as a JSON line; or it stores an evaluation with
built-in scorers, which the server runs by itself.
"""

import asyncio
import json
import sys
from functools import cache
from typing import Any

import weave
from openai import AsyncOpenAI

from heddle.demo.teach import REWARDS, reward_answer, split_questions

_TRIALS = 3


class ExactMatchScorer(weave.Scorer):
    """Built into heddle: is the answer the target?"""


class LevenshteinScorer(weave.Scorer):
    """Built into heddle: how near is the answer to the target?"""


def publish(project: str, name: str) -> None:
    """Store the evaluation with its questions and scorers."""
    client = weave.init(project)
    _, questions = split_questions()
    best = max(REWARDS, key=lambda word: REWARDS[word])
    rows = [{"question": question, "target": best} for question in questions]
    dataset = weave.Dataset(name=f"{name}-questions", rows=rows)
    scorers = [ExactMatchScorer(name="exact"), LevenshteinScorer(name="near")]
    weave.publish(weave.Evaluation(name=name, dataset=dataset, scorers=scorers))
    client.finish()


@cache
def _client(address: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{address}/v1", api_key="demo")


@weave.op
def preference(output: str) -> dict[str, Any]:
    """The scorer: what the answer is worth."""
    return {"reward": reward_answer(output)}


class Policy(weave.Model):
    """One step of the model that is taught, reached through the OpenAI SDK."""

    address: str
    model: str

    @weave.op
    async def predict(self, question: str) -> str:
        """One sampled answer."""
        answer = await _client(self.address).chat.completions.create(
            model=self.model, messages=[{"role": "user", "content": question}], temperature=1.0, max_tokens=8
        )
        return answer.choices[0].message.content or ""


async def main(address: str, project: str, model: str) -> None:
    """Evaluate one policy on the questions that training never sees."""
    client = weave.init(project)
    _, rows = split_questions()
    dataset = weave.Dataset(name="preference-questions", rows=[{"question": question} for question in rows])
    evaluation = weave.Evaluation(name="preference-rewards", dataset=dataset, scorers=[preference], trials=_TRIALS)
    policy = Policy(name=model.rsplit("/", 1)[-1].replace(":", "-"), address=address, model=model)
    summary, call = await evaluation.evaluate.call(evaluation, policy)
    client.finish()
    answers = len(rows) * _TRIALS
    found = {"reward": summary["preference"]["reward"]["mean"], "answers": answers, "questions": len(rows)}
    print(json.dumps({"evaluation": found | {"call": call.id}}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        publish(*sys.argv[1:])
    else:
        asyncio.run(main(*sys.argv[1:]))
